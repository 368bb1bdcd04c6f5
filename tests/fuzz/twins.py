"""Two nodes of one party whose shards differ in one record, asked the same things: what tells them apart is a leak.

After `Join` every call must end alike at both: the same status and words, as many messages, of the same sizes. What a
message holds is compared where nothing was charged for it; of a charged release its size alone is. Keys and noise are
coupled, so that nothing differs by chance. Not compared is time: how long a call takes, and how many heartbeats it has.
"""

import asyncio
import json
import random
import secrets
import shutil
from collections import Counter

import grpc
from cryptography.hazmat.primitives.serialization import Encoding

import party.ledger.charging
import party.tasks.step.request
from aggregation.errors import Cheated
from aggregation.secure_sum.advertise import Advertisement
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.participant import Attempts, Participant
from aggregation.secure_sum.share import Parcels
from aggregation.secure_sum.summation import Summation
from party.node.lifecycle import start
from party.node.training import Training
from party.tasks import process as work
from party.tasks.job import Failure
from party.tasks.step.training import Kept
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.conclave.v1.party_pb2_grpc import PartyStub
from protos.digest import artefact_digest, plan_hash
from protos.identity.certificates import Role
from protos.identity.credentials import bearer
from protos.identity.identity import self_made

SECONDS = 600
LIMITS = {"runs": 10**6, "calls_per_second": 1e6}
STREAMS_IN = ("Provide", "Answer")
STREAMS_OUT = ("Train", "Answer", "SecureSum")
AT_ONCE = 4
"""Rows that are noised at a time."""


class Coupled:
    """Keys that the twins draw alike: the same in the same call to each."""

    def __init__(self):
        self._rng = random.Random(0)
        self._real = secrets

    def begin(self, number):
        self._rng.seed(number)

    def token_bytes(self, size):
        return self._rng.randbytes(size)

    def __getattr__(self, name):
        return getattr(self._real, name)


class Process:
    """What is patched of this process, for as long as twins live: keys are coupled, training is in threads of it.

    kept: what steps keep from one to the next, by the party's folder. asked: how many requests were put to a pair, by
    verb.
    """

    def __init__(self, patch):
        self.coupled = Coupled()
        self.kept = {}
        self.asked = Counter()
        patch.setattr(party.ledger.charging, "secrets", self.coupled)
        patch.setattr(party.tasks.step.request, "secrets", self.coupled)

        async def trains(training, job, charge):
            kept = self.kept.setdefault(job.cache, Kept()) if job.stays else None
            private = await asyncio.to_thread(_whole, work.prepared, job, kept)
            if isinstance(private, Failure):
                return private
            return await asyncio.to_thread(_whole, work.finished, private, job.paid_with(await charge()), _nothing)

        patch.setattr(Training, "_work", trains)


class Twins:
    """Both nodes, on real ports, with the same identity, ledger and secrets."""

    def __init__(self, made, where, policy, process, shard=()):
        """policy, shard: of the party's file; the policy says what the account is for. process: what all twins have
        together.
        """
        self.loop = asyncio.new_event_loop()
        self.made = made
        self.folders = [where / name for name in ("one", "other")]
        self.peer = self_made("south", Role.PARTY, None)
        self._policy = policy
        self._shard = {"source": "notes.jsonl", "label": "stars", "user": "who"} | dict(shard)
        self._calls = 0
        self.process = process
        self.sums = 0
        self.wait(self._start())

    def wait(self, coroutine):
        return self.loop.run_until_complete(asyncio.wait_for(coroutine, SECONDS))

    async def _start(self):
        made, (one, other) = self.made, self.folders
        settings = {"peers": {"south": self.peer.fingerprint}, "policy": self._policy, "limits": LIMITS}
        settings["shard"] = self._shard
        one.mkdir(parents=True)
        (one / "notes.jsonl").write_text("{}\n")
        config = made.make_config(one, **settings)
        await (await start(config, token=made.TOKEN, base=one)).stop(0)  # what it drew, both have
        shutil.copytree(one, other)
        self.nodes = [await start(config, token=made.TOKEN, base=folder) for folder in self.folders]
        options = [("grpc.use_local_subchannel_pool", 1)]
        self.channels = [grpc.aio.insecure_channel(node.address, options=options) for node in self.nodes]
        self.stubs = [PartyStub(channel) for channel in self.channels]

    def close(self):
        async def end():
            for channel, node in zip(self.channels, self.nodes, strict=True):
                await channel.close()
                await node.stop(0)

        self.wait(end())
        self.loop.close()

    def shards(self, one, other):
        """Put these lines (bytes) into the two shards."""
        for folder, lines in zip(self.folders, (one, other), strict=True):
            (folder / "notes.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
        self.process.kept.clear()

    def join(self, run, terms, peers=None):
        """Join both; the run's context, or None where they refused."""
        plan = plan_pb2.Plan(document="{}", terms=terms)
        context = party_pb2.RunContext(run_id=run, plan_hash=plan_hash(plan))
        if peers is None:
            peers = [party_pb2.Peer(name="south", certificate=self.peer.signing.public_bytes(Encoding.DER))]
        request = party_pb2.JoinRequest(protocol_version=PROTOCOL_VERSION, run=context, plan=plan, peers=peers)
        (status, *_), _ = self.ask("Join", [request])
        return context if status == "OK" else None

    def provide(self, context, kind, content):
        header = party_pb2.ArtefactHeader(run=context, kind=kind, sha256=artefact_digest(content), size=len(content))
        parts = [party_pb2.ProvideRequest(header=header), party_pb2.ProvideRequest(data=content)]
        self.ask("Provide", parts)
        return artefact_digest(content)

    def ask(self, verb, messages):
        """What a call ends as at both, which must be the same: status, words, and its messages as far as they are
        compared; and the messages themselves, of both.
        """
        self._calls += 1
        self.process.asked[verb] += 1
        sent = [each if isinstance(each, bytes) else each.SerializeToString() for each in messages]
        ends, heard = [], []
        for channel in self.channels:
            self.process.coupled.begin(self._calls)
            end, back = self.wait(self._asked(channel, verb, sent))
            ends.append(end)
            heard.append(back)
        assert ends[0] == ends[1], f"{verb} tells the shards apart: {ends[0]} and {ends[1]}"
        assert ends[0][0] != "INTERNAL" or "Internal error from Core" in ends[0][1], ends[0]
        return ends[0], heard

    async def _asked(self, channel, verb, sent):
        kind = "stream" if verb in STREAMS_IN else "unary"
        back = "stream" if verb in STREAMS_OUT else "unary"
        method = getattr(channel, f"{kind}_{back}")(f"/conclave.v1.Party/{verb}")
        call = method(iter(sent) if kind == "stream" else sent[0], metadata=bearer(self.made.TOKEN))
        heard, status, words = [], "OK", ""
        try:
            if back == "stream":
                async for each in call:
                    heard.append(each)
            else:
                heard.append(await call)
        except grpc.aio.AioRpcError as error:
            trailing = sorted((key, value) for key, value in error.trailing_metadata() or () if "conclave" in key)
            status, words = error.code().name, f"{error.details()} {trailing}"
        return (status, words, COMPARED.get(verb, _sizes)(heard)), heard

    def sum_up(self, context, terms, release, rows, columns):
        """A whole secure sum of each twin with a peer that is honest: every message of every round of the same size."""
        stages = [self._summed(stub, context, terms, release, rows, columns) for stub in self.stubs]
        found = [self.wait(stage) for stage in stages]
        assert found[0] == found[1], f"a secure sum tells the shards apart: {found[0]} and {found[1]}"
        return found[0]

    async def _summed(self, stub, run, terms, release, rows, columns):
        context = Context.of(
            run=run.run_id, plan_hash=run.plan_hash.hex(), sum=release, attempt=0, parties=terms.parties,
            length=rows * columns, dropouts=0, colluders=0,
        )  # fmt: skip
        own = self.nodes[0].verbs.identity
        keys = {"north": own.signing_key.public_key(), "south": self.peer.signing_key.public_key()}

        def verify(name, statement, signature):
            keys[name].verify(signature, statement)
            return True

        south = Participant(
            context, "south", attempts=Attempts(), sign=self.peer.signing_key.sign, verify=verify, remember=_nothing
        )
        total, sizes = Summation(context, verify, None), []

        async def north(number, message=b"", **more):
            request = party_pb2.SecureSumRequest(run=run, release=release, round=number, message=message, **more)
            call = stub.SecureSum(request, metadata=bearer(self.made.TOKEN))
            said = [each.message async for each in call]
            sizes.append([len(each) for each in said])
            return said

        rounds = party_pb2
        total.advertised(south.advertise())
        try:
            total.advertised(Advertisement.decode((await north(rounds.SUM_ROUND_ADVERTISE))[0], "north"))
            roster = total.roster()
            total.dealt(south.share(roster))
            total.dealt(Parcels.decode((await north(rounds.SUM_ROUND_SHARE, roster.encode()))[0], "north"))
            inboxes = total.inboxes()
            south.receive(inboxes["south"])
            await north(rounds.SUM_ROUND_MASK, inboxes["north"].encode(), rows_at_once=AT_ONCE)
            self.sums += 1
            await north(rounds.SUM_ROUND_DISCLAIM)
            await north(rounds.SUM_ROUND_REFUND, bytes(7))
        except grpc.aio.AioRpcError as error:
            return [*sizes, error.code().name, error.details()]
        except Cheated:  # the sum is of another shape than was asked for here
            return [*sizes, "another shape"]
        return sizes


def _whole(does, *given):
    """What a process of its own would make of work that ends it: no result, and why."""
    try:
        return does(*given)
    except Exception as error:  # noqa: BLE001 - a process that ends with a trace leaves no result
        return Failure("", f"training ended without a result: {error!r}", private=does is work.finished)
    except BaseException as error:  # what a library of Rust calls a panic
        if type(error).__name__ != "PanicException":
            raise
        return Failure("", "training ended without a result", private=does is work.finished)


def _nothing(*given):
    """Neither progress nor what is revealed is kept here."""


def _sizes(heard):
    return [len(each) for each in heard]


def _described(heard):
    return [(each.name, each.trains[:], dict(each.facts)) for each in map(party_pb2.DescribeResponse.FromString, heard)]


def _trained(heard):
    """How it ended: all before the last message are heartbeats."""
    return [(each.percent, each.finished) for each in map(party_pb2.TrainProgress.FromString, heard[-1:])]


def _answered(heard):
    """The sizes of a released block: a checksum of what is released, in its header, has the size that it has."""
    found = []
    for each in map(party_pb2.AnswerResponse.FromString, heard):
        each.chunk.header.ClearField("crc32")
        found.append((each.ByteSize(), len(each.chunk.data)))
    return found


def _attested(heard):
    found = []
    for each in map(party_pb2.AttestResponse.FromString, heard):
        said = json.loads(each.statement.payload)
        found.append({key: value for key, value in said.items() if key not in TIMES})
    return found


TIMES = ("at", "time", "clock", "signed_at")
COMPARED = {"Describe": _described, "Train": _trained, "Attest": _attested, "Answer": _answered}
