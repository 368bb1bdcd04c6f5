"""Answers of a party: whatever it sends, the coordinator has an answer, a refusal or news of a loss, and no crash."""

import asyncio
import logging
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from dp_accounting import GaussianDpEvent
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from aggregation.accounting.events import to_json
from coordinator.errors import PartyRefused
from coordinator.federation.admission import proven
from coordinator.federation.attestation import attested
from coordinator.identity.identity import Own
from coordinator.transport.grpc_link import GrpcLink
from coordinator.transport.link import Answered, Batch, Lost, Refused
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.framing import framed
from protos.identity.certificates import Role
from protos.identity.identity import self_made
from protos.identity.signing import ATTESTATION, DESCRIBED, Signed, sign
from protos.refusal import REASON_KEY, RULE_KEY

SECONDS = 60
NONCE = b"n" * 32
HASH = bytes(range(32))
BLOCK = np.arange(8, dtype=np.int32).reshape(2, 4)
NORTH = self_made("north", Role.PARTY, None)
OWN = Own(self_made("coordinator.here", Role.COORDINATOR, None), NORTH.authority, False, None)
DESCRIBES = {"party": "north", "nonce": NONCE.hex()}
ATTESTS = {
    "party": "north",
    "run": "run-1",
    "plan_hash": HASH.hex(),
    "releases": [{"name": "counts", "attempt": 0, "event": {"kind": "gaussian", "noise_multiplier": 1.0}}],
    "signed_at": 1.0,
}
STATUSES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]


class Hostile:
    """A party that answers every verb with the bytes that it was given, and may end with any status."""

    def __init__(self):
        self.answers, self.status, self.details, self.metadata = [], None, "", ()

    async def stream(self, requests, context):
        first = asyncio.ensure_future(anext(aiter(requests), None)) if hasattr(requests, "__aiter__") else None
        if first is not None:
            await first
        for each in self.answers:
            yield each
        if self.status is not None:
            await context.abort(self.status, self.details, self.metadata)

    async def unary(self, requests, context):
        if self.status is not None:
            await context.abort(self.status, self.details, self.metadata)
        return self.answers[0]


class Scene:
    """A coordinator's link to the hostile party."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.party = Hostile()
        self.call(self._start)

    def call(self, act, *given):
        return self.loop.run_until_complete(asyncio.wait_for(act(*given), SECONDS))

    async def _start(self):
        party = self.party
        unary, both = grpc.unary_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        handlers = {verb: unary(party.unary) for verb in ("Describe", "Join", "Leave", "Attest")}
        handlers |= {"Provide": grpc.stream_unary_rpc_method_handler(party.unary), "Answer": both(party.stream)}
        handlers |= {verb: grpc.unary_stream_rpc_method_handler(party.stream) for verb in ("Train", "SecureSum")}
        self.server = grpc.aio.server()
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("conclave.v1.Party", handlers),))
        serving = health.aio.HealthServicer()
        await serving.set("", health_pb2.HealthCheckResponse.SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(serving, self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        self.link = GrpcLink("north", f"127.0.0.1:{port}", deadline=SECONDS)
        self.link.bind("run-1", HASH)

    async def outcomes(self, verb):
        """What a call comes back with, one outcome or several."""
        link = self.link
        match verb:
            case "describe":
                return [await link.describe(NONCE)]
            case "join":
                return [await link.join("run-1", plan_pb2.Plan(), HASH)]
            case "leave":
                return [await link.leave()]
            case "provide":
                return [await link.provide("vocabulary", b"apple")]
            case "attest":
                return [await link.attest()]
            case "train":
                return [await link.train(party_pb2.TrainRequest(), lambda percent: None)]
            case "answer":
                return [each async for each in link.answer("counts", [Batch(0, 0, 2), Batch(1, 2, 4)], 4)]
        return [each async for each in link.sum_round(party_pb2.SecureSumRequest(release="counts", round=1))]

    async def stop(self):
        await self.link.close()
        await self.server.stop(0)

    def close(self):
        self.call(self.stop)
        self.loop.close()


@pytest.fixture(scope="module")
def scene():
    scene = Scene()
    yield scene
    scene.close()


def valid():
    """What a party answers that is as it should be."""
    described = sign(NORTH, DESCRIBED, DESCRIBES).message()
    attests = sign(NORTH, ATTESTATION, ATTESTS).message()
    return {
        "describe": [party_pb2.DescribeResponse(name="north", protocol_version=PROTOCOL_VERSION, identity=described)],
        "join": [party_pb2.JoinResponse(party="north", protocol_version=PROTOCOL_VERSION)],
        "leave": [party_pb2.LeaveResponse()],
        "provide": [party_pb2.ProvideResponse(known=True)],
        "attest": [party_pb2.AttestResponse(statement=attests)],
        "train": [party_pb2.TrainProgress(percent=3), party_pb2.TrainProgress(percent=100, finished=True)],
        "answer": [party_pb2.AnswerResponse.FromString(each) for number in (0, 1) for each in framed(number, BLOCK)],
        "sum": [party_pb2.SecureSumResponse(message=b"a message")],
    }


@pytest.mark.parametrize("verb", valid())
def test_a_call_comes_back_with_an_outcome_whatever_the_party_answers(fuzz, hostile, scene, verb):
    messages = valid()[verb]
    texts = [each.SerializeToString() for each in messages] + [b""]

    def make(rng):
        answers = list(texts[:-1])
        for _ in range(rng.randint(1, 2)):
            place = rng.randrange(len(answers))
            odd = hostile.damage_message(rng, messages[place]) if messages[place].DESCRIPTOR.fields else messages[place]
            answers[place] = rng.choice([hostile.damage(rng, *texts), odd.SerializeToString()])
        return answers, rng.randrange(2**20) if rng.random() < 0.3 else None

    @fuzz(hostile.made(make), mebibytes=1024, share=0.25)
    def _(given):
        scene.party.answers, fails = given
        scene.party.status = None if fails is None else STATUSES[fails % len(STATUSES)]
        scene.party.details = "" if fails is None else hostile.NAMES[fails % len(hostile.NAMES)][:3000].strip("\udc80")
        reason = ("", "policy", "draining", "never heard of")[(fails or 0) % 4]
        scene.party.metadata = ((REASON_KEY, reason), (RULE_KEY, "x" * ((fails or 0) % 300)))
        for outcome in scene.call(scene.outcomes, verb):
            assert isinstance(outcome, Answered | Refused | Lost)
            if isinstance(outcome, Refused):
                hostile.check_sentence(outcome.refusal)
            elif isinstance(outcome, Lost):
                hostile.check_sentence(outcome.why, most=3000)
            elif verb == "answer":
                assert outcome.value.shape == BLOCK.shape


def test_bytes_that_are_no_answer_lose_the_party_for_good_and_leave_no_trace_in_the_log(scene, caplog):
    scene.party.status, scene.party.answers = None, [b"\xff\xff"]
    with caplog.at_level(logging.ERROR):
        for verb in valid():
            (outcome,) = scene.call(scene.outcomes, verb)
            if verb != "leave":  # whose answer nobody needs
                assert isinstance(outcome, Lost)
                assert not outcome.passing
                assert "it sent bytes that are no answer" in outcome.why
    assert caplog.records == []


def resigned(hostile, kind, fields):
    """Statements that are damaged, or that the party itself signed after damaging them; and their certificates."""
    signed = sign(NORTH, kind, fields)
    parts = (signed.payload, signed.signature, signed.certificate)

    def make(rng):
        if rng.random() < 0.4:
            return [hostile.damage(rng, each) if rng.random() < 0.5 else each for each in parts]
        odd = hostile.damage_json(rng, {"kind": kind, **fields})
        payload = hostile.as_text(odd) if rng.random() < 0.7 else hostile.damage(rng, signed.payload)
        return [payload, NORTH.signing_key.sign(payload), signed.certificate]

    return hostile.made(make)


def test_a_party_s_proof_of_who_it_is_holds_or_is_refused_in_a_sentence(fuzz, hostile):
    @fuzz(resigned(hostile, DESCRIBED, DESCRIBES), share=0.5)
    def _(parts):
        payload, signature, certificate = parts
        statement = party_pb2.SignedStatement(payload=payload, signature=signature, certificate=certificate)
        try:
            der = proven("north", party_pb2.DescribeResponse(identity=statement), NONCE, OWN)
        except PartyRefused as error:
            hostile.check_sentence(error)
        else:
            assert der == NORTH.signing.public_bytes(Encoding.DER)


def test_what_a_party_attests_is_its_cost_or_is_refused_in_a_sentence(fuzz, hostile):
    release = SimpleNamespace(name="counts", event=GaussianDpEvent(1.0))
    assert to_json(release.event) == ATTESTS["releases"][0]["event"]

    @fuzz(resigned(hostile, ATTESTATION, ATTESTS), share=0.5)
    def _(parts):
        try:
            said = attested("north", Signed(*parts), "run-1", HASH.hex(), [release], OWN)
        except PartyRefused as error:
            hostile.check_sentence(error)
        else:
            assert said["run"] == "run-1"
