"""Requests to a party: whatever comes, the node answers, or refuses with a reason and a sentence, and serves on."""

import asyncio
import contextlib
import resource
import shutil

import grpc
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from aggregation.secure_sum.advertise import Advertisement, Roster, advertise
from aggregation.secure_sum.context import Context as SumContext
from aggregation.secure_sum.keys import Secrets
from party.node.lifecycle import start
from party.node.training import Training
from party.tasks.job import Failure
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.conclave.v1.party_pb2_grpc import PartyStub
from protos.digest import artefact_digest, batch_digest, plan_hash
from protos.identity.certificates import Role
from protos.identity.credentials import bearer
from protos.identity.identity import self_made
from protos.refusal import LONGEST, Reason, Refusal, refusal_of

SECONDS = 60
UNTRAINED = "run-4"
LEARNING = {
    "step": ("run-4-steps", "dp_sgd"),
    "text_model": ("run-4-weights", "privdistil"),
    "ensemble": ("run-4-votes", "pate"),
}
"""Runs of text models, by the task that each has: their ids and recipes."""
OF_TEXT = {"step": "steps.0", "text_model": "weights", "ensemble": "votes"}
VERBS = ("Describe", "Join", "Leave", "Provide", "Train", "Answer", "SecureSum", "Attest")
TIMES = 50
"""How often a stream is sent on which the library found no status: the refusal came while a message was written."""
LIMITS = {"runs": 10**6, "calls_per_second": 1e6}
"""That hostile requests are many is not what is tried here."""


class Scene:
    """A party on a real port with one trained run under a trusted aggregator and one under a secure sum."""

    def __init__(self, made, where, model):
        self.loop = asyncio.new_event_loop()
        self.made, self.where, self.model_folder = made, where, model
        self.call("_start")

    def call(self, name, *given):
        return self.loop.run_until_complete(asyncio.wait_for(getattr(self, name)(*given), SECONDS))

    async def _start(self):
        made = self.made
        peer = self_made("south", Role.PARTY, None)
        policy = {"epsilon": 1e9, "recipes": ["dped", "dp_sgd", "pate", "privdistil"], "weights": True}
        config = made.make_config(
            self.where, peers={"south": peer.fingerprint}, policy=policy, limits=LIMITS, shard={"label": "who"}
        )
        self.node = await start(config, token=made.TOKEN, base=self.where)
        self.channel = grpc.aio.insecure_channel(self.node.address, options=[("grpc.use_local_subchannel_pool", 1)])
        self.stub = PartyStub(self.channel)
        self.peers = [party_pb2.Peer(name="south", certificate=peer.signing.public_bytes(Encoding.DER))]
        self.plain = await self.joined("run-1", made.make_terms())
        self.summed = await self.joined("run-2", made.make_terms(trust=plan_pb2.TRUST_SECURE_SUM))
        counts = made.make_terms().releases[0]
        terms = made.make_terms(epsilon=100.0, releases=[counts, made.ANSWERS])
        self.untrained = await self.joined(UNTRAINED, terms, trained=False)
        await self.untrained.provide_reference()
        self.roster = await self._roster(peer)
        await self._learning()

    async def _learning(self):
        """Runs of text models, none of which is trained, and one request for each way of training them."""
        made = self.made
        settings = {"clip": 1.0, "levels": 400, "noise_multiplier": 1.0, "sampling_probability": 0.5, "steps": 4}
        gradients = plan_pb2.GradientMechanism(**settings, parameters=made.HEAD)
        votes = plan_pb2.VotesMechanism(classes=2, levels=2, noise=12.0, shares=2, distribution="gaussian")
        releases = {
            "step": plan_pb2.Release(name="steps", charges=1, gradients=gradients, form=plan_pb2.FORM_STEPPED),
            "text_model": plan_pb2.Release(name="weights", charges=1, gradients=gradients, form=plan_pb2.FORM_WEIGHTS),
            "ensemble": plan_pb2.Release(
                name="votes", charges=2, form=plan_pb2.FORM_SUMMED, joint=plan_pb2.JointMechanism(votes=votes)
            ),
        }
        start, texts = bytes(4 * made.HEAD), b'["bad plot", "we saw it"]'
        self.learning = {}
        for task, (run_id, recipe) in LEARNING.items():
            asked = {"recipe": recipe, "epsilon": 1000.0, "labelled": made.LABELLED, "releases": [releases[task]]}
            self.learning[task] = caller = await self.joined(run_id, made.make_terms(**asked), trained=False)
            files = await caller.provide_model(self.model_folder)
            await caller.provide(start, kind="parameters")
            await caller.provide(texts, kind="texts")
        model = party_pb2.TextModel(files=files, adapt=party_pb2.ADAPT_HEAD, longest=16, rank=2, alpha=4)
        known = {"model": model, "parameters_sha256": artefact_digest(start)}
        descent = party_pb2.Descent(
            learning_rate=0.1, optimiser=1, schedule=1, momentum=0.9, expected_batch=4.0, epochs=2, batch=4
        )
        tasks = [
            {"step": party_pb2.StepTask(release="steps.0", **known)},
            {"text_model": party_pb2.TextModelTask(release="weights", descent=descent, objective=1, **known)},
            {
                "text_model": party_pb2.TextModelTask(
                    release="weights", descent=descent, objective=2, texts_sha256=artefact_digest(texts), **known
                )
            },
            {
                "ensemble": party_pb2.EnsembleTask(
                    release="votes", model=model, teachers=3, descent=descent, texts_sha256=artefact_digest(texts)
                )
            },
        ]
        self.tasks = [
            party_pb2.TrainRequest(run=self.learning[kind].run, operation_id="text", **{kind: task})
            for each in tasks
            for kind, task in each.items()
        ]

    async def _roster(self, peer):
        """What the coordinator of a secure sum shows both parties of it after they have advertised."""
        terms, run = self.summed.plan.terms, self.summed.run
        context = SumContext.of(
            run=run.run_id, plan_hash=run.plan_hash.hex(), sum="counts", attempt=0, parties=terms.parties, length=36,
            dropouts=0, colluders=0,
        )  # fmt: skip
        request = party_pb2.SecureSumRequest(run=run, release="counts", round=party_pb2.SUM_ROUND_ADVERTISE)
        (said,) = await self.ask("SecureSum", [request.SerializeToString()])
        north = Advertisement.decode(party_pb2.SecureSumResponse.FromString(said).message, "north")
        south = advertise(context, "south", Secrets.draw(), peer.signing_key.sign)
        return Roster((north, south)).encode()

    async def joined(self, run_id, terms, peers=None, *, trained=True):
        caller = self.made.Caller(self.stub, self.channel, plan_pb2.Plan(document="{}", terms=terms), self.made.TOKEN)
        caller.run.run_id = run_id
        await caller.join(peers=self.peers if peers is None else peers)
        await caller.provide()
        if trained:
            await caller.train()
        return caller

    async def ask(self, verb, messages):
        """What a request ends as: its answers, or the error; the node must be serving after it."""
        for _ in range(TIMES):
            answer = await self._asked(verb, messages)
            if not isinstance(answer, grpc.aio.AioRpcError) or answer.details() != "Internal error from Core":
                break
        return answer

    async def _asked(self, verb, messages):
        kind = "stream" if verb in ("Provide", "Answer") else "unary"
        back = "stream" if verb in ("Train", "Answer", "SecureSum") else "unary"
        method = getattr(self.channel, f"{kind}_{back}")(f"/conclave.v1.Party/{verb}")
        call = method(iter(messages) if kind == "stream" else messages[0], metadata=bearer(self.made.TOKEN))
        try:
            return [each async for each in call] if back == "stream" else [await call]
        except grpc.aio.AioRpcError as error:
            return error

    async def stop(self):
        await self.channel.close()
        await self.node.stop(0)

    def close(self):
        self.call("stop")
        self.loop.close()


@pytest.fixture(scope="module")
def scene(tests, tmp_path_factory, tiny_bert):
    made = tests("party/conftest.py")
    before = Training._work

    async def here(training, job, charge):
        if UNTRAINED in job.result:  # so that every request for it is looked at to its end
            return Failure("TrainingError", "nothing is trained in this run")
        private = await asyncio.to_thread(made.work.prepared, job)
        if isinstance(private, Failure):
            return private
        return await asyncio.to_thread(made.work.finished, private, job.paid_with(await charge()), lambda percent: None)

    Training._work = here
    model = tmp_path_factory.mktemp("model") / "bert"
    shutil.copytree(tiny_bert, model)
    (model / "1_Pooling").mkdir()
    (model / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    scene = Scene(made, tmp_path_factory.mktemp("party"), model)
    yield scene
    scene.close()
    Training._work = before


def check(hostile, scene, verb, messages):
    """One request ends as an answer, or as a refusal in a sentence: never as a failure of the node."""
    answer = scene.call("ask", verb, messages)
    if isinstance(answer, grpc.aio.AioRpcError):
        refusal = refusal_of(answer)
        assert refusal is not None, f"{answer.code()}: {answer.details()}"
        hostile.check_sentence(refusal)
        return refusal
    return answer


def unary(scene):
    """Valid requests of each verb with one message."""
    plain, summed, made = scene.plain, scene.summed, scene.made
    terms = [
        plain.plan.terms,
        summed.plan.terms,
        made.make_terms(releases=[made.ANSWERS]),
        made.make_terms(releases=[made.TRAINING, made.FREE]),
    ]
    joins = [
        party_pb2.JoinRequest(
            protocol_version=PROTOCOL_VERSION,
            run=party_pb2.RunContext(run_id="run-3", plan_hash=plan_hash(plan)),
            plan=plan,
            peers=scene.peers,
            check_only=check_only,
            needs=party_pb2.Needs(memory_bytes=1, disk_bytes=1),
        )
        for each in terms
        for check_only in (True, True, True, False)
        for plan in [plan_pb2.Plan(document="{}", terms=each)]
    ]
    counting = party_pb2.CooccurrenceTask(release="counts", vocabulary_sha256=plain.vocabulary.sha256, window=2)
    moments = party_pb2.MomentsTask(
        release="counts", vocabulary_sha256=plain.vocabulary.sha256, directions_sha256=bytes(32), window=2
    )
    teaching = party_pb2.TeachersTask(
        release="answers",
        vocabulary_sha256=plain.vocabulary.sha256,
        reference_sha256=artefact_digest(made.to_bytes(made.make_reference())),
        window=2,
        teachers=2,
        alignment=1,
        queries=[0, 1],
        classes=[0, 1, 2],
        layers=[1, 2],
        vote=1,
        expected_batch=2.0,
        learning_rate=0.1,
    )
    sums = [
        party_pb2.SecureSumRequest(run=summed.run, release="counts", round=number, rows_at_once=4, message=scene.roster)
        for number in range(1, 7)
    ]
    return {
        "Describe": [party_pb2.DescribeRequest(nonce=b"n" * 32)],
        "Join": joins,
        "Leave": [party_pb2.LeaveRequest(run=party_pb2.RunContext(run_id="run-3", plan_hash=bytes(32)))],
        "Train": [
            party_pb2.TrainRequest(run=plain.run, operation_id="counts-0", cooccurrence=counting),
            party_pb2.TrainRequest(run=plain.run, operation_id="counts-1", moments=moments),
            party_pb2.TrainRequest(run=plain.run, operation_id="counts-2", teachers=teaching),
            *scene.tasks,
        ],
        "SecureSum": sums,
        "Attest": [party_pb2.AttestRequest(run=plain.run), party_pb2.AttestRequest(run=summed.run)],
    }


def pertinent(scene, verb, request):
    """Put right what says which run, release and attempt it is about: the rest of a request is looked at after that."""
    if verb == "Train":
        request.run.CopyFrom(scene.untrained.run)
        request.operation_id = "another"
        task = request.WhichOneof("task")
        if task in OF_TEXT:
            request.run.CopyFrom(scene.learning[task].run)
            getattr(request, task).release = OF_TEXT[task]
        elif task is not None:
            getattr(request, task).release = "answers" if task == "teachers" else "counts"
    elif verb == "SecureSum":
        request.run.CopyFrom(scene.summed.run)
        request.release, request.attempt = "counts", 0


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["Describe", "Join", "Leave", "Train", "SecureSum", "Attest"])
def test_a_request_with_odd_fields_is_answered_or_refused(fuzz, hostile, scene, verb):
    valid = unary(scene)[verb]

    def make(rng):
        request = hostile.damage_message(rng, *valid)
        if rng.random() < 0.8:
            pertinent(scene, verb, request)
        if verb == "Join" and rng.random() < 0.9:
            with contextlib.suppress(ValueError):
                request.run.plan_hash = plan_hash(request.plan)
        return request.SerializeToString()

    @fuzz(hostile.made(make), mebibytes=1024, share=0.1 if verb == "Join" else 0.3)
    def _(request):
        check(hostile, scene, verb, [request])


@pytest.mark.slow
def test_whole_requests_for_text_models_get_as_far_as_training(hostile, scene):
    for request in scene.tasks:
        refusal = check(hostile, scene, "Train", [request.SerializeToString()])
        assert refusal.reason == Reason.TRAINING, refusal.sentence


@pytest.mark.parametrize("verb", VERBS)
def test_bytes_that_are_no_request_end_the_call_and_not_the_node(fuzz, hostile, scene, verb):
    valid = {
        **unary(scene),
        "Answer": [scene.plain.batch(0, 0, 2)],
        "Provide": [party_pb2.ProvideRequest(data=b"apple")],
    }
    texts = [each.SerializeToString() for each in valid[verb]]

    @fuzz(
        hostile.made(lambda rng: [hostile.damage(rng, *texts) for _ in range(rng.randint(1, 2))]),
        mebibytes=1024,
        share=0.1,
    )
    def _(messages):
        check(hostile, scene, verb, messages)


@pytest.mark.slow
def test_odd_batches_are_answered_or_refused(fuzz, hostile, scene):
    valid = [scene.plain.batch(0, 0, 2), scene.plain.batch(1, 2, 6), scene.summed.batch(0, 0, 2)]

    def make(rng):
        batches = [hostile.damage_message(rng, *valid) for _ in range(rng.randint(1, 3))]
        for each in batches:
            if rng.random() < 0.8:
                each.digest = batch_digest(each)
        return [each.SerializeToString() for each in batches]

    @fuzz(hostile.made(make), mebibytes=1024, share=0.5)
    def _(messages):
        check(hostile, scene, "Answer", messages)


@pytest.mark.slow
def test_odd_artefacts_are_kept_or_refused(fuzz, hostile, scene):
    def make(rng):
        content = rng.randbytes(rng.choice([0, 1, 5, 70]))
        header = party_pb2.ArtefactHeader(
            run=scene.plain.run, kind="vocabulary", sha256=artefact_digest(content), size=len(content)
        )
        parts = [party_pb2.ProvideRequest(header=header), party_pb2.ProvideRequest(data=content)]
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(parts))
            parts[place] = hostile.damage_message(rng, parts[place])
            if rng.random() < 0.2:
                parts.append(parts[place])
        return [each.SerializeToString() for each in parts]

    @fuzz(hostile.made(make), mebibytes=1024, share=0.5)
    def _(messages):
        check(hostile, scene, "Provide", messages)


def test_all_of_it_left_the_node_serving_and_of_an_ordinary_size(scene):
    assert scene.call("ask", "Describe", [unary(scene)["Describe"][0].SerializeToString()])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 < 2 << 30


def test_a_request_that_cannot_be_read_is_refused_without_a_trace_in_the_log(hostile, scene, caplog):
    for verb in VERBS:
        refusal = check(hostile, scene, verb, [b"\xff\xff"])
        assert refusal.reason is Reason.REQUEST
        assert "cannot be read" in refusal.sentence
    assert [each for each in caplog.records if each.levelname == "ERROR"] == []


@pytest.mark.parametrize("digest", [b"", b"x", b"x" * 31, b"x" * 33, b"x" * 300])
def test_an_artefact_under_a_digest_that_is_none_was_never_provided(hostile, scene, digest):
    request = unary(scene)["Train"][0]
    request.operation_id = "other"
    request.run.CopyFrom(scene.untrained.run)
    request.cooccurrence.vocabulary_sha256 = digest
    refusal = check(hostile, scene, "Train", [request.SerializeToString()])
    assert refusal.reason is Reason.ARTEFACT
    assert "never provided" in refusal.sentence


def test_what_is_passed_off_as_a_stranger_s_certificate_makes_nobody_a_peer(hostile, scene):
    terms = scene.made.make_terms(
        trust=plan_pb2.TRUST_SECURE_SUM, parties=["north", "south", "west"], minimum_parties=3, colluders=1
    )
    caller = scene.call("joined", "run-9", terms, [*scene.peers, party_pb2.Peer(name="west", certificate=b"none")])
    request = party_pb2.SecureSumRequest(run=caller.run, release="counts", round=party_pb2.SUM_ROUND_ADVERTISE)
    (said,) = check(hostile, scene, "SecureSum", [request.SerializeToString()])
    assert said


@pytest.mark.parametrize("certificate", [b"", b"none", b"0" * 2000])
def test_a_pinned_peer_whose_certificate_is_none_is_refused(hostile, scene, certificate):
    request = unary(scene)["Join"][2]
    request.peers[0].certificate = certificate
    refusal = check(hostile, scene, "Join", [request.SerializeToString()])
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "peers")


@pytest.mark.parametrize("name", ["", "a\nb", "NORTH", "é", "x" * 41, "../.."])
def test_a_plan_with_a_party_that_has_no_name_is_refused(hostile, scene, name):
    request = unary(scene)["Join"][0]
    request.plan.terms.parties[:] = sorted(["north", name])
    request.run.plan_hash = plan_hash(request.plan)
    refusal = check(hostile, scene, "Join", [request.SerializeToString()])
    assert refusal.reason is Reason.PLAN
    assert "no name for a party" in refusal.sentence


def test_a_refusal_reaches_its_caller_however_many_names_it_lists(hostile, scene):
    request = unary(scene)["Join"][0]
    request.plan.terms.parties[:] = [f"another-party-of-very-many-{number:04}" for number in range(1000)]
    request.run.plan_hash = plan_hash(request.plan)
    refusal = check(hostile, scene, "Join", [request.SerializeToString()])
    assert refusal.reason is Reason.PLAN
    assert refusal.sentence.endswith("...")


@pytest.mark.parametrize("sentence", ["a\nb\x1b[2J", "é" * 5000, "x" * 5000, "\U0001f600" * 3000])
def test_a_sentence_of_a_refusal_is_printable_and_short(hostile, sentence):
    refusal = Refusal(Reason.OTHER, sentence)
    hostile.check_sentence(refusal)
    assert len(refusal.sentence.encode()) <= LONGEST
    assert str(refusal) == refusal.sentence
