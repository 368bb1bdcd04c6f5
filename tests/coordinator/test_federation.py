"""What a federation does when a party is away, says no, or sends what cannot be used. The parties here are real gRPC
servers that misbehave on purpose; the honest ones are met in test_run.py."""

import asyncio
import socket
import tracemalloc
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import numpy as np
import pytest

from coordinator.errors import PartyLost, PartyRefused
from coordinator.federation import Federation, modular_sum
from coordinator.launchers import PartyAddress
from coordinator.plan import read_plan
from coordinator.progress import Silent
from coordinator.store import RunIndex
from coordinator.template import template
from coordinator.terms import bind
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2, tensor_pb2
from protos.conclave.v1.party_pb2_grpc import PartyServicer, add_PartyServicer_to_server
from protos.digest import batch_digest, plan_hash
from protos.framing import framed
from protos.refusal import Reason, Refusal, abort

ROWS, COLUMNS, BLOCK = 6, 4, 2


def messages(batch, array):
    """A tensor's answers as a party's generated stub would make them."""
    return [party_pb2.AnswerResponse.FromString(message) for message in framed(batch, array)]


class Stub(PartyServicer):
    """Answers every verb by the book, with the matrix it was given; tests change one thing each."""

    def __init__(self, name="north", matrix=None):
        self.name = name
        self.matrix = np.zeros((ROWS, COLUMNS), np.int32) if matrix is None else matrix
        self.version = PROTOCOL_VERSION
        self.refuses = None
        self.joined = None
        self.asked = []

    async def Describe(self, request, context):  # noqa: N802
        return party_pb2.DescribeResponse(name=self.name, protocol_version=self.version, software_version="0.0.9")

    async def Join(self, request, context):  # noqa: N802
        if self.refuses is not None:
            await abort(context, self.refuses)
        self.joined = request
        return party_pb2.JoinResponse(party=self.name, protocol_version=self.version)

    async def Leave(self, request, context):  # noqa: N802
        return party_pb2.LeaveResponse()

    async def Answer(self, requests, context):  # noqa: N802
        async for request in requests:
            self.asked.append((request.batch, request.rows.start, request.rows.stop))
            assert request.digest == batch_digest(request)
            async for response in self.respond(request, context):
                yield response

    async def respond(self, request, context):
        for message in messages(request.batch, self.matrix[request.rows.start : request.rows.stop]):
            yield message


@asynccontextmanager
async def served(*stubs):
    async with AsyncExitStack() as stack:
        addresses = []
        for stub in stubs:
            server = grpc.aio.server()
            add_PartyServicer_to_server(stub, server)
            port = server.add_insecure_port("127.0.0.1:0")
            await server.start()
            stack.push_async_callback(server.stop, 0)
            addresses.append(PartyAddress(stub.name, f"127.0.0.1:{port}"))
            stub.server = server
        yield addresses


@pytest.fixture(scope="module")
def bound(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    text = (
        template("connect")
        .replace('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0')
        .replace("dropouts = 0", "dropouts = 1")
        .replace("minimum_parties = 2", "minimum_parties = 1")
    )
    path.write_text(text.replace("[federation]", "[federation]\ndeadline_seconds = 3.0"))
    return bind(read_plan(path))


@pytest.fixture
def store(tmp_path):
    return RunIndex(tmp_path).add("demo", b"h", None)


def federation(addresses, bound):
    return Federation.at(addresses, bound, Silent())


def aggregate(parties, store):
    return parties.aggregate("counts", ROWS, COLUMNS, BLOCK, store)


def stored(store):
    return np.vstack([block for _, _, block in store.blocks("counts")])


async def test_the_sum_of_all_parties_is_stored_block_by_block(bound, store):
    rng = np.random.default_rng(0)
    one, other = (rng.integers(-9, 9, (ROWS, COLUMNS), dtype=np.int32) for _ in range(2))
    async with served(Stub("north", one), Stub("south", other)) as addresses:
        parties = federation(addresses, bound)
        await parties.open("r", bound)
        assert await aggregate(parties, store) == 2
        await parties.close()
    assert np.array_equal(stored(store), one + other)
    assert parties.traffic == 2 * one.nbytes


async def test_every_party_is_joined_with_the_whole_plan_and_its_hash(bound):
    north, south = Stub("north"), Stub("south")
    async with served(north, south) as addresses:
        parties = federation(addresses, bound)
        await parties.open("run-1", bound)
        await parties.close()
    assert north.joined.run.run_id == "run-1"
    assert north.joined.run.plan_hash == plan_hash(north.joined.plan) == plan_hash(bound.binding)
    assert south.joined.plan == bound.binding


def test_a_sum_that_leaves_32_bits_wraps_as_the_secure_sum_will():
    big = np.array([[2**31 - 1, -(2**31), 5]], np.int32)
    assert modular_sum([big, np.array([[1, -1, 6]], np.int32)]).tolist() == [[-(2**31), 2**31 - 1, 11]]


async def test_a_party_that_refuses_ends_the_run_with_its_own_words(bound):
    south = Stub("south")
    south.refuses = Refusal(Reason.POLICY, "policy minimum_parties = 5, this plan has 2.", "minimum_parties")
    async with served(Stub("north"), south) as addresses:
        parties = federation(addresses, bound)
        with pytest.raises(
            PartyRefused, match=r"party south refused to join: policy minimum_parties = 5.*Nothing was spent"
        ):
            await parties.open("r", bound)
        await parties.close()


async def test_an_older_protocol_is_told_apart_and_says_what_to_install(bound):
    north = Stub("north")
    north.version = PROTOCOL_VERSION - 1
    async with served(north, Stub("south")) as addresses:
        parties = federation(addresses, bound)
        with pytest.raises(
            PartyRefused, match=r"party north speaks an older protocol .* Conclave 0.0.9: install the same"
        ):
            await parties.open("r", bound)
        await parties.close()


async def test_a_node_that_is_another_party_is_noticed(bound):
    async with served(Stub("north"), Stub("west")) as (north, west):
        parties = federation([north, PartyAddress("south", west.address)], bound)
        with pytest.raises(PartyRefused, match=r'calls it "south", but the node at that address is party "west"'):
            await parties.open("r", bound)
        await parties.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_a_run_goes_on_without_a_party_that_is_not_there_if_the_plan_allows(bound, store):
    async with served(Stub("north")) as (north,):
        nobody = PartyAddress("south", f"127.0.0.1:{free_port()}")
        parties = federation([north, nobody], bound)
        await parties.open("r", bound)
        assert parties.present == ("north",)
        assert await aggregate(parties, store) == 1
        await parties.close()


async def test_a_run_stops_when_too_few_parties_are_there(bound):
    nobody = [PartyAddress(name, f"127.0.0.1:{free_port()}") for name in ("north", "south")]
    parties = federation(nobody, bound)
    with pytest.raises(
        PartyLost, match=r"party north was lost: .*127.0.0.1.*needs 1 of its parties and 0 are left.*Nothing was"
    ):
        await parties.open("r", bound)
    await parties.close()


async def test_what_is_no_conclave_party_is_told_apart(bound):
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    parties = federation([PartyAddress(name, f"127.0.0.1:{port}") for name in ("north", "south")], bound)
    with pytest.raises(PartyLost, match="is not a Conclave party"):
        await parties.open("r", bound)
    await parties.close()
    await server.stop(0)


async def test_a_party_lost_midway_is_left_out_of_the_whole_sum(bound, store):
    rng = np.random.default_rng(1)
    one, other = (rng.integers(-9, 9, (ROWS, COLUMNS), dtype=np.int32) for _ in range(2))

    class Dying(Stub):
        async def respond(self, request, context):
            if request.batch == 2:
                await asyncio.sleep(60)
            async for response in super().respond(request, context):
                yield response

    north = Stub("north", one)
    async with served(north, Dying("south", other)) as addresses:
        parties = federation(addresses, bound)
        await parties.open("r", bound)
        assert await aggregate(parties, store) == 1
        await parties.close()
    assert np.array_equal(stored(store), one)
    assert parties.lost["south"].startswith("no answer for 3 s")
    assert len(set(north.asked)) == 3, "the same numbers stand for the same rows when a sum starts again"


async def test_matrices_that_are_gathered_stay_apart_by_party(bound):
    rng = np.random.default_rng(2)
    one, other = (rng.integers(-(2**31), 2**31, (ROWS, COLUMNS), dtype=np.int32) for _ in range(2))
    async with served(Stub("north", one), Stub("south", other)) as addresses:
        parties = federation(addresses, bound)
        await parties.open("r", bound)
        found = await parties.gather("votes", ROWS, COLUMNS, BLOCK)
        await parties.close()
    assert list(found) == ["north", "south"]
    assert found["north"].dtype == np.int64
    assert np.array_equal(found["north"], one)
    assert np.array_equal(found["south"], other)


@pytest.mark.parametrize("lost", ["north", "south"])
async def test_a_party_lost_midway_is_left_out_of_what_is_gathered(bound, lost):
    rng = np.random.default_rng(3)
    matrices = {name: rng.integers(0, 9, (ROWS, COLUMNS), dtype=np.int32) for name in ("north", "south")}

    class Dying(Stub):
        async def respond(self, request, context):
            if request.batch == 2:
                await asyncio.sleep(60)
            async for response in super().respond(request, context):
                yield response

    stubs = [(Dying if name == lost else Stub)(name, matrix) for name, matrix in matrices.items()]
    async with served(*stubs) as addresses:
        parties = federation(addresses, bound)
        await parties.open("r", bound)
        found = await parties.gather("votes", ROWS, COLUMNS, BLOCK)
        await parties.close()
    (left,) = {"north", "south"} - {lost}
    assert list(found) == [left]
    assert np.array_equal(found[left], matrices[left])
    assert list(parties.lost) == [lost]


async def test_memory_of_a_sum_is_a_few_blocks_whatever_the_matrix(bound, store):
    rows, columns, block = 2048, 1024, 64

    class Endless(Stub):
        async def respond(self, request, context):
            for message in messages(
                request.batch, np.full((request.rows.stop - request.rows.start, columns), 3, np.int32)
            ):
                yield message

    async with served(Endless("north"), Endless("south")) as addresses:
        parties = federation(addresses, bound)
        await parties.open("r", bound)
        tracemalloc.start()
        assert await parties.aggregate("counts", rows, columns, block, store) == 2
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await parties.close()
    assert sum(stop - start for start, stop, _ in store.blocks("counts")) == rows
    assert peak < 16 * block * columns * 4 < rows * columns * 4


class WrongShape(Stub):
    async def respond(self, request, context):
        for message in messages(request.batch, np.zeros((BLOCK, COLUMNS + 1), np.int32)):
            yield message


class NotIntegers(Stub):
    async def respond(self, request, context):
        for message in messages(request.batch, np.full((BLOCK, COLUMNS), np.nan)):
            yield message


class AnotherBatch(Stub):
    async def respond(self, request, context):
        for message in messages(request.batch + 1, self.matrix[:BLOCK]):
            yield message


class TooLittle(Stub):
    async def respond(self, request, context):
        header = tensor_pb2.TensorHeader(dtype=tensor_pb2.DTYPE_INT32, shape=(BLOCK, COLUMNS))
        yield party_pb2.AnswerResponse(batch=request.batch, chunk=tensor_pb2.TensorChunk(header=header, data=b"1234"))

    async def Answer(self, requests, context):  # noqa: N802
        async for request in requests:
            async for response in self.respond(request, context):
                yield response
            return


@pytest.mark.parametrize(
    ("liar", "says"),
    [
        (WrongShape, r"shape \[2, 5\] came where \[2, 4\] was asked for"),
        (NotIntegers, "dtype DTYPE_FLOAT64 came where int32 was asked for"),
        (AnotherBatch, "an answer to batch 1 came where 0 was asked for"),
        (TooLittle, "the answer to batch 0 ended early"),
    ],
)
async def test_a_party_that_sends_what_cannot_be_used_is_named_and_never_mixed_in(bound, store, liar, says):
    async with served(Stub("north"), liar("south")) as addresses:
        parties = federation(addresses, bound)
        await parties.open("r", bound)
        with pytest.raises(PartyRefused, match=f"party south sent something that cannot be used: {says}"):
            await aggregate(parties, store)
        await parties.close()
    assert list(store.blocks("counts")) == []


async def test_a_message_over_the_limit_is_told_as_such(bound, store):
    class Shouting(Stub):
        async def respond(self, request, context):
            yield party_pb2.AnswerResponse(batch=request.batch, chunk=tensor_pb2.TensorChunk(data=bytes(5 * 2**20)))

    async with served(Shouting("north"), Shouting("south")) as addresses:
        parties = federation(addresses, bound)
        await parties.open("r", bound)
        with pytest.raises(PartyLost, match="over the size limit"):
            await aggregate(parties, store)
        await parties.close()
