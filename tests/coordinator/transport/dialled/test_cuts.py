"""A stream over a dialled connection that is cut again and again: each block comes once, and is asked for as before."""

import asyncio
from collections import defaultdict

import grpc
import numpy as np
import pytest

from coordinator.transport.dialled.way import opened_gate
from coordinator.transport.grpc_link import GrpcLink
from coordinator.transport.link import Answered, Batch, Untroubled
from coordinator.transport.retry import PatientLink, Retry
from party.dialling.destination import destination
from party.dialling.dialler import dialling
from protos.conclave.v1 import party_pb2
from protos.conclave.v1.party_pb2_grpc import PartyServicer, add_PartyServicer_to_server
from protos.dialling.sockets import socket_folder
from protos.framing import framed
from protos.identity.tls import server_credentials

pytestmark = pytest.mark.slow

ROWS, COLUMNS, BLOCKS = 256, 1024, 64


def block(number):
    """1 MiB of a batch's own."""
    return np.random.default_rng(number).integers(-(2**31), 2**31, (ROWS, COLUMNS), np.int32)


class Streams(PartyServicer):
    """Answers with `block`, and calls `cut` after a message now and then, so often. asked: digests by batch."""

    def __init__(self, cuts, cut):
        self._left, self._cut = cuts, cut
        self._rng = np.random.default_rng(1)
        self.asked = defaultdict(set)
        self.calls = 0

    @property
    def left(self):
        return self._left

    async def Answer(self, requests, context):  # noqa: N802
        self.calls += 1
        async for request in requests:
            self.asked[request.batch].add(request.digest)
            for message in framed(request.batch, block(request.batch)):
                yield party_pb2.AnswerResponse.FromString(message)
                if self._left and self._rng.random() < 0.4:
                    self._left -= 1
                    self._cut()


@pytest.mark.parametrize(
    "cuts", [0, 3, pytest.param(100, marks=pytest.mark.slow)], ids=["uncut", "cut thrice", "cut a hundred times"]
)
async def test_64_mib_come_whole_however_often_they_are_cut(identities, cuts):
    server, north = grpc.aio.server(), identities.of("north")
    with socket_folder() as folder, opened_gate("127.0.0.1:0", ["north"], identities.coordinator) as ways:
        way = ways["north"]

        async def cut():
            way.gate.places["north"].cut()

        party = Streams(cuts, lambda: way.thread.start(cut()))
        add_PartyServicer_to_server(party, server)
        server.add_secure_port(f"unix:{folder}/node.sock", server_credentials(north))
        await server.start()
        with dialling(destination(way.gate.address, "none"), north, folder / "node.sock"):
            link = GrpcLink("north", way.address, identity=identities.coordinator, way=way, deadline=10)
            patient = PatientLink(link, Retry(120, first=0.01, longest=0.05), Untroubled())
            batches = [Batch(number, number * ROWS, (number + 1) * ROWS) for number in range(BLOCKS)]
            came = 0
            async for outcome in patient.answer("counts", batches, COLUMNS):
                assert isinstance(outcome, Answered), outcome
                assert np.array_equal(outcome.value, block(came))
                came += 1
            await patient.close()
        await server.stop(0)
    assert came == BLOCKS
    assert party.left == 0
    assert party.calls >= 1 + cuts // 4, "cuts of one connection may fall together"
    assert sorted(party.asked) == list(range(BLOCKS))
    assert all(len(digests) == 1 for digests in party.asked.values()), "asked again, it is the same block"
    await asyncio.sleep(0)
