"""A party keeps one connection at its gate, whatever the gate, the network or another process does."""

import asyncio
import contextlib
import logging
import time
import tracemalloc

import pytest

from coordinator.transport.dialled.gate import Gate
from party.dialling import dialler as diallers
from party.dialling.destination import Destination, destination
from party.dialling.dialler import MOST_ACTIVE, Dialler, pause
from protos import PROTOCOL_VERSION, software_version
from protos.dialling import streams
from protos.dialling.frames import Kind, expect, frame, spoken
from protos.dialling.greeting import new_challenge
from protos.dialling.streams import Stream

OTHER = PROTOCOL_VERSION + 1


async def until(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


@pytest.fixture
async def server(folder):
    """A party's own server, which says everything back; how many connections it has is `server.now`."""

    class Server:
        path = folder / "node.sock"
        now = most = 0

        async def talk(self, reader, writer):
            self.now += 1
            self.most = max(self.most, self.now)
            with contextlib.suppress(OSError):
                while data := await reader.read(2**16):
                    writer.write(data)
                    await writer.drain()
            self.now -= 1
            writer.close()

    made = Server()
    listening = await asyncio.start_unix_server(made.talk, made.path)
    yield made
    listening.close()


@pytest.fixture
async def dials(identities, server):
    """`dials(address, ...)`: a dialler that runs, and pauses for a hundredth of a second."""
    tasks = []

    def begin(address, proxy="none", identity=None, pauses=lambda failures: 0.01):
        made = Dialler(destination(address, proxy), identity or identities.north, server.path, pauses=pauses)
        tasks.append(asyncio.create_task(made.run()))
        return made

    yield begin
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
async def gate(identities, folder):
    made = Gate("127.0.0.1:0", ["north", "south"], identities.coordinator, folder)
    await made.open()
    yield made
    await made.close()


async def echoed(gate, said=b"hello"):
    """Say something to the party over a fresh connection of a link; what comes back."""
    link = Stream(*await asyncio.open_unix_connection(gate.places["north"].path))
    try:
        await link.say(said)
        return await asyncio.wait_for(link.reader.readexactly(len(said)), 10)
    finally:
        link.close()


async def test_what_is_used_is_replaced_by_another_that_waits(gate, dials):
    made = dials(gate.address)
    for number in range(5):
        assert await echoed(gate) == b"hello"
        await until(lambda: made.active == 0)
        assert made.dialled >= number + 1
    await until(lambda: gate.places["north"].connections == 1)


async def test_a_gate_that_is_not_open_yet_is_dialled_until_it_is(identities, folder, dials):
    made = Gate("127.0.0.1:0", ["north"], identities.coordinator, folder)
    await made.open()
    address = made.address
    await made.close()
    waits = dials(address)
    await until(lambda: "nothing listens at" in waits.trouble)
    again = Gate(address, ["north"], identities.coordinator, folder)
    await again.open()
    assert await again.places["north"].here(5)
    await until(lambda: waits.trouble == "")
    await again.close()


async def test_a_gate_that_closes_and_opens_again_is_dialled_again(identities, folder, dials):
    address = "127.0.0.1:0"
    for _ in range(3):
        made = Gate(address, ["north"], identities.coordinator, folder)
        await made.open()
        if address.endswith(":0"):
            dials(made.address)
        address = made.address
        assert await echoed(made) == b"hello"
        await made.close()
        for path in folder.glob("?.sock"):
            path.unlink()


async def test_a_proxy_that_cuts_everything_again_and_again(gate, dials, listens, http_proxy):
    proxy = http_proxy("ann:s3cret")
    made = dials(gate.address, f"http://ann:s3cret@{await listens(proxy.talk)}")
    for _ in range(10):
        assert await echoed(gate) == b"hello"
        proxy.cut()
    assert made.dialled >= 10


async def test_another_process_of_the_party_is_turned_away_in_words_and_comes_when_the_first_ends(gate, dials, server):
    dials(gate.address)
    assert await gate.places["north"].here(5)
    second = dials(gate.address)
    await until(lambda: "another process of party north" in second.trouble)
    assert second.dialled == 0
    assert await echoed(gate) == b"hello"
    await until(lambda: gate.places["north"].refused is not None)
    assert "another process" in gate.places["north"].refused[1]


async def test_a_party_that_was_restarted_takes_its_place_again(gate, identities, server):
    for _ in range(3):
        made = Dialler(Destination(gate.address), identities.north, server.path, pauses=lambda failures: 0.01)
        running = asyncio.create_task(made.run())
        assert await echoed(gate) == b"hello"
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_waiting_connection_that_goes_silent_is_dialled_again(gate, dials, listens, monkeypatch):
    """A network that forgets a connection, as one behind address translation does."""
    monkeypatch.setattr(streams, "PING_SECONDS", 0.1)
    monkeypatch.setattr(streams, "DEAD_SECONDS", 0.5)
    through = asyncio.Event()
    through.set()

    async def road(reader, writer):
        host, _, port = gate.address.rpartition(":")
        beyond, back = await asyncio.open_connection(host, int(port))

        async def carry(source, sink):
            with contextlib.suppress(OSError):
                while data := await source.read(2**16):
                    await through.wait()
                    sink.write(data)
                    await sink.drain()

        await asyncio.gather(carry(reader, back), carry(beyond, writer))

    made = dials(await listens(road))
    assert await gate.places["north"].here(5)
    await asyncio.sleep(1)
    assert made.dialled == 1, "pings kept it alive"
    through.clear()
    await until(lambda: not gate.places["north"].there, 3)
    through.set()
    await until(lambda: made.dialled >= 2, 3)
    assert await echoed(gate) == b"hello"


async def hostile(identities, listens, shows, then):
    """A gate with the coordinator's certificate that welcomes everybody, and then does what it likes."""

    async def talk(reader, writer):
        stream = Stream(reader, writer)
        await expect(reader, Kind.HELLO)
        await stream.say(spoken(Kind.CHALLENGE, challenge=new_challenge()))
        await expect(reader, Kind.PROOF)
        await stream.say(spoken(Kind.WELCOME))
        await then(stream)

    return await listens(talk, shows(identities.coordinator))


async def test_a_gate_that_wants_connections_without_end_gets_few(identities, listens, shows, dials, server):
    gone = []

    async def takes(stream):
        await stream.say(frame(Kind.GO))
        gone.append(stream)
        await asyncio.sleep(60)

    made = dials(await hostile(identities, listens, shows, takes))
    await until(lambda: len(gone) == MOST_ACTIVE)
    await asyncio.sleep(0.5)
    assert len(gone) == made.active == MOST_ACTIVE
    assert server.most == MOST_ACTIVE


async def test_a_gate_that_takes_and_drops_without_end_is_dialled_at_a_pace(
    identities, listens, shows, dials, monkeypatch
):
    monkeypatch.setattr(diallers, "BURST", 5.0)

    async def drops(stream):
        await stream.say(frame(Kind.GO))
        with contextlib.suppress(EOFError):
            await asyncio.wait_for(stream.reader.read(3), 5)

    made = dials(await hostile(identities, listens, shows, drops))
    await asyncio.sleep(2)
    assert made.dialled <= 5 + 2 * diallers.RATE + 2


ENDS = {
    "an oversized frame": b"\x06\xff\xff" + b"x" * 70_000,
    "an unknown kind": b"\x63\x00\x00",
    "a second welcome": spoken(Kind.WELCOME),
    "nothing": b"",
}


@pytest.mark.parametrize("said", ENDS.values(), ids=ENDS)
async def test_garbage_after_the_welcome_ends_that_connection_alone(identities, listens, shows, dials, said):
    async def garbles(stream):
        await stream.say(said)

    made = dials(await hostile(identities, listens, shows, garbles))
    await until(lambda: made.dialled >= 3)
    assert "ended the connection" in made.trouble or made.trouble == ""


@pytest.mark.slow
async def test_garbage_in_place_of_grpc_costs_the_party_bounded_memory(identities, listens, shows, dials):
    """256 MiB of noise, and no word of it is read: what comes back is never taken."""
    sent = 0

    async def floods(stream):
        nonlocal sent
        await stream.say(frame(Kind.GO))
        piece = b"\xff" * 2**18
        with contextlib.suppress(OSError, TimeoutError):
            for _ in range(1024):
                async with asyncio.timeout(1):
                    await stream.say(piece)
                sent += len(piece)
        await asyncio.sleep(60)

    tracemalloc.start()
    try:
        dials(await hostile(identities, listens, shows, floods))
        await asyncio.sleep(3)
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sent < 40 * MOST_ACTIVE * 2**20, "it is held back, not buffered; the system has buffers too"
    assert held < 64 * 2**20


async def test_pings_without_end_end_the_connection_and_hold_up_nothing(identities, listens, shows, dials):
    async def pings(stream):
        with contextlib.suppress(OSError):
            while True:
                await stream.say(frame(Kind.PING) * 1000)

    made = dials(await hostile(identities, listens, shows, pings))
    await until(lambda: made.dialled >= 3, 3)


async def test_the_same_trouble_is_logged_once(dials, caplog):
    with caplog.at_level(logging.INFO, "conclave.party"):
        made = dials("127.0.0.1:9")
        await until(lambda: made.trouble != "")
        await asyncio.sleep(0.3)
    assert [each.levelname for each in caplog.records] == ["WARNING"]
    assert "nothing listens at 127.0.0.1:9" in caplog.text


async def test_an_error_that_nobody_thought_of_does_not_end_it(gate, dials, monkeypatch, caplog):
    real, times = diallers.reach, []

    async def fails(*given):
        times.append(1)
        if len(times) < 3:
            raise RuntimeError("unthought of")
        return await real(*given)

    monkeypatch.setattr(diallers, "reach", fails)
    dials(gate.address)
    assert await gate.places["north"].here(5)
    assert caplog.text.count("RuntimeError: unthought of") == 2


def test_pauses_grow_to_their_limit_with_jitter():
    found = [[pause(failures) for _ in range(50)] for failures in (1, 2, 3, 10, 10_000)]
    for pauses, most in zip(found, (1, 2, 4, 30, 30), strict=True):
        assert most / 2 <= min(pauses) < max(pauses) <= most
        assert len(set(pauses)) > 40


async def test_a_coordinator_of_another_protocol_is_named_once_in_the_log_and_dialled_all_the_same(
    dials, gate, monkeypatch, caplog
):
    monkeypatch.setattr("coordinator.transport.dialled.places.about", lambda: {"software": "9.9", "protocol": OTHER})
    with caplog.at_level(logging.WARNING, "conclave.party"):
        dialler = dials(gate.address)
        for _ in range(3):
            assert await gate.places["north"].here(10)
            stream = await asyncio.wait_for(gate.places["north"]._take(), 10)
            stream.close()
        await until(lambda: dialler.dialled > 3)
    (said,) = [each.message for each in caplog.records if "runs Conclave" in each.message]
    assert (
        f"runs Conclave 9.9, protocol {OTHER}; this party runs {software_version()}, protocol {PROTOCOL_VERSION}"
        in said
    )
    assert "Install the same version at both ends" in said
