"""A gate that stands open for many runs: each reaches its parties through the gate's folder."""

import asyncio
import json

import pytest

from coordinator.errors import RunError
from coordinator.transport.dialled import standing
from coordinator.transport.dialled.gate import Gate
from coordinator.transport.dialled.standing import (
    LONGEST,
    StandingWay,
    answering,
    check_standing_folder,
    standing_folder,
)
from protos.dialling.frames import Kind, frame
from protos.dialling.sockets import socket_folder
from protos.dialling.streams import Stream


@pytest.fixture
async def folder(gate):
    """The folder of a standing gate, which is the test's gate."""
    path = gate.places["north"].path.parent
    server = await answering(gate, path)
    yield path
    server.close()


async def test_a_run_reaches_a_party_through_the_folder(gate, dialled, identities, folder):
    way = StandingWay("north", folder)
    assert "it has not dialled in" in await way.missing(0.2)
    async with dialled.welcomed(identities.of("north")) as north:
        assert await way.missing(1) is None
        link = Stream(*await asyncio.open_unix_connection(way.address.removeprefix("unix:")))
        assert await north.next() == (Kind.GO, b"")
        await north.say(frame(Kind.READY))
        await link.say(b"through")
        assert await north.reader.readexactly(7) == b"through"
        link.close()


async def test_a_run_waits_for_a_party_that_comes(gate, dialled, identities, folder):
    waiting = asyncio.create_task(StandingWay("north", folder).missing(10))
    await asyncio.sleep(0.1)
    async with dialled.welcomed(identities.of("north")):
        assert await asyncio.wait_for(waiting, 5) is None


async def test_a_party_that_does_not_dial_there_is_told(gate, folder):
    assert await StandingWay("east", folder).missing(0.2) == "it is not one that dials this coordinator"


async def test_a_run_waits_for_its_coordinator_to_come_back(identities):
    with socket_folder() as path:
        way = StandingWay("north", path)
        assert "does not answer (`coordinator serve` holds it)" in await way.missing(0.2)
        waiting = asyncio.create_task(way.missing(2))
        await asyncio.sleep(0.1)
        gate = Gate("127.0.0.1:0", ["north"], identities.coordinator, path)
        await gate.open()
        server = await answering(gate, path)
        assert "not dialled in" in await asyncio.wait_for(waiting, 15)
        server.close()
        await gate.close()


async def test_a_gate_opens_where_a_killed_one_left_its_sockets(identities):
    with socket_folder() as path:
        for _ in range(2):
            gate = Gate("127.0.0.1:0", ["north"], identities.coordinator, path)
            await gate.open()
            await answering(gate, path)
            assert "not dialled in" in await StandingWay("north", path).missing(0.1)
            # nothing is closed: the second finds the first's sockets
        await gate.close()


GARBAGE = [b"\n", b"{", b"[]\n", b'{"party": 3}\n', b'{"party": "north", "within": "x"}\n', b"x" * (2 * LONGEST)]


@pytest.mark.parametrize("said", GARBAGE)
async def test_garbage_at_the_asking_socket_ends_that_connection_alone(gate, folder, said):
    reader, writer = await asyncio.open_unix_connection(folder / standing.ASKING)
    writer.write(said)
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    assert "not dialled in" in await StandingWay("north", folder).missing(0.1)


@pytest.mark.parametrize("said", [b"", b"{}\n", b"nothing\n", json.dumps({"missing": "\x1b[31mx"}).encode() + b"\n"])
async def test_what_a_gate_says_is_never_believed_to_be_more_than_words(said):
    async def answer(reader, writer):
        writer.write(said)
        writer.close()

    with socket_folder() as path:
        server = await asyncio.start_unix_server(answer, path / standing.ASKING)
        found = await StandingWay("north", path).missing(0.2)
        assert "does not answer" in found or found == "?[31mx"
        server.close()


def test_a_plan_names_a_standing_gate_by_its_folder(tmp_path):
    assert standing_folder("unix:/run/conclave/gate").name == "gate"
    assert standing_folder("0.0.0.0:7444") is None
    check_standing_folder(tmp_path)
    with pytest.raises(RunError, match=r"\[gate\] sockets"):
        check_standing_folder(tmp_path / ("x" * 90))
