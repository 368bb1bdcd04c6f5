"""What a federation does when a party is away, says no, or sends what cannot be used. The parties here are real gRPC
servers that misbehave on purpose; the honest ones are met in test_run.py."""

import asyncio
import json
import re
import socket
import time
import tracemalloc
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from dp_accounting import GaussianDpEvent

from aggregation.accounting.events import to_json
from coordinator.errors import PartyLost, PartyRefused, RunStopped
from coordinator.federation.attendance import Attendance
from coordinator.federation.federation import Federation, modular_sum
from coordinator.identity.identity import Own
from coordinator.plan.federation import DropTable
from coordinator.progress.events import Unobserved
from coordinator.progress.progress import Silent
from coordinator.store.index import RunIndex
from coordinator.systems.registry import price_of, read_plan, template
from coordinator.text_models.federated_training import floats_of, odd_weights
from coordinator.transport.dialled.way import opened_gate
from coordinator.transport.launchers import PartyAddress
from party.dialling.destination import destination
from party.dialling.dialler import dialling
from protos import PROTOCOL_VERSION, software_version
from protos.conclave.v1 import party_pb2, tensor_pb2
from protos.conclave.v1.party_pb2_grpc import PartyServicer, add_PartyServicer_to_server
from protos.dialling.sockets import socket_folder
from protos.digest import batch_digest, plan_hash
from protos.framing import framed
from protos.identity.authority import new_authority
from protos.identity.certificates import Role
from protos.identity.identity import parse_identity, self_made
from protos.identity.requests import Request, key_pem, new_keys
from protos.identity.signing import sign
from protos.identity.tls import server_credentials
from protos.refusal import Reason, Refusal, abort

ROWS, COLUMNS, BLOCK = 6, 4, 2


def messages(batch, array):
    """A tensor's answers as a party's generated stub would make them."""
    return [party_pb2.AnswerResponse.FromString(message) for message in framed(batch, array)]


class Stub(PartyServicer):
    """Answers every verb by the book, with the matrix it was given; tests change one thing each.

    `meanwhile` is what it does before it answers batch `at`, the first time it is asked.
    """

    def __init__(self, name="north", matrix=None):
        self.name = name
        self.matrix = np.zeros((ROWS, COLUMNS), np.int32) if matrix is None else matrix
        self.identity = self_made(name, Role.PARTY, None)
        self.version = PROTOCOL_VERSION
        self.refuses = None
        self.at = 1
        self.meanwhile = None
        self.trainings = []
        self.joined = None
        self.cost = {}
        self.asked = []

    async def Describe(self, request, context):  # noqa: N802
        said = sign(self.identity, "conclave describe 1", {"party": self.name, "nonce": request.nonce.hex()})
        return party_pb2.DescribeResponse(
            name=self.name, protocol_version=self.version, software_version="0.0.9", identity=said.message()
        )

    async def Join(self, request, context):  # noqa: N802
        if self.refuses is not None:
            await abort(context, self.refuses)
        self.joined = request
        return party_pb2.JoinResponse(party=self.name, protocol_version=self.version)

    async def Attest(self, request, context):  # noqa: N802
        said = sign(self.identity, "conclave attestation 1", self.attests(request.run))
        return party_pb2.AttestResponse(statement=said.message())

    def attests(self, run):
        costs = [{"name": "counts", "attempt": 0, "event": self.cost}]
        return {"party": self.name, "run": run.run_id, "plan_hash": run.plan_hash.hex(), "releases": costs}

    async def Leave(self, request, context):  # noqa: N802
        return party_pb2.LeaveResponse()

    async def Provide(self, requests, context):  # noqa: N802
        async for _ in requests:
            pass
        return party_pb2.ProvideResponse()

    async def Train(self, request, context):  # noqa: N802
        self.trainings.append(request.operation_id)
        yield party_pb2.TrainProgress(percent=50)
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            await meanwhile()
        yield party_pb2.TrainProgress(percent=100, finished=True)

    async def Answer(self, requests, context):  # noqa: N802
        async for request in requests:
            self.asked.append((request.batch, request.rows.start, request.rows.stop))
            assert request.digest == batch_digest(request)
            if request.batch == self.at and self.meanwhile is not None:
                meanwhile, self.meanwhile = self.meanwhile, None
                await meanwhile()
            async for response in self.respond(request, context):
                yield response

    async def respond(self, request, context):
        for message in messages(request.batch, self.matrix[request.rows.start : request.rows.stop]):
            yield message


class Carried:
    """How the coordinator reaches the stubs of a test: at ports, or over connections that they dial."""

    dials = False
    coordinator = None


@pytest.fixture(params=["at ports", "dialled"])
def either_way(request):
    """Do the test for parties at ports, and for parties that dial."""
    Carried.dials = request.param == "dialled"
    yield
    Carried.dials, Carried.coordinator = False, None


@asynccontextmanager
async def served(*stubs):
    async with AsyncExitStack() as stack:
        if Carried.dials:
            yield await dialled_in(stubs, stack)
            return
        addresses = []
        for stub in stubs:
            await start(stub)
            stack.push_async_callback(end, stub)
            addresses.append(PartyAddress(stub.name, f"127.0.0.1:{stub.port}"))
        yield addresses


async def dialled_in(stubs, stack):
    """Serve the stubs at sockets of their own, and have them dial a gate; the way to each."""
    authority = new_authority("dialled")
    Carried.coordinator = issued(authority, "coordinator.here", Role.COORDINATOR)
    ways = stack.enter_context(opened_gate("127.0.0.1:0", [stub.name for stub in stubs], Carried.coordinator))
    addresses = []
    for stub in stubs:
        stub.transport = issued(authority, stub.name, Role.PARTY)
        stub.socket = stack.enter_context(socket_folder()) / "node.sock"
        await start(stub)
        stack.push_async_callback(end, stub)
        way = ways[stub.name]
        stack.enter_context(dialling(destination(way.gate.address, "none"), stub.transport, stub.socket))
        assert await way.missing(10) is None
        addresses.append(PartyAddress(stub.name, way.address, way=way))
    return addresses


def issued(authority, name, role):
    transport, signing = new_keys()
    bundle = authority.issue(Request(name, transport.public_key(), signing.public_key()), role)
    return parse_identity(bundle.pem(), key_pem(transport, signing), role=role)


async def start(stub, port=0):
    stub.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    add_PartyServicer_to_server(stub, stub.server)
    if Carried.dials:
        stub.port = 0
        stub.server.add_secure_port(f"unix:{stub.socket}", server_credentials(stub.transport))
    else:
        stub.port = stub.server.add_insecure_port(f"127.0.0.1:{port}")
    await stub.server.start()


async def end(stub):
    await stub.server.stop(0)


def restarting(stub, away=0.0):
    """What ends a node, and starts it again at the same address after a while."""
    tasks = set()

    async def again():
        await end(stub)
        await asyncio.sleep(away)
        await start(stub, stub.port)

    async def meanwhile():
        tasks.add(asyncio.create_task(again()))
        await asyncio.sleep(60)

    return meanwhile


@pytest.fixture(scope="module")
def priced(tmp_path_factory):
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    text = (
        template("connect")
        .replace('signals   = ["moments"]', 'signals   = ["counts"]\nclip      = 10.0')
        .replace("dropouts = 0", "dropouts = 1")
        .replace("minimum_parties = 2", "minimum_parties = 1")
    )
    path.write_text(text.replace("[federation]", "[federation]\ndeadline_seconds = 2.0\nretry_seconds = 0"))
    return price_of(read_plan(path))


@pytest.fixture(scope="module")
def patient(priced):
    """The same plan, which asks again for ten seconds."""
    federation = priced.plan.federation.model_copy(update={"retry_seconds": 10.0})
    return replace(priced, plan=priced.plan.model_copy(update={"federation": federation}))


@pytest.fixture(scope="module")
def both(patient):
    """The patient plan, which needs both its parties."""
    federation = patient.plan.federation.model_copy(update={"minimum_parties": 2})
    return replace(patient, plan=patient.plan.model_copy(update={"federation": federation}))


@pytest.fixture
def store(tmp_path):
    return RunIndex(tmp_path).add("demo", b"h", None)


def federation(addresses, priced, progress=None, observer=None):
    identity = Carried.coordinator or self_made("coordinator.here", Role.COORDINATOR, None)
    own = Own(identity, None, Carried.dials, Path("unused"))
    return Federation.at(addresses, priced, own, progress or Silent(), observer)


def aggregate(parties, store):
    return parties.aggregate("counts", ROWS, COLUMNS, BLOCK, store)


def stored(store):
    return np.vstack([block for _, _, block in store.blocks("counts")])


@pytest.mark.usefixtures("either_way")
async def test_the_sum_of_all_parties_is_stored_block_by_block(priced, store):
    rng = np.random.default_rng(0)
    one, other = (rng.integers(-9, 9, (ROWS, COLUMNS), dtype=np.int32) for _ in range(2))
    async with served(Stub("north", one), Stub("south", other)) as addresses:
        parties = federation(addresses, priced)
        await parties.open("r", priced)
        assert await aggregate(parties, store) == 2
        await parties.close()
    assert np.array_equal(stored(store), one + other)
    assert parties.traffic == 2 * one.nbytes


async def test_every_party_is_joined_with_the_whole_plan_and_its_hash(priced):
    north, south = Stub("north"), Stub("south")
    async with served(north, south) as addresses:
        parties = federation(addresses, priced)
        await parties.open("run-1", priced)
        await parties.close()
    assert north.joined.run.run_id == "run-1"
    assert north.joined.run.plan_hash == plan_hash(north.joined.plan) == plan_hash(priced.binding)
    assert south.joined.plan == priced.binding


@pytest.mark.usefixtures("either_way")
async def test_parties_hear_of_each_other_by_their_certificates(priced):
    north, south = Stub("north"), Stub("south")
    async with served(north, south) as addresses:
        parties = federation(addresses, priced)
        await parties.open("run-1", priced)
        await parties.close()
    (peer,) = north.joined.peers
    assert (peer.name, peer.certificate) == ("south", south.identity.signing.public_bytes(Encoding.DER))
    assert not north.joined.check_only


class Liar(Stub):
    """Says something else than it was asked to sign."""

    def __init__(self, *arguments, **lies):
        super().__init__(*arguments)
        self.lies = lies

    async def Describe(self, request, context):  # noqa: N802
        asked = party_pb2.DescribeRequest(nonce=self.lies.get("nonce", request.nonce))
        signer, self.identity = self.identity, self.lies.get("identity", self.identity)
        answer = await super().Describe(asked, context)
        self.identity = signer
        if self.lies.get("unsigned"):
            answer.ClearField("identity")
        return answer

    def attests(self, run):
        return super().attests(run) | self.lies.get("attests", {})


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    ("lies", "why"),
    [
        ({"unsigned": True}, "did not show that it is north"),
        ({"nonce": b"old" * 10}, "did not show that it is north: it signed another question"),
        ({"identity": self_made("south", Role.PARTY, None)}, "did not show that it is north.*south"),
        ({"identity": self_made("north", Role.COORDINATOR, None)}, "did not show that it is north.*party"),
    ],
)
async def test_a_party_that_cannot_prove_who_it_is_is_not_joined(priced, lies, why):
    north = Liar("north", **lies)
    async with served(north, Stub("south")) as addresses:
        parties = federation(addresses, priced)
        with pytest.raises(PartyRefused, match=rf"(?s)party north {why}.*Nothing was spent"):
            await parties.open("r", priced)
        await parties.close()
    assert north.joined is None


def costs(priced):
    return {"north": priced.releases, "south": priced.releases}


@pytest.mark.usefixtures("either_way")
async def test_every_party_attests_what_the_run_cost_it(priced):
    north, south = Stub("north"), Stub("south")
    north.cost = south.cost = to_json(priced.releases[0].event)
    digest = plan_hash(priced.binding).hex()
    async with served(north, south) as addresses:
        parties = federation(addresses, priced)
        await parties.open("r", priced)
        signed = await parties.attest(digest, costs(priced))
        await parties.close()
    assert json.loads(signed["south"].payload)["releases"][0]["event"] == south.cost
    assert set(signed) == {"north", "south"}


@pytest.mark.parametrize(
    ("lies", "why"),
    [
        ({"run": "another"}, "attests another run"),
        ({"plan_hash": "00"}, "attests another run"),
        ({"party": "south"}, "attests another run"),
        ({"releases": []}, "does not attest the cost of counts"),
        ({"releases": None}, "does not attest the cost of counts"),
    ],
)
async def test_an_attestation_of_something_else_ends_a_run_that_needs_its_party(priced, lies, why):
    north = Liar("north", attests=lies)
    north.cost = to_json(priced.releases[0].event)
    async with served(north) as addresses:
        parties = federation(addresses, priced)
        await parties.open("r", priced)
        with pytest.raises(PartyLost, match=rf"(?s)party north {why}.*coordinator resume r"):
            await parties.attest(plan_hash(priced.binding).hex(), costs(priced))
        await parties.close()


@pytest.mark.parametrize("when", [0, time.time() + 3 * 86400, 1e300], ids=["1970", "in three days", "never"])
async def test_a_party_that_signs_at_another_time_than_now_does_not_end_the_run_of_the_others(priced, when):
    north, south = Liar("north", attests={"signed_at": when}), Stub("south")
    north.cost = south.cost = to_json(priced.releases[0].event)
    async with served(north, south) as addresses:
        parties = federation(addresses, priced)
        await parties.open("r", priced)
        signed = await parties.attest(plan_hash(priced.binding).hex(), costs(priced))
        await parties.close()
    assert set(signed) == {"south"}
    assert parties.present == ("south",)
    assert parties.lost == {"north": "it signed nothing that counts about the run's cost"}


async def test_a_cheaper_event_than_the_plans_is_not_accepted(priced):
    north = Stub("north")
    north.cost = to_json(GaussianDpEvent(1000.0))
    async with served(north) as addresses:
        parties = federation(addresses, priced)
        await parties.open("r", priced)
        with pytest.raises(PartyLost, match="does not attest the cost of counts as the plan has it"):
            await parties.attest(plan_hash(priced.binding).hex(), costs(priced))
        await parties.close()


def test_a_sum_that_leaves_32_bits_wraps_as_the_secure_sum_will():
    big = np.array([[2**31 - 1, -(2**31), 5]], np.int32)
    assert modular_sum([big, np.array([[1, -1, 6]], np.int32)]).tolist() == [[-(2**31), 2**31 - 1, 11]]


@pytest.mark.usefixtures("either_way")
async def test_a_party_that_refuses_ends_the_run_with_its_own_words(priced):
    south = Stub("south")
    south.refuses = Refusal(Reason.POLICY, "policy minimum_parties = 5, this plan has 2.", "minimum_parties")
    async with served(Stub("north"), south) as addresses:
        parties = federation(addresses, priced)
        with pytest.raises(
            PartyRefused, match=r"party south refused to join: policy minimum_parties = 5.*Nothing was spent"
        ):
            await parties.open("r", priced)
        await parties.close()


@pytest.mark.usefixtures("either_way")
async def test_an_older_protocol_is_told_apart_and_says_what_to_install(priced):
    north = Stub("north")
    north.version = PROTOCOL_VERSION - 1
    async with served(north, Stub("south")) as addresses:
        parties = federation(addresses, priced)
        with pytest.raises(
            PartyRefused,
            match=rf"speaks an older protocol .* Conclave 0.0.9, here it is {software_version()}: install the same",
        ):
            await parties.open("r", priced)
        await parties.close()


async def test_a_node_that_is_another_party_is_noticed(priced):
    async with served(Stub("north"), Stub("west")) as (north, west):
        parties = federation([north, PartyAddress("south", west.address)], priced)
        with pytest.raises(PartyRefused, match=r'calls it "south", but the node at that address is party "west"'):
            await parties.open("r", priced)
        await parties.close()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def test_a_run_goes_on_without_a_party_that_is_not_there_if_the_plan_allows(priced, store):
    async with served(Stub("north")) as (north,):
        nobody = PartyAddress("south", f"127.0.0.1:{free_port()}")
        parties = federation([north, nobody], priced)
        await parties.open("r", priced)
        assert parties.present == ("north",)
        assert await aggregate(parties, store) == 1
        await parties.close()


async def test_a_run_stops_when_too_few_parties_are_there(priced):
    nobody = [PartyAddress(name, f"127.0.0.1:{free_port()}") for name in ("north", "south")]
    parties = federation(nobody, priced)
    with pytest.raises(
        PartyLost, match=r"(?s)party north was lost: .*127.0.0.1.*needs 1 of its parties and 0 are left.*Nothing was"
    ):
        await parties.open("r", priced)
    await parties.close()


async def test_what_is_no_conclave_party_is_told_apart(priced):
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    parties = federation([PartyAddress(name, f"127.0.0.1:{port}") for name in ("north", "south")], priced)
    with pytest.raises(PartyLost, match="is not a Conclave party"):
        await parties.open("r", priced)
    await parties.close()
    await server.stop(0)


async def test_a_party_lost_midway_is_left_out_of_the_whole_sum(priced, store):
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
        parties = federation(addresses, priced)
        await parties.open("r", priced)
        assert await aggregate(parties, store) == 1
        await parties.close()
    assert np.array_equal(stored(store), one)
    assert parties.lost["south"].startswith("no answer for 2 s")
    assert len(set(north.asked)) == 3, "the same numbers stand for the same rows when a sum starts again"


@pytest.mark.usefixtures("either_way")
async def test_matrices_that_are_gathered_stay_apart_by_party(priced):
    rng = np.random.default_rng(2)
    one, other = (rng.integers(-(2**31), 2**31, (ROWS, COLUMNS), dtype=np.int32) for _ in range(2))
    async with served(Stub("north", one), Stub("south", other)) as addresses:
        parties = federation(addresses, priced)
        await parties.open("r", priced)
        found = await parties.gather("votes", ROWS, COLUMNS, BLOCK)
        await parties.close()
    assert list(found) == ["north", "south"]
    assert found["north"].dtype == np.int64
    assert np.array_equal(found["north"], one)
    assert np.array_equal(found["south"], other)


@pytest.mark.parametrize("lost", ["north", "south"])
async def test_a_party_lost_midway_is_left_out_of_what_is_gathered(priced, lost):
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
        parties = federation(addresses, priced)
        await parties.open("r", priced)
        found = await parties.gather("votes", ROWS, COLUMNS, BLOCK)
        await parties.close()
    (left,) = {"north", "south"} - {lost}
    assert list(found) == [left]
    assert np.array_equal(found[left], matrices[left])
    assert list(parties.lost) == [lost]


@pytest.mark.parametrize(
    ("value", "why"),
    [(np.nan, "NaN or infinity"), (-np.inf, "NaN or infinity"), (3e38, "above 1,000,000, which no training gives")],
)
async def test_a_party_whose_model_no_training_gives_is_named_and_mixed_into_nothing(priced, value, why):
    seen = Seen()
    good, bad = (np.full((1, COLUMNS), each, np.float32).view(np.int32) for each in (0.5, value))
    async with served(Stub("north", good), Stub("south", bad)) as addresses:
        parties = federation(addresses, priced, seen)
        await parties.open("r", priced)
        found = await parties.gather("domain", 1, COLUMNS, 1, odd=odd_weights)
        await parties.close()
    assert list(found) == ["north"]
    assert floats_of(found["north"]).tolist() == [0.5] * COLUMNS
    assert why in parties.lost["south"]
    assert any("party south was lost" in line and "the run goes on without it" in line for line in seen.lines)


@pytest.mark.slow
async def test_memory_of_a_sum_is_a_few_blocks_whatever_the_matrix(priced, store):
    rows, columns, block = 2048, 1024, 64

    class Endless(Stub):
        async def respond(self, request, context):
            for message in messages(
                request.batch, np.full((request.rows.stop - request.rows.start, columns), 3, np.int32)
            ):
                yield message

    async with served(Endless("north"), Endless("south")) as addresses:
        parties = federation(addresses, priced)
        await parties.open("r", priced)
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


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize(
    ("liar", "says"),
    [
        (WrongShape, r"shape \[2, 5\] came where \[2, 4\] was asked for"),
        (NotIntegers, "dtype DTYPE_FLOAT64 came where int32 was asked for"),
        (AnotherBatch, "an answer to batch 1 came where 0 was asked for"),
        (TooLittle, "the answer to batch 0 ended early"),
    ],
)
async def test_a_party_that_sends_what_cannot_be_used_is_named_and_never_mixed_in(priced, store, liar, says):
    async with served(Stub("north", np.ones((ROWS, COLUMNS), np.int32)), liar("south")) as addresses:
        parties = federation(addresses, priced)
        await parties.open("r", priced)
        await aggregate(parties, store)
        await parties.close()
    assert re.search(f"it sent something that cannot be used: {says}", parties.lost["south"])
    assert store.summed("counts") == ("north",)
    assert np.array_equal(stored(store), np.ones((ROWS, COLUMNS)))


@pytest.mark.usefixtures("either_way")
async def test_a_message_over_the_limit_is_told_as_such(priced, store):
    class Shouting(Stub):
        async def respond(self, request, context):
            yield party_pb2.AnswerResponse(batch=request.batch, chunk=tensor_pb2.TensorChunk(data=bytes(5 * 2**20)))

    async with served(Shouting("north"), Shouting("south")) as addresses:
        parties = federation(addresses, priced)
        await parties.open("r", priced)
        with pytest.raises(PartyLost, match="over the size limit"):
            await aggregate(parties, store)
        await parties.close()


class Seen(Silent, Unobserved):
    """Keeps what people see and what is counted."""

    def __init__(self):
        self.lines, self.states, self.retried, self.gone, self.sums, self.came = [], [], [], [], [], []

    def say(self, line):
        self.lines.append(line)

    def party(self, name, state):
        self.states.append((name, state))

    def block(self, release, party, seconds, size):
        self.came.append((release, party, size))

    def stored(self, release, done, total):
        self.sums.append((release, done, total))

    def retry(self, party, doing, why):
        self.retried.append((party, doing))

    def lost(self, party, why):
        self.gone.append(party)


def test_what_is_the_matter_with_a_party_is_shown_and_said_once():
    seen = Seen()
    attendance = Attendance(seen, seen, 300.0)
    attendance.state("north", "counting 62%")
    for _ in range(2):
        attendance.slow("north", 60.0)
        attendance.slow("north", 120.0)
        attendance.back("north")
        attendance.back("north")
    attendance.slow("north", 60.0)
    attendance.away("north", "train", "nothing answers")
    attendance.away("north", "train", "nothing answers")
    attendance.back("north")
    assert [state for _, state in seen.states] == [
        *("counting 62%", "slow", "slow", "counting 62%", "slow", "slow", "counting 62%"),
        *("slow", "retrying", "retrying", "counting 62%"),
    ]
    assert seen.lines == [
        "  party north is slow (nothing for 60 s, but its node serves); it is waited for",
        "  party north is away (nothing answers); it is asked again for up to 300 s",
    ]
    assert seen.retried == [("north", "train")] * 2


def pair(seed):
    rng = np.random.default_rng(seed)
    matrices = [rng.integers(-9, 9, (ROWS, COLUMNS), dtype=np.int32) for _ in range(2)]
    return matrices, [Stub(name, matrix) for name, matrix in zip(("north", "south"), matrices, strict=True)]


@asynccontextmanager
async def opened(addresses, priced, seen=None):
    parties = federation(addresses, priced, seen, seen)
    try:
        await parties.open("run-1", priced)
        yield parties
    finally:
        await parties.close()


async def test_a_party_that_is_started_again_gets_the_rest_of_its_work(patient, store):
    (one, other), (north, south) = pair(4)
    south.meanwhile = restarting(south, away=1.0)
    seen = Seen()
    async with served(north, south) as addresses, opened(addresses, patient, seen) as parties:
        assert await aggregate(parties, store) == 2
    assert np.array_equal(stored(store), one + other)
    assert [batch for batch, _, _ in south.asked] == [0, 1, 1, 2]
    assert [batch for batch, _, _ in north.asked] == [0, 1, 2], "who was there is not asked again"
    assert {party for party, _ in seen.retried} == {"south"}
    assert ("south", "answer") in seen.retried
    assert seen.gone == []
    (line,) = seen.lines
    assert "party south is away" in line
    assert "asked again for up to 10 s" in line
    assert [state for name, state in seen.states if name == "south"][-2:] == ["retrying", "ready"]


@pytest.mark.usefixtures("either_way")
async def test_a_party_that_is_started_again_in_training_is_asked_for_the_same_operation(patient):
    _, (north, south) = pair(5)
    south.meanwhile = restarting(south)
    seen = Seen()
    async with served(north, south) as addresses, opened(addresses, patient, seen) as parties:
        await parties.train(party_pb2.TrainRequest(operation_id="counts-0"), "counting")
    assert south.trainings == ["counts-0"] * 2
    assert north.trainings == ["counts-0"]
    # The word of half the work may still be on its way when the party ends, and is lost then.
    states = [state for name, state in seen.states if name == "south" and not state.endswith("%")]
    assert states[:3] == ["ready", "counting", "retrying"]
    assert states[-1] == "trained"


async def test_a_party_that_comes_late_is_waited_for(patient):
    north, south = Stub("north"), Stub("south")
    south.port = free_port()
    async with served(north) as (address,):
        parties = federation([address, PartyAddress("south", f"127.0.0.1:{south.port}")], patient)
        opening = asyncio.create_task(parties.open("r", patient))
        await asyncio.sleep(4.0)
        await start(south, south.port)
        await opening
        assert parties.present == ("north", "south")
        await parties.close()
        await end(south)


async def test_a_party_that_stays_away_ends_the_run_with_where_it_was_and_how_to_go_on(both, store):
    _, (north, south) = pair(6)
    south.at, south.meanwhile = 2, restarting(south, away=60.0)
    federation = both.plan.federation.model_copy(update={"retry_seconds": 1.0})
    hasty = replace(both, plan=both.plan.model_copy(update={"federation": federation}))
    seen = Seen()
    async with served(north, south) as addresses, opened(addresses, hasty, seen) as parties:
        with pytest.raises(PartyLost) as caught:
            await aggregate(parties, store)
    said = str(caught.value)
    assert said.startswith("party south was lost at batch 3 of 3 (nothing answers at ")
    assert "times in 1 s). The plan needs 2 of its parties and 1 are left.\n" in said
    assert said.endswith(
        "The run is stored and nothing was paid twice. When south is back (`party serve`):  coordinator resume run-1"
    )
    assert seen.gone == ["south"]
    assert seen.states[-1] == ("south", "lost")
    assert np.array_equal(stored(store), (north.matrix + south.matrix)[:4])


@pytest.mark.usefixtures("either_way")
async def test_blocks_that_the_store_keeps_are_not_asked_for_again(patient, store):
    (one, other), stubs = pair(7)
    seen = Seen()
    store.begin_sum("counts", ["south", "north"])
    kept = (one + other)[2:4].astype(np.int64)
    store.put_block("counts", 1, 2, 4, kept)
    async with served(*stubs) as addresses, opened(addresses, patient, seen) as parties:
        assert await aggregate(parties, store) == 2
        assert await aggregate(parties, store) == 2
    assert np.array_equal(stored(store), one + other)
    for stub in stubs:
        assert stub.asked == [(0, 0, 2), (2, 4, 6)]
    assert seen.sums == [("counts", done, 3) for done in (1, 2, 3, 3)]
    assert sorted(seen.came) == [("counts", name, 32) for name in ("north", "north", "south", "south")]


async def test_blocks_of_other_parties_sum_are_asked_for_again(patient, store):
    (one, other), stubs = pair(8)
    store.begin_sum("counts", ["north"])
    store.put_block("counts", 0, 0, 2, one[:2].astype(np.int64))
    async with served(*stubs) as addresses, opened(addresses, patient) as parties:
        assert await aggregate(parties, store) == 2
    assert np.array_equal(stored(store), one + other)


@pytest.mark.slow
@pytest.mark.usefixtures("either_way")
async def test_a_run_that_is_stopped_stores_the_block_in_hand_and_goes_on_after_it(patient, store):
    (one, other), (north, south) = pair(9)
    async with served(north, south) as addresses:
        async with opened(addresses, patient) as parties:

            async def stopped():
                parties.stop()
                await asyncio.sleep(0.3)

            south.meanwhile = stopped
            with pytest.raises(RunStopped):
                await aggregate(parties, store)
        assert np.array_equal(stored(store), (one + other)[:4])
        async with opened(addresses, patient) as parties:
            assert await aggregate(parties, store) == 2
    assert np.array_equal(stored(store), one + other)
    assert [batch for batch, _, _ in north.asked] == [0, 1, 2]


async def test_a_run_that_is_stopped_does_not_wait_for_a_party_that_is_away(patient, store):
    _, (north, south) = pair(10)
    south.meanwhile = restarting(south, away=60.0)
    async with served(north, south) as addresses, opened(addresses, patient) as parties:
        summing = asyncio.create_task(aggregate(parties, store))
        while len(south.asked) < 2:
            await asyncio.sleep(0.01)
        parties.stop()
        began = time.monotonic()
        with pytest.raises(RunStopped):
            await summing
        assert time.monotonic() - began < 8
    assert len(stored(store)) == 2


@pytest.mark.parametrize("verb", ["train", "gather", "open"])
async def test_what_stores_nothing_is_stopped_at_once(patient, verb):
    north, south = Stub("north"), Stub("south")

    async def sleeping():
        await asyncio.sleep(60)

    south.meanwhile = sleeping
    async with served(north, south) as addresses:
        if verb == "open":
            addresses = [addresses[0], PartyAddress("south", f"127.0.0.1:{free_port()}")]
        parties = federation(addresses, patient)
        calls = {
            "open": lambda: parties.open("r", patient),
            "train": lambda: parties.train(party_pb2.TrainRequest(operation_id="counts-0"), "counting"),
            "gather": lambda: parties.gather("votes", ROWS, COLUMNS, BLOCK),
        }
        if verb != "open":
            await parties.open("r", patient)
        call = asyncio.create_task(calls[verb]())
        await asyncio.sleep(0.3)
        began = time.monotonic()
        parties.stop()
        with pytest.raises(RunStopped):
            await call
        assert time.monotonic() - began < 8
        with pytest.raises(RunStopped):
            await parties.provide("vocabulary", b"words")
        await parties.close()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("percents", [[0], [90, 10], [255]], ids=["at 0%", "up and down", "of no percent"])
async def test_heartbeats_for_ever_hold_nobody_beyond_drop_after_and_the_run_goes_on(priced, percents):
    class Beating(Stub):
        async def Train(self, request, context):  # noqa: N802
            while True:
                for percent in percents:
                    yield party_pb2.TrainProgress(percent=percent)
                    await asyncio.sleep(0.02)

    dropping = DropTable.model_construct(drop_after=0.3, train_within=0.6)
    settings = priced.plan.federation.model_copy(update={"stragglers": dropping})
    strict = replace(priced, plan=priced.plan.model_copy(update={"federation": settings}))
    seen = Seen()
    async with served(Stub("north"), Beating("south")) as addresses:
        parties = federation(addresses, strict, seen)
        await parties.open("r", strict)
        await asyncio.wait_for(parties.train(party_pb2.TrainRequest(operation_id="counts"), "counting"), 5)
        await parties.close()
    assert parties.present == ("north",)
    assert any("south was lost: its training" in x and "goes on without it" in x for x in seen.lines), seen.lines


async def test_a_refusal_ends_the_run_without_waiting_for_parties_that_are_away(patient):
    north = Stub("north")
    north.refuses = Refusal(Reason.POLICY, "no.")
    south = Stub("south")
    south.meanwhile = None
    async with served(north, south) as addresses:
        parties = federation(addresses, patient)

        async def gone(request, context):
            await end(south)

        south.Join = gone
        began = time.monotonic()
        with pytest.raises(PartyRefused, match=r"party north refused to join: no\. Nothing was spent"):
            await parties.open("r", patient)
        assert time.monotonic() - began < 8
        await parties.close()


class Full(Stub):
    """Has no room any more at batch 1."""

    async def respond(self, request, context):
        if request.batch == 1:
            await abort(context, Refusal(Reason.STORAGE, "party south's disk is full: make room."))
        async for response in super().respond(request, context):
            yield response


@pytest.mark.usefixtures("either_way")
async def test_once_something_was_spent_a_refusal_leaves_out_who_refuses_where_enough_stay(patient, store):
    seen, matrix = Seen(), np.ones((ROWS, COLUMNS), np.int32)
    async with served(Stub("north", matrix), Full("south")) as addresses:
        parties = federation(addresses, patient, seen)
        await parties.open("run-1", patient)
        assert await aggregate(parties, store) == 1
        await parties.close()
    assert np.array_equal(stored(store), matrix)
    said = "party south was lost at batch 2 of 3 (it refused to answer batch 2 of 3): party south's disk is full"
    assert any(said in line and "the run goes on without it" in line for line in seen.lines)


async def test_a_refusal_that_can_be_mended_says_how_to_go_on(both, store):
    async with served(Stub("north"), Full("south")) as addresses, opened(addresses, both) as parties:
        with pytest.raises(PartyRefused) as caught:
            await aggregate(parties, store)
    assert str(caught.value) == (
        "party south refused to answer batch 2 of 3: party south's disk is full: make room. The run is stored. "
        "When that is mended:  coordinator resume run-1"
    )
    assert caught.value.code == "C506"


async def test_of_a_resumed_run_nobody_says_that_nothing_was_spent(both):
    north = Stub("north")
    north.refuses = Refusal(Reason.NOT_JOINED, "party north is not in run r, or it ended here.")
    async with served(north, Stub("south")) as addresses:
        parties = federation(addresses, both)
        with pytest.raises(PartyRefused) as caught:
            await parties.open("r", both, spent=True)
        await parties.close()
    assert "Nothing was spent" not in str(caught.value)
    assert str(caught.value).endswith("coordinator resume r")
    assert caught.value.code == "C508"
