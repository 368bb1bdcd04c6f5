"""How one call to a party ends: slow is told from dead, and a loss that may pass from one that will not. The parties
here are real gRPC servers with a health service, some of them behind a road that can be blocked. Each is reached at its
address and, the same tests again, over a connection that it dialled."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from coordinator.transport.dialled.way import opened_gate
from coordinator.transport.grpc_link import GrpcLink
from coordinator.transport.link import Answered, Batch, Lost, Refused
from party.dialling.destination import destination
from party.dialling.dialler import dialling
from protos import PROTOCOL_VERSION
from protos.codec import header_and_bytes
from protos.computed import Computed
from protos.conclave.v1 import party_pb2, plan_pb2, tensor_pb2
from protos.conclave.v1.party_pb2_grpc import PartyServicer, add_PartyServicer_to_server
from protos.dialling.sockets import socket_folder
from protos.framing import framed
from protos.identity.authority import new_authority
from protos.identity.certificates import Role
from protos.identity.identity import parse_identity
from protos.identity.requests import Request, key_pem, new_keys
from protos.identity.tls import server_credentials
from protos.refusal import Reason, Refusal, abort

BATCHES = [Batch(0, 0, 2), Batch(1, 2, 4)]
BLOCK = np.arange(8, dtype=np.int32).reshape(2, 4)


class Told:
    """Keeps what was told of troubles."""

    def __init__(self):
        self.lines = []

    def slow(self, party, seconds):
        self.lines.append("slow")

    def away(self, party, doing, why):
        self.lines.append("away")

    def back(self, party):
        self.lines.append("back")


class Party(PartyServicer):
    """Answers every verb after `delay` seconds; `refuses` when it is asked to."""

    def __init__(self):
        self.delay = 0.0
        self.refuses = None
        self.heartbeats = 0
        self.calls = 0
        self.percents, self.ends = (), None
        self.drips = False
        self.says = None

    async def Describe(self, request, context):  # noqa: N802
        return self.says or party_pb2.DescribeResponse(name="north", protocol_version=PROTOCOL_VERSION)

    async def Join(self, request, context):  # noqa: N802
        self.calls += 1
        if self.refuses is not None:
            await abort(context, self.refuses)
        await asyncio.sleep(self.delay)
        return party_pb2.JoinResponse(party="north", protocol_version=PROTOCOL_VERSION)

    async def Train(self, request, context):  # noqa: N802
        for number, percent in enumerate(self.percents):
            if number == self.ends:
                return
            yield party_pb2.TrainProgress(percent=percent, seconds=float("nan"))
            await asyncio.sleep(0.02)
        for beat in range(self.heartbeats):
            yield party_pb2.TrainProgress(percent=255 if beat % 2 else beat)
            await asyncio.sleep(self.delay)
        yield party_pb2.TrainProgress(percent=100, finished=True)

    async def Answer(self, requests, context):  # noqa: N802
        async for request in requests:
            self.calls += 1
            await asyncio.sleep(self.delay)
            if self.drips:
                header, raw = header_and_bytes(BLOCK)
                for at in range(len(raw)):
                    chunk = tensor_pb2.TensorChunk(offset=at, data=bytes(raw[at : at + 1]))
                    if not at:
                        chunk.header.CopyFrom(header)
                    yield party_pb2.AnswerResponse(batch=request.batch, chunk=chunk)
                    await asyncio.sleep(0.1)
            for message in framed(request.batch, BLOCK):
                yield party_pb2.AnswerResponse.FromString(message)


class Node:
    """A served party: its address, its health, and a road to it that can be blocked without closing anything."""

    def __init__(self, party, port):
        self.party = party
        self.port = port
        self.health = health.aio.HealthServicer()
        self.open = asyncio.Event()
        self.open.set()
        self.address = ""
        self.link = {}

    async def serving(self, well=True):
        status = health_pb2.HealthCheckResponse
        await self.health.set("", status.SERVING if well else status.NOT_SERVING)

    async def road(self, reader, writer):
        """One connection through to the node."""
        ends = [writer]
        try:
            beyond, back = await asyncio.open_connection("127.0.0.1", self.port)
            ends.append(back)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._carry(reader, back))
                both.create_task(self._carry(beyond, writer))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in ends:
                each.close()

    async def _carry(self, reader, writer):
        while data := await reader.read(2**16):
            await self.open.wait()
            writer.write(data)
            await writer.drain()
        writer.close()


@pytest.fixture(params=["direct", "dialled"])
async def node(request):
    """The party's node. address: what sentences call its place; link: what a link is made with."""
    server = grpc.aio.server()
    made = Node(Party(), 0)
    add_PartyServicer_to_server(made.party, server)
    health_pb2_grpc.add_HealthServicer_to_server(made.health, server)
    await made.serving()
    async with AsyncExitStack() as until:
        road = await asyncio.start_server(made.road, "127.0.0.1", 0)
        at = f"127.0.0.1:{road.sockets[0].getsockname()[1]}"
        if request.param == "direct":
            made.port = server.add_insecure_port("127.0.0.1:0")
            made.address, made.link = at, {"address": at}
            await server.start()
        else:
            await dialled(made, server, at, until)
        yield made
        made.open.set()
        road.close()
        await server.stop(0)


async def dialled(made, server, at, until):
    """Have the node dial a gate, on the road at this address."""
    authority = new_authority("here")
    own = {name: identity_of(authority, name) for name in ("north", "coordinator.here")}
    local = until.enter_context(socket_folder()) / "node.sock"
    way = until.enter_context(opened_gate("127.0.0.1:0", ["north"], own["coordinator.here"]))["north"]
    made.port = int(way.gate.address.rpartition(":")[2])
    server.add_secure_port(f"unix:{local}", server_credentials(own["north"]))
    await server.start()
    until.enter_context(dialling(destination(at, "none"), own["north"], local))
    assert await way.missing(10) is None
    made.address = way.shown
    made.link = {"address": way.address, "identity": own["coordinator.here"], "way": way}


def identity_of(authority, name):
    transport, signing = new_keys()
    role = Role.COORDINATOR if "." in name else Role.PARTY
    bundle = authority.issue(Request(name, transport.public_key(), signing.public_key()), role)
    return parse_identity(bundle.pem(), key_pem(transport, signing), role=role)


@asynccontextmanager
async def linked(node, **settings):
    told = Told()
    link = GrpcLink("north", troubles=told, **node.link, **{"deadline": 0.4} | settings)
    try:
        yield link, told
    finally:
        await link.close()


def join(link):
    return link.join("r", plan_pb2.Plan(), b"hash")


def train(link, percents):
    return link.train(party_pb2.TrainRequest(operation_id="counts-0"), percents.append)


async def answers(link):
    return [outcome async for outcome in link.answer("counts", BATCHES, 4)]


@pytest.mark.slow
async def test_a_party_that_is_slow_but_serves_is_waited_for_and_not_asked_twice(node):
    node.party.delay = 1.0
    async with linked(node) as (link, told):
        assert await join(link) == Answered(Computed())
        assert [outcome.value.tolist() for outcome in await answers(link)] == [BLOCK.tolist()] * 2
    assert [line for line in told.lines if line == "back"] == ["back"] * 3
    assert told.lines[0] == "slow"
    assert told.lines[-1] == "back"
    assert node.party.calls == 3


async def test_a_party_that_is_silent_and_does_not_serve_is_lost_with_both_said(node):
    node.party.delay = 30.0
    await node.serving(False)
    async with linked(node) as (link, told):
        says = f"no answer for 0.4 s; its node at {node.address} does not answer health checks"
        assert await join(link) == Lost(says)
        assert await answers(link) == [Lost(says)]
    assert told.lines == []


async def test_under_drop_after_a_party_without_a_block_for_so_long_is_given_up_though_it_serves(node):
    node.party.delay = 30.0
    async with linked(node, drop_after=1.0) as (link, told):
        (lost,) = await answers(link)
    assert lost == Lost("no sign of its work for 1 s, though its node serves", passing=False)
    assert set(told.lines) == {
        "slow"
    }  # one a deadline of 0.4 s: how many pass in the second, the machine's load decides


async def test_under_drop_after_a_dead_party_is_dead_all_the_same(node):
    node.party.delay = 30.0
    await node.serving(False)
    async with linked(node, drop_after=0.2) as (link, _):
        outcome = await join(link)
    assert outcome.passing
    assert "does not answer health checks" in outcome.why


async def test_heartbeats_keep_a_training_from_being_late(node):
    node.party.delay, node.party.heartbeats = 0.3, 5
    percents = []
    async with linked(node, deadline=1.0, drop_after=1.2) as (link, told):
        assert await train(link, percents) == Answered(None)
    assert percents == [0, None, 2, None, 4, 100]
    assert told.lines == []


@pytest.mark.parametrize(
    ("percents", "why"),
    [
        ([0] * 200, "its training got no further than 0% for 0.5 s"),
        ([3, 2, 3, 1] * 50, "its training got no further than 3% for 0.5 s"),
        ([255] * 200, "its training was not done after 1 s"),
    ],
    ids=["at 0%", "up and down", "of no percent"],
)
async def test_heartbeats_alone_do_not_hold_a_coordinator(node, percents, why):
    node.party.percents = percents
    async with linked(node, deadline=1.0, drop_after=0.5, train_within=1.0) as (link, _):
        outcome = await asyncio.wait_for(train(link, []), 4)
    assert outcome == Lost(why, passing=False)


async def test_a_training_that_is_asked_for_again_has_its_time_from_the_first_time(node):
    node.party.percents = range(100)
    node.party.ends = 8
    async with linked(node, deadline=1.0, drop_after=0.5, train_within=0.6) as (link, _):
        outcome = Lost("")
        for _ in range(9):
            if outcome.passing:
                outcome = await train(link, [])
    assert outcome == Lost("its training was not done after 0.6 s", passing=False)


async def test_pieces_that_never_make_a_block_do_not_hold_a_coordinator(node):
    node.party.drips = True
    async with linked(node, deadline=1.0, drop_after=0.5) as (link, _):
        (outcome,) = await asyncio.wait_for(answers(link), 4)
    assert outcome == Lost("no sign of its work for 0.5 s, though its node serves", passing=False)


async def test_a_node_that_is_about_to_end_or_busy_is_lost_for_a_while_and_has_not_refused(node):
    node.party.refuses = Refusal(Reason.DRAINING, "party north is about to end.")
    async with linked(node) as (link, _):
        assert await join(link) == Lost(f"its node at {node.address} is about to end")
        node.party.refuses = Refusal(Reason.BUSY, "party north is busy.")
        assert await join(link) == Lost(f"its node at {node.address} is asked too much at once")
        node.party.refuses = Refusal(Reason.STORAGE, "party north's disk is full.")
        assert isinstance(await join(link), Refused)
        node.party.refuses = None
        assert await join(link) == Answered(Computed())


async def test_a_road_that_swallows_everything_is_told_from_slowness_and_left_for_another(node):
    async with linked(node) as (link, told):
        assert await join(link) == Answered(Computed())
        node.open.clear()
        lost = await join(link)
        assert lost.passing
        assert "does not answer health checks" in lost.why
        # The old connection stays silent for ever; only one made anew gets through.
        node.open = asyncio.Event()
        node.open.set()
        assert await join(link) == Answered(Computed())
        assert len(await answers(link)) == 2
    assert told.lines == []


async def test_what_asking_again_will_not_mend_says_so():
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    link = GrpcLink("north", f"127.0.0.1:{port}")
    outcome = await link.describe(b"n" * 32)
    await link.close()
    await server.stop(0)
    assert outcome == Lost(f"what answers at 127.0.0.1:{port} is not a Conclave party of this protocol", passing=False)


async def test_what_a_party_says_of_itself_is_plain_and_short_where_it_comes_in(node):
    evil = "\x1b[2J\u202e<b>[a](b)\n"
    facts = {f"{evil}{number}": evil * 100 for number in range(99)}
    node.party.says = party_pb2.DescribeResponse(
        name=evil, software_version="1" * 1_000_000, facts=facts, trains=[evil] * 99, clock=float("nan")
    )
    async with linked(node) as (link, _):
        said = (await link.describe(b"n" * 32)).value
    assert (said.name, said.software_version, said.clock) == ("??2J??b??a??b??", "1" * 60 + "...", 0.0)
    texts = [*said.facts, *said.facts.values(), *said.trains]
    assert len(said.facts) == len(said.trains) == 32
    assert all(each.isprintable() and len(each) <= 63 and not set(each) & set("<>[]()") for each in texts)


async def test_a_link_makes_its_connection_anew_as_often_as_it_must(node):
    """gRPC keeps the connections of closed channels for a while: they must not add up to a party out of reach."""
    async with linked(node) as (link, told):
        for _ in range(8):
            link._broken = True
            assert await join(link) == Answered(Computed())
    assert told.lines == []


async def test_nobody_there_is_a_loss_that_may_pass():
    link = GrpcLink("north", "127.0.0.1:9", deadline=5.0)
    assert await join(link) == Lost("nothing answers at 127.0.0.1:9")
    await link.close()


async def test_a_party_that_cannot_be_reached_is_lost_with_what_is_wrong_with_its_address(monkeypatch):
    """A run that describes its parties says the same as `check` does beforehand."""
    for address, says in (
        ("127.0.0.1:9", "nothing listens at 127.0.0.1:9"),
        ("nowhere.invalid:7443", "there is no such host: nowhere.invalid:7443"),
    ):
        link = GrpcLink("north", address, deadline=0.5)
        assert await link.describe(b"n" * 32) == Lost(says)
        await link.close()


async def test_leaving_takes_one_deadline_whatever_the_node_says(node):
    class Sleepy(Party):
        async def Leave(self, request, context):  # noqa: N802
            await asyncio.sleep(30)

    node.party.__class__ = Sleepy
    async with linked(node) as (link, told):
        assert isinstance(await link.leave(), Lost)
    assert told.lines == []
