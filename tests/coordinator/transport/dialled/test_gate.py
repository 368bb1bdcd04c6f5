"""Who gets a place at the gate, and what those who get none can do to it."""

import asyncio
import contextlib
import dataclasses
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from coordinator.errors import RunError
from coordinator.transport.dialled import gate as gates
from coordinator.transport.dialled import places
from coordinator.transport.dialled.gate import MOST_UNPROVEN
from coordinator.transport.dialled.places import MOST_ACTIVE, MOST_WAITING
from coordinator.transport.dialled.way import opened_gate
from protos import PROTOCOL_VERSION, software_version
from protos.dialling import streams
from protos.dialling.frames import LONGEST, Kind, expect, frame, spoken
from protos.dialling.greeting import check_gate, new_challenge, new_hello, new_process, prove
from protos.dialling.streams import Stream
from protos.identity.authority import new_authority
from protos.identity.certificates import Role
from protos.identity.validity import RevocationList

HOUR = timedelta(hours=1)


async def until(true, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def asked(gate, name="north"):
    """A link's end of a connection to a party."""
    return Stream(*await asyncio.open_unix_connection(gate.places[name].path))


async def gone(stream, seconds=60.0):
    """Wait until the other end closes; how long that took."""
    began = time.monotonic()
    with contextlib.suppress(OSError):
        while await asyncio.wait_for(stream.reader.read(4096), seconds):
            pass
    return time.monotonic() - began


async def test_a_party_gets_its_place_and_bytes_pass_both_ways(gate, dialled, identities):
    async with dialled.welcomed(identities.of("north")) as north:
        assert await gate.places["north"].here(1)
        assert not gate.places["south"].there
        link = await asked(gate)
        assert await north.next() == (Kind.GO, b"")
        await north.say(frame(Kind.READY))
        await link.say(b"from the link")
        assert await north.reader.readexactly(13) == b"from the link"
        await north.say(b"from the party")
        assert await link.reader.readexactly(14) == b"from the party"
        link.close()
        assert await gone(north) < 3
    await until(lambda: not gate.places["north"].there)
    assert "its connection to" in gate.absent("north")


@pytest.mark.parametrize("name", ["south", "east"])
async def test_a_party_cannot_take_the_place_of_another_name(gate, dialled, identities, name):
    why = await dialled.refused(identities.of(name), name="north")
    assert f"the certificate of party {name}" in why
    assert "was shown where party north was expected" in why
    assert not gate.places["north"].there
    assert f"as north was turned away: the certificate of party {name}" in gate.absent("north")


async def test_a_coordinator_is_no_party(gate, dialled, identities):
    why = await dialled.refused(identities.of("coordinator.here", Role.COORDINATOR), name="north")
    assert "is not a party's" in why
    assert not gate.places["north"].there


async def test_a_party_that_does_not_dial_in_this_plan_has_no_place(gate, dialled, identities):
    why = await dialled.refused(identities.of("east"))
    assert "party east is not one that dials in the plan that is run here" in why
    assert "east" in gate.absent("north")


async def test_a_certificate_of_another_federation_is_told(gate, dialled, identities):
    why = await dialled.refused(identities.of("north", authority=new_authority("elsewhere")))
    assert "issued by another authority" in why


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ({"not_before": datetime.now(UTC) + HOUR}, "is not valid before"),
        ({"not_before": datetime.now(UTC) - 48 * HOUR, "days": 1}, "expired at"),
    ],
    ids=["not yet", "expired"],
)
async def test_a_certificate_out_of_its_time_is_told_with_both_times(gate, dialled, identities, when, said):
    why = await dialled.refused(identities.of("north", **when))
    assert said in why
    assert "the clock here says" in why


async def test_a_proof_for_another_challenge_or_another_gate_is_none(gate, dialled, identities, monkeypatch):
    north, proofs, challenges = identities.of("north"), [], []

    def kept(fields):
        proofs.append(fields)
        return fields

    async with dialled.welcomed(north, change=kept):
        pass
    await until(lambda: not gate.places["north"].there)
    assert "repeats old answers" in await dialled.refused(north, proof=proofs[0])

    def challenge():
        challenges.append(new_challenge())
        return challenges[-1]

    monkeypatch.setattr(gates, "new_challenge", challenge)
    elsewhere = identities.of("coordinator.other", Role.COORDINATOR).transport
    relayed = await dialled.refused(north, change=lambda fields: prove(north, challenges[-1], elsewhere))
    assert "repeats old answers" in relayed
    assert not gate.places["north"].there


async def test_a_second_process_is_turned_away_while_the_first_lives(gate, dialled, identities):
    north = identities.of("north")
    async with dialled.welcomed(north) as first:
        lives = asyncio.create_task(first.next())
        why = await dialled.refused(north, process=new_process())
        assert "another process of party north is connected to this gate and answers" in why
        assert gate.places["north"].connections == 1
        lives.cancel()


async def test_a_second_process_replaces_one_that_is_silent(gate, dialled, identities, monkeypatch):
    monkeypatch.setattr(places, "ALIVE_SECONDS", 0.3)
    north = identities.of("north")
    async with dialled.welcomed(north) as first, dialled.welcomed(north, process=new_process()):
        assert await gone(first) < 2
        assert gate.places["north"].connections == 1


async def test_a_party_that_dials_without_end_holds_few_connections(gate, dialled, identities):
    north, streams_ = identities.of("north"), []
    for _ in range(12):
        stream, kind, _ = await dialled.greet(north)
        assert kind is Kind.WELCOME
        streams_.append(stream)
    assert gate.places["north"].connections == MOST_WAITING
    for each in streams_:
        each.close()


async def test_of_more_connections_than_a_link_needs_the_oldest_makes_way(gate, dialled, identities):
    north, links, ends = identities.of("north"), [], []
    for number in range(MOST_ACTIVE + 3):
        stream, _, _ = await dialled.greet(north)
        ends.append(stream)
        links.append(await asked(gate))
        assert (await stream.next())[0] is Kind.GO
        await stream.say(frame(Kind.READY) + b"%d" % number)
        assert await links[-1].reader.readexactly(1) == b"%d" % number
        await until(lambda: gate.places["north"].connections <= MOST_ACTIVE)
    for oldest in links[:-MOST_ACTIVE]:
        assert await gone(oldest) < 2
    await links[-1].say(b"still")
    assert await ends[-1].reader.readexactly(5) == b"still"
    for each in (*links, *ends):
        each.close()


async def test_a_connection_that_does_not_say_ready_is_left_for_the_next(gate, dialled, identities, monkeypatch):
    monkeypatch.setattr(places, "READY_SECONDS", 0.3)
    north = identities.of("north")
    async with dialled.welcomed(north) as good, dialled.welcomed(north) as dead:
        link = await asked(gate)
        assert (await good.next())[0] is Kind.GO
        await good.say(frame(Kind.READY) + b"hello")
        assert await link.reader.readexactly(5) == b"hello"
        assert await gone(dead) < 2
        link.close()


async def test_pings_in_flight_when_a_connection_is_wanted_are_no_bytes_of_it(gate, dialled, identities):
    async with dialled.welcomed(identities.of("north")) as north:
        link = await asked(gate)
        await north.say(frame(Kind.PING) * 50 + frame(Kind.READY) + b"payload")
        assert await link.reader.readexactly(7) == b"payload"
        await link.say(b"x")
        seen = await asyncio.wait_for(north.reader.readuntil(b"x"), 5)
        assert seen.endswith(frame(Kind.GO) + b"x"), "nothing stands between the word and the bytes"
        link.close()


async def test_a_waiting_connection_is_kept_alive_and_dropped_when_it_is_silent(gate, dialled, identities, monkeypatch):
    monkeypatch.setattr(streams, "PING_SECONDS", 0.1)
    monkeypatch.setattr(streams, "DEAD_SECONDS", 0.6)
    north = identities.of("north")
    async with dialled.welcomed(north) as answers, dialled.welcomed(identities.of("south")) as silent:

        async def answering():
            with contextlib.suppress(OSError, EOFError):
                await answers.next()

        answering_ = asyncio.create_task(answering())
        assert await gone(silent) < 2
        await asyncio.sleep(1)
        assert gate.places["north"].there
        assert not gate.places["south"].there
        answering_.cancel()


GARBAGE = {
    "another protocol": b"GET / HTTP/1.1\r\n\r\n",
    "an oversized frame": bytes([Kind.HELLO]) + (LONGEST + 1).to_bytes(2, "big") + b"x" * (LONGEST + 1),
    "an unknown kind": b"\xff\x00\x00",
    "no JSON": frame(Kind.HELLO, b"{"),
    "deep JSON": frame(Kind.HELLO, b"[" * 8000),
    "no object": frame(Kind.HELLO, b"3"),
    "no hello": spoken(Kind.HELLO, magic="conclave-dial"),
    "a name that is none": spoken(Kind.HELLO, **new_hello("../../etc", "0" * 32).fields()),
    "a huge clock": spoken(Kind.HELLO, magic="conclave-dial", version=1, name="north", process="0", clock=10**400),
    "the wrong word first": frame(Kind.GO),
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
async def test_garbage_ends_the_connection_and_nothing_else(gate, dialled, identities, said):
    async with dialled.welcomed(identities.of("south")):
        stream = await dialled.connect()
        with contextlib.suppress(OSError):
            await stream.say(said)
        assert await gone(stream) < 2
        await until(lambda: gate.unproven == 0)
        assert "is no party of this version of Conclave" in gate.absent("north")
        assert gate.places["south"].there


PROOFS = {
    "none": lambda fields: {},
    "no base64": lambda fields: fields | {"signature": "!"},
    "no text": lambda fields: fields | {"payload": 3},
    "another signature": lambda fields: fields | {"signature": fields["signature"][::-1]},
    "no certificate": lambda fields: fields | {"certificate": fields["payload"]},
}


@pytest.mark.parametrize("change", PROOFS.values(), ids=PROOFS)
async def test_a_damaged_proof_is_none(gate, dialled, identities, change):
    with contextlib.suppress(OSError, EOFError):
        _, kind, _ = await dialled.greet(identities.of("north"), change=change)
        assert kind is Kind.REFUSED
    assert not gate.places["north"].there


async def test_pings_without_end_end_the_connection_and_hold_up_nobody(gate, dialled, identities):
    async with dialled.welcomed(identities.of("north")) as north, dialled.welcomed(identities.of("south")) as south:
        with contextlib.suppress(OSError):
            for _ in range(100):
                await north.say(frame(Kind.PING) * 1000)
        link = await asked(gate, "south")
        assert (await asyncio.wait_for(south.next(), 2))[0] is Kind.GO
        await until(lambda: not gate.places["north"].there, 2)
        link.close()


async def test_what_comes_after_the_welcome_and_is_no_frame_ends_it(gate, dialled, identities):
    async with dialled.welcomed(identities.of("north")) as north:
        await north.say(frame(Kind.READY))  # nobody asked
        assert await gone(north) < 2
    assert not gate.places["north"].there


async def test_a_greeting_byte_by_byte_is_over_in_its_time(gate, dialled, monkeypatch):
    monkeypatch.setattr(gates, "GREETING_SECONDS", 0.5)
    stream = await dialled.connect()
    hello = spoken(Kind.HELLO, **new_hello("north", new_process()).fields())
    began = time.monotonic()
    with contextlib.suppress(OSError):
        for byte in hello:
            await stream.say(bytes([byte]))
            await asyncio.sleep(0.05)
    assert await gone(stream) < 2
    assert time.monotonic() - began < 0.05 * len(hello) + 2
    await until(lambda: gate.unproven == 0)


@pytest.mark.slow
async def test_a_flood_of_strangers_is_bounded_and_lets_a_party_in(gate, dialled, identities):
    host, _, port = gate.address.rpartition(":")
    flood, most, before = [], 0, psutil.Process().num_fds()
    for _ in range(4 * MOST_UNPROVEN):
        raw = socket.socket()
        raw.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            raw.connect((host, int(port)))
        flood.append(raw)
        if len(flood) % 16 == 0:
            await asyncio.sleep(0.01)
            most = max(most, gate.unproven)
    try:
        async with dialled.welcomed(identities.of("north")) as north:
            link = await asked(gate)
            assert (await north.next())[0] is Kind.GO
            most = max(most, gate.unproven)
            link.close()
        assert 0 < most <= MOST_UNPROVEN
        await until(lambda: psutil.Process().num_fds() <= before + len(flood) + MOST_UNPROVEN + 16)
    finally:
        for raw in flood:
            raw.close()


async def test_plain_text_and_an_older_tls_are_told(gate, no_trust):
    host, _, port = gate.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    with contextlib.suppress(OSError):
        await asyncio.wait_for(reader.read(), 5)
    writer.close()
    await until(lambda: "did not speak TLS 1.3" in gate.absent("north"))
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.open_connection(host, int(port), ssl=no_trust)


async def test_a_revoked_party_has_no_place(identities, gate, dialled, monkeypatch, tmp_path):
    north = identities.of("north")
    listed = tmp_path / "revoked.pem"
    listed.write_bytes(identities.authority.revocation_list([north.signing.serial_number]))
    revoked = RevocationList(listed, identities.authority.certificate)
    monkeypatch.setattr(gate, "_identity", dataclasses.replace(identities.coordinator, revoked=revoked))
    assert "revoked" in await dialled.refused(north)


async def test_without_its_list_of_revoked_nobody_is_let_in_and_no_path_leaves(
    identities, gate, dialled, monkeypatch, tmp_path, caplog
):
    listed = tmp_path / "revoked.pem"
    listed.write_bytes(identities.authority.revocation_list([]))
    revoked = RevocationList(listed, identities.authority.certificate)
    monkeypatch.setattr(gate, "_identity", dataclasses.replace(identities.coordinator, revoked=revoked))
    listed.unlink()
    stream = await dialled.connect()
    await stream.say(spoken(Kind.HELLO, **new_hello("north", new_process()).fields()))
    _, said = await expect(stream.reader, Kind.REFUSED)
    assert said["why"] == "the coordinator cannot read its list of revoked certificates, and lets nobody in."
    assert str(listed) in caplog.text
    assert "list of revoked certificates" in gate.absent("north")
    stream.close()


async def test_another_version_is_told(gate, dialled):
    stream = await dialled.connect()
    await stream.say(spoken(Kind.HELLO, **new_hello("north", new_process()).fields() | {"version": 9}))
    _, said = await expect(stream.reader, Kind.REFUSED)
    here = f"(Conclave {software_version()})"
    assert f"by version 9 of this protocol {here}, and the gate knows 1 {here}" in said["why"]
    stream = await dialled.connect()
    hostile = {"version": 9, "software": "\x1b[2J" * 500, "looks": "yes"}
    await stream.say(spoken(Kind.HELLO, **new_hello("north", new_process()).fields() | hostile))
    _, said = await expect(stream.reader, Kind.REFUSED)
    assert said["why"].isprintable()
    assert len(said["why"]) < 250


async def look(dialled, identity):
    """Greet as `party check` does; the gate's last word."""
    stream = await dialled.connect()
    gate = check_gate(stream.writer.get_extra_info("ssl_object").getpeercert(binary_form=True), identity)
    await stream.say(spoken(Kind.HELLO, **new_hello(identity.name, new_process(), looks=True).fields()))
    _, said = await expect(stream.reader, Kind.CHALLENGE)
    await stream.say(spoken(Kind.PROOF, **prove(identity, said["challenge"], gate)))
    kind, word = await expect(stream.reader, Kind.WELCOME, Kind.REFUSED)
    assert await asyncio.wait_for(stream.reader.read(), 5) == b""
    stream.close()
    return kind, word


async def test_who_only_looks_is_told_and_gets_no_place_and_takes_none(gate, dialled, identities):
    north, south = identities.of("north"), identities.of("south")
    kind, word = await look(dialled, north)
    assert (kind, word["connected"], word["protocol"]) == (Kind.WELCOME, False, PROTOCOL_VERSION)
    assert not gate.places["north"].there
    async with dialled.welcomed(north):
        for _ in range(3):
            kind, word = await look(dialled, north)
            assert (kind, word["connected"]) == (Kind.WELCOME, True)
        assert gate.places["north"].connections == 1
        kind, word = await look(dialled, south)
        assert word["connected"] is False, "one party is not told of another"


async def test_who_looks_has_to_prove_a_name_too_and_counts_among_the_unproven(gate, dialled, identities):
    stranger = identities.of("north", authority=new_authority("elsewhere"))
    mine = dataclasses.replace(stranger, authority=identities.authority.certificate)
    kind, word = await look(dialled, mine)
    assert kind is Kind.REFUSED
    assert "issued by another authority" in word["why"]
    assert gate.places["north"].looked is None
    await until(lambda: gate.unproven == 0)


async def test_what_a_place_says_of_one_that_is_away_is_the_last_that_came(gate, dialled, identities):
    await look(dialled, identities.of("north"))
    assert "its `party check` came through 0 s ago, so the way is open: start it" in gate.absent("north")
    stranger = identities.of("north", authority=new_authority("elsewhere"))
    await dialled.refused(stranger)
    assert "was turned away" in gate.absent("north")
    await look(dialled, identities.of("north"))
    assert "its `party check` came through" in gate.absent("north")
    async with dialled.welcomed(identities.of("north")):
        pass
    await until(lambda: not gate.places["north"].there)
    assert gate.absent("north").endswith("and it has not dialled again")


def test_a_port_in_use_and_an_address_of_another_machine_are_one_sentence(identities):
    with opened_gate("127.0.0.1:0", ["north"], identities.coordinator) as ways:
        again = opened_gate(ways["north"].gate.address, ["north"], identities.coordinator)
        with pytest.raises(RunError, match=r"the port is in use\. Another run or check"), again:
            pass
    elsewhere = opened_gate("203.0.113.7:7444", ["north"], identities.coordinator)
    with pytest.raises(RunError, match="Name an address of this machine"), elsewhere:
        pass


async def test_a_link_without_its_party_is_let_go(gate, monkeypatch):
    monkeypatch.setattr(places, "TAKE_SECONDS", 0.3)
    link = await asked(gate)
    assert await gone(link) < 2
    assert gate.absent("north").startswith("it has not dialled in at")


def test_a_gate_that_closes_leaves_nothing(identities):
    with opened_gate("127.0.0.1:0", ["north"], identities.coordinator) as ways:
        path = ways["north"].gate.places["north"].path
        assert path.parent.stat().st_mode & 0o077 == 0
    assert not path.parent.exists()
    assert "gate" not in {thread.name for thread in threading.enumerate()}
