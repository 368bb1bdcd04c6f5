"""Scores of public texts by a domain classifier that a party trains alone and keeps: charged before, resumed, given."""

import json

import numpy as np
import pytest
import torch

from aggregation.errors import ConclaveError
from aggregation.noise.stream import NoiseStream
from learning.classification.training import predict, probabilities
from learning.models.adapting import Lora, adapt, flatten, unflatten
from learning.models.batching import encode, losses
from learning.models.encoders import classifier
from learning.models.optimisers import Schedule
from learning.private_training.dp_sgd import train_private
from learning.private_training.optimisation import Optimisation
from learning.private_training.text_units import TextUnits
from learning.text.labelled import LabelMap
from party.admission.admit import event_of
from party.ledger.accounts import read_account
from party.releasing.answers import noised
from party.releasing.mechanisms import answering, mechanism_of
from party.store.keys import insecure_key
from party.tasks.result import load_counts
from party.tasks.text_model import scoring as text_scoring
from party.tasks.text_model import training as text_training
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest
from protos.identity.credentials import bearer
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.usefixtures("trains_here")

HEAD = 2 * 32 + 2
LEVELS = 2**12
PUBLIC = ("the plot was very dull", "not a story", "and the end")
SCORED = ("a good film", "the end was dull", "", "we saw it and it was a very slow story", "fast", "a good film")
SETTINGS = Optimisation(4.0, 0.1, "sgd", Schedule("constant"), 0.9, 0.0)


@pytest.fixture
def domain(descent):
    """Makes the release that is charged: a training of which nothing leaves."""

    def makes(parameters=HEAD, **more):
        release = descent("domain", parameters, weights=True, **more)
        release.form = plan_pb2.FORM_TRAINING
        return release

    return makes


@pytest.fixture
def scores():
    """Makes the release of scores, with changes to its shape."""

    def makes(**changes):
        shape = {"after": "domain", "classes": 0, "layers": 1, "width": 1, "clip": 1.0, "levels": LEVELS} | changes
        return plan_pb2.Release(
            name="scores", charges=len(SCORED), form=plan_pb2.FORM_FREE, free=plan_pb2.FreeAnswers(**shape)
        )

    return makes


@pytest.fixture
def scorer(learner, domain, scores):
    """`await scorer(...)`: a caller of a party whose policy lets no parameters out, in a run of both releases."""

    async def joins(*releases, **more):
        settings = {"labelled": None, "epsilon": 1e3, "policy": {"weights": False, "epsilon": 1e4}} | more
        return await learner(*(releases or (domain(), scores())), **settings)

    return joins


@pytest.fixture
def charged(tmp_path):
    """What the party's ledger charges: names and events."""

    def reads():
        account = read_account(tmp_path / "north.party/ledger.sqlite", "north")
        return [(each.release, each.event) for each in account.reservations]

    return reads


async def asked(caller, texts=SCORED, start=None, **changes):
    contents = {"texts_sha256": json.dumps(PUBLIC).encode(), "scored_sha256": json.dumps(texts).encode()}
    for content in contents.values():
        await caller.provide(content, kind="texts")
    named = {name: artefact_digest(content) for name, content in contents.items()}
    settings = {"release": "scores", "objective": party_pb2.OBJECTIVE_DOMAIN, "operation": "scores-0"} | named
    start = np.zeros(HEAD) if start is None else start
    return await caller.train_alone(caller.model, start, **settings | changes)


async def given(caller):
    (block,) = await caller.answer(caller.batch(0, 0, len(SCORED), "scores"), columns=1)
    return block[:, 0]


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    return refusal.value


@pytest.mark.slow
@pytest.mark.parametrize("how", ["head", "lora"])
async def test_scores_are_what_the_trained_classifier_says_of_each_text(
    scorer, domain, scores, films, pooled, charged, monkeypatch, tmp_path, how
):
    monkeypatch.setattr(text_scoring, "_AT_ONCE", 4)
    model, tokenizer = classifier(str(pooled), LabelMap(("private", "public")), seed=7)
    adapt(model, how, seed=7, lora=Lora(2, 4) if how == "lora" else None)
    start = np.zeros_like(flatten(model).numpy()) if how == "head" else flatten(model).numpy()
    unflatten(model, torch.from_numpy(start))
    release = domain(len(start), noise_multiplier=0.2, sampling_probability=1.0, levels=4000)
    adapts = {"head": party_pb2.ADAPT_HEAD, "lora": party_pb2.ADAPT_LORA}[how]
    caller = await scorer(release, scores(), model={"adapt": adapts}, epsilon=1e9, policy={"epsilon": 1e9})
    assert charged() == []
    await asked(caller, start=start)
    assert charged() == [("domain", event_of(release))]

    rows = encode(tokenizer, [*(text for text, _ in films()), *PUBLIC], longest=16).rows
    before = probabilities(predict(model, encode(tokenizer, list(SCORED), longest=16).rows))[:, 0]
    units = TextUnits(model.config, rows, torch.tensor([0] * 8 + [1] * 3))
    stream = NoiseStream.from_key(insecure_key(7, "north", "domain"))
    train_private(model, units, losses, mechanism_of(release), SETTINGS, stream=stream)
    expected = probabilities(predict(model, encode(tokenizer, list(SCORED), longest=16).rows))[:, 0]
    found = await given(caller)
    np.testing.assert_allclose(found / LEVELS, expected, atol=0.02)
    assert np.abs(expected - before).max() > 0.1
    assert np.ptp(expected) > 0.01
    assert found[0] == found[5]
    assert ((found >= 0) & (found <= LEVELS)).all()
    assert [name for name, _ in charged()] == ["domain", "scores"]  # the second is an event that costs nothing
    assert charged()[1][1] == event_of(scores())

    folder = tmp_path / "north.party/runs/run-1"
    kept = load_counts(folder / "scores.counts.npz")
    assert (kept.dtype, kept.shape) == (np.int32, (len(SCORED), 1))
    assert {path.name for path in folder.iterdir() if path.name.startswith(("scores", "domain"))} == {
        "scores.counts.npz", "scores.operation.json", "scores.0.block",
    }  # fmt: skip


@pytest.mark.slow
async def test_a_training_that_was_lost_goes_on_under_its_key_and_one_that_ended_is_not_made_again(
    scorer, domain, scores, charged, monkeypatch
):
    caller = await scorer(domain(steps=6), scores(), insecure_reproducible_noise=False)
    kept, steps, keys = text_training.train_private, [], []

    def lost(*given, on_step, stream, **more):
        keys.append(stream.child("told").uint64(2).tolist())

        def counted(done):
            steps.append(done)
            on_step(done)
            if len(steps) == 4:
                raise ConclaveError("it was ended.")

        return kept(*given, on_step=counted, stream=stream, checkpoint_steps=3, **more)

    monkeypatch.setattr(text_training, "train_private", lost)
    assert "it was ended" in (await refused(asked(caller))).sentence
    await asked(caller)
    assert len(keys) == 2
    assert keys[0] == keys[1]
    assert steps == [1 / 6, 2 / 6, 3 / 6, 4 / 6, 4 / 6, 5 / 6, 1.0]
    found = await given(caller)
    await asked(caller)
    assert len(keys) == 2  # the same operation: nothing was trained
    assert (await given(caller)).tolist() == found.tolist()
    assert [name for name, _ in charged()] == ["domain", "scores"]
    refusal = await refused(asked(caller, operation="scores-1"))
    assert refusal.reason == Reason.CONFLICT


@pytest.mark.slow
@pytest.mark.parametrize("attempt", [0, 1])
async def test_what_was_scored_and_lost_is_not_trained_again_for_other_texts(scorer, scores, tmp_path, attempt):
    """Under a secure sum the first attempt may be lost before anything left, and a later one be the one that told."""
    caller = await scorer()
    await asked(caller)
    if attempt:
        await caller.node.verbs.ledger.mask("run-1", "scores", event_of(scores()), attempt)
    else:
        await given(caller)
    (tmp_path / "north.party/runs/run-1/scores.operation.json").unlink()
    assert (await refused(asked(caller, texts=("another",)))).reason == Reason.CONFLICT


@pytest.mark.slow
async def test_under_a_secure_sum_scores_are_summed_and_not_answered(scorer, domain, scores, charged, tmp_path):
    releases = [domain(), scores()]
    caller = await scorer(
        *releases, trust=plan_pb2.TRUST_SECURE_SUM, parties=["north", "south"], peers=("south",)
    )  # fmt: skip
    await asked(caller)
    refusal = await refused(given(caller))
    assert (refusal.reason, "scores is summed securely" in refusal.sentence) == (Reason.PLAN, True)
    assert charged() == [("domain", event_of(releases[0]))]
    clean = load_counts(tmp_path / "north.party/runs/run-1/scores.counts.npz")
    assert np.array_equal(noised(clean, answering(releases[1]), NoiseStream.insecure(1, "any")), clean)
    request = party_pb2.SecureSumRequest(run=caller.run, release="scores", round=party_pb2.SUM_ROUND_ADVERTISE)
    call = caller.stub.SecureSum(request, metadata=bearer(caller.token))
    assert [each.message async for each in call]


@pytest.mark.parametrize(
    ("texts", "changes", "says"),
    [
        (SCORED, {"objective": party_pb2.OBJECTIVE_LABELS}, "given by text_model for a domain, not by"),
        (SCORED, {"objective": party_pb2.OBJECTIVE_LANGUAGE}, "given by text_model for a domain, not by"),
        (SCORED, {"scored_sha256": b""}, "the texts were never provided"),
        (SCORED, {"scored_sha256": b"t" * 32}, "the texts were never provided"),
        (SCORED, {"texts_sha256": b"t" * 32}, "the texts were never provided"),
        (SCORED, {"release": "domain"}, "release domain of privdistil is given by no task"),
        ([*SCORED, "one more"], {}, "7 texts are asked, and release scores has rows for 6"),
        ([["a", "pair"]], {}, "pairs are not scored"),
        ([*SCORED[:2], 3], {}, "no JSON list of texts"),
        (["\ud800"], {}, "no JSON list of texts"),
        ([], {}, "are no JSON list"),
        ({"a": "b"}, {}, "are no JSON list"),
        (SCORED, {"start": np.zeros(HEAD + 1)}, "are 67 numbers, and the plan's terms bound 66"),
    ],
)
async def test_scores_that_make_no_sense_are_refused_before_anything_is_charged(scorer, charged, texts, changes, says):
    caller = await scorer()
    assert says in (await refused(asked(caller, texts, **changes))).sentence
    assert charged() == []


@pytest.mark.parametrize("shape", [{"classes": 2}, {"layers": 2}, {"width": 2}, {"classes": 2, "layers": 0}])
async def test_a_release_of_other_answers_is_no_release_of_scores(scorer, domain, scores, shape):
    refusal = await refused(scorer(domain(), scores(**shape)))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "recipes")
    assert "release scores is of free answers of teachers, and privdistil has" in refusal.sentence


async def test_a_release_of_scores_that_reach_no_further_than_half_is_none(scorer, domain, scores, charged):
    caller = await scorer(domain(), scores(clip=0.5))
    refusal = await refused(asked(caller))
    assert refusal.reason == Reason.REQUEST
    assert "release scores is of other answers; scores have no classes, 1 layer of width 1, and clip 1" in str(refusal)
    assert charged() == []


async def test_a_release_of_parameters_takes_no_texts_to_score(learner, descent, charged):
    caller = await learner(descent("scores", weights=True), labelled=None)
    refusal = await refused(asked(caller))
    assert "release scores gives a model's parameters" in refusal.sentence
    assert charged() == []
