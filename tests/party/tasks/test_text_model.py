"""A text model that one party trains alone: charged before it begins, resumed under its own noise, given once."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from aggregation.errors import ConclaveError
from aggregation.noise.stream import NoiseStream
from learning.models.adapting import Lora, adapt, flatten, unflatten
from learning.models.batching import encode, encode_documents, losses
from learning.models.encoders import classifier, language_model
from learning.models.optimisers import Schedule
from learning.private_training.dp_sgd import train_private
from learning.private_training.optimisation import Optimisation
from learning.private_training.text_units import TextUnits
from learning.text.labelled import LabelMap
from party.admission.admit import admit, event_of
from party.ledger.accounts import read_account
from party.provided import weights as provided_weights
from party.releasing.mechanisms import mechanism_of
from party.store.keys import insecure_key
from party.tasks.text_model import training
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest
from protos.identity.credentials import bearer
from protos.refusal import Reason, Refusal
from protos.steps import step_of

pytestmark = pytest.mark.usefixtures("trains_here")

HEAD = 2 * 32 + 2
PUBLIC = ("the plot was very dull", "not a story", "and the end")
SETTINGS = Optimisation(4.0, 0.1, "sgd", Schedule("constant"), 0.9, 0.0)


@pytest.fixture
def weights(descent):
    """Makes a release of weights that one party trains alone."""
    return lambda parameters=HEAD, **more: descent("weights", parameters, weights=True, **more)


@pytest.fixture
def charged(tmp_path):
    """What the party's ledger charges: names and events."""

    def reads():
        account = read_account(tmp_path / "north.party/ledger.sqlite", "north")
        return [(each.release, each.event) for each in account.reservations]

    return reads


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    return refusal.value


async def parameters_of(caller, width, batch=0):
    (block,) = await caller.answer(caller.batch(batch, 0, 1, "weights"), columns=width)
    return block[0].view(np.float32)


def trained(model, units, mechanism):
    """What training gives, by the learning room alone."""
    stream = NoiseStream.from_key(insecure_key(7, "north", "weights"))
    train_private(model, units, losses, mechanism, SETTINGS, stream=stream)
    return flatten(model).numpy()


@pytest.mark.slow
async def test_the_weights_are_those_of_private_training_and_the_same_ever_after(
    learner, weights, films, pooled, charged
):
    release = weights()
    caller = await learner(release)
    model, tokenizer = classifier(str(pooled), LabelMap(("no", "yes")), seed=7)
    adapt(model, "head", seed=7)
    start = flatten(model).numpy() + 0.1
    unflatten(model, torch.from_numpy(start))
    rows = films()
    texts = encode(tokenizer, [text for text, _ in rows], longest=16).rows
    labels = torch.tensor([["no", "yes"].index(label) for _, label in rows])
    expected = trained(model, TextUnits(model.config, texts, labels), mechanism_of(release))

    assert charged() == []
    await caller.train_alone(caller.model, start)
    assert charged() == [("weights", event_of(release))]
    found = await parameters_of(caller, HEAD)
    assert np.abs(expected - start).max() > 0.1
    np.testing.assert_allclose(found, expected, atol=0.02)  # of rounded sums on a grid of 400 levels
    await caller.train_alone(caller.model, start)
    again = await parameters_of(caller, HEAD)
    assert again.tobytes() == found.tobytes()
    assert charged() == [("weights", event_of(release))]
    refusal = await refused(caller.train_alone(caller.model, start, operation="weights-1"))
    assert refusal.reason == Reason.CONFLICT


@pytest.mark.slow
async def test_a_training_that_was_lost_goes_on_under_its_own_noise_and_is_charged_once(
    learner, weights, charged, monkeypatch, tmp_path
):
    start = np.zeros(HEAD, np.float32)
    caller = await learner(weights(steps=6), insecure_reproducible_noise=False)
    kept, steps = training.train_private, []

    def lost(*given, on_step, **more):
        def counted(done):
            steps.append(done)
            on_step(done)
            if len(steps) == 4:
                raise ConclaveError("it was ended.")

        return kept(*given, on_step=counted, checkpoint_steps=3, **more)

    monkeypatch.setattr(training, "train_private", lost)
    keys = []
    original = caller.node.verbs.trainings._charge

    async def charge(*given):
        keys.append(await original(*given))
        return keys[-1]

    monkeypatch.setattr(caller.node.verbs.trainings, "_charge", charge)
    assert "it was ended" in (await refused(caller.train_alone(caller.model, start))).sentence
    await caller.train_alone(caller.model, start)
    assert len(set(keys)) == 1
    assert steps == [1 / 6, 2 / 6, 3 / 6, 4 / 6, 4 / 6, 5 / 6, 1.0]
    assert len(charged()) == 1
    assert np.isfinite(await parameters_of(caller, HEAD)).all()
    assert not list((tmp_path / "north.party/runs/run-1").glob("*.checkpoint"))


@pytest.mark.slow
async def test_what_was_answered_from_and_lost_is_not_trained_again(learner, weights, tmp_path):
    caller = await learner(weights())
    await caller.train_alone(caller.model, np.zeros(HEAD))
    (tmp_path / "north.party/runs/run-1/weights.operation.json").unlink()
    await caller.train_alone(caller.model, np.zeros(HEAD))  # nothing of it had left
    await parameters_of(caller, HEAD)
    (tmp_path / "north.party/runs/run-1/weights.operation.json").unlink()
    refusal = await refused(caller.train_alone(caller.model, np.zeros(HEAD)))
    assert refusal.reason == Reason.CONFLICT


@pytest.mark.slow
@pytest.mark.parametrize("unit", [plan_pb2.UNIT_RECORD, plan_pb2.UNIT_USER])
async def test_a_domain_classifier_learns_this_partys_text_against_public_text(learner, weights, films, pooled, unit):
    release = weights(sampling_probability=1.0)
    caller = await learner(release, labelled=None, unit=unit, epsilon=1e9, policy={"epsilon": 1e9})
    texts = json.dumps(PUBLIC).encode()
    await caller.provide(texts, kind="texts")
    await caller.train_alone(
        caller.model, np.zeros(HEAD), objective=party_pb2.OBJECTIVE_DOMAIN, texts_sha256=artefact_digest(texts)
    )
    model, tokenizer = classifier(str(pooled), LabelMap(("private", "public")), seed=7)
    adapt(model, "head", seed=7)
    unflatten(model, torch.zeros(HEAD))
    rows = encode(tokenizer, [*(text for text, _ in films()), *PUBLIC], longest=16).rows
    members = [[0, 3, 6], [1, 4, 7], [2, 5], [8], [9], [10]] if unit == plan_pb2.UNIT_USER else None
    units = TextUnits(model.config, rows, torch.tensor([0] * 8 + [1] * 3), members=members)
    expected = trained(model, units, mechanism_of(release))
    np.testing.assert_allclose(await parameters_of(caller, HEAD), expected, atol=0.02)
    assert np.abs(expected).max() > 0.2


@pytest.mark.slow
async def test_of_pairs_it_learns_both_texts_of_a_record_as_one_unit(learner, weights, pooled, charged, tmp_path):
    pairs = [("the film was good", "a great film"), ("awful slow film", "bad plot"), ("a dull story", "")]
    rows = [{"text": one, "reply": two, "stars": "yes", "who": "p"} for one, two in pairs]
    (tmp_path / "notes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labelled = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_PAIR, labels=["no", "yes"])
    release = weights(sampling_probability=1.0)
    caller = await learner(
        release, labelled=labelled, shard={"second": "reply"}, epsilon=1e9, policy={"epsilon": 1e9}
    )  # fmt: skip
    texts = json.dumps(PUBLIC).encode()
    await caller.provide(texts, kind="texts")
    await caller.train_alone(
        caller.model, np.zeros(HEAD), objective=party_pb2.OBJECTIVE_DOMAIN, texts_sha256=artefact_digest(texts)
    )
    model, tokenizer = classifier(str(pooled), LabelMap(("private", "public")), seed=7)
    adapt(model, "head", seed=7)
    unflatten(model, torch.zeros(HEAD))
    own = [text for pair in pairs for text in pair if text]
    members = [[0, 1], [2, 3], [4], [5], [6], [7]]
    tokens = encode(tokenizer, [*own, *PUBLIC], longest=16).rows
    units = TextUnits(model.config, tokens, torch.tensor([0] * 5 + [1] * 3), members=members)
    expected = trained(model, units, mechanism_of(release))
    np.testing.assert_allclose(await parameters_of(caller, HEAD), expected, atol=0.02)
    assert np.abs(expected).max() > 0.2
    assert charged() == [("weights", event_of(release))]


@pytest.fixture
def language(installed):
    """The name of a recipe whose models learn a language; parties can, and no recipe of a coordinator's asks it yet."""
    return installed("language", "Recipe(({Kind.WEIGHTS: part(LANGUAGE)},))")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["lora", "lora-all", "full"])
async def test_a_language_model_is_trained_without_labels(learner, language, weights, films, tiny_gpt2, how):
    model, tokenizer = language_model(str(tiny_gpt2))
    adapt(model, how, seed=7, lora=Lora(2, 4))
    start = flatten(model).numpy()
    release = weights(len(start), sampling_probability=1.0, noise_multiplier=0.5, steps=2, levels=4000)
    caller = await learner(
        release, folder=tiny_gpt2, labelled=None, epsilon=1e9, shard={"label": None},
        recipe=language, policy={"epsilon": 1e9, "recipes": [language]},
        model={"adapt": party_pb2.Adapt.Value(f"ADAPT_{how.upper().replace('-', '_')}")},
    )  # fmt: skip
    await caller.train_alone(caller.model, start, objective=party_pb2.OBJECTIVE_LANGUAGE)
    texts = encode_documents(tokenizer, [text for text, _ in films()], longest=16).rows
    expected = trained(model, TextUnits(model.config, texts, None), mechanism_of(release))
    found = await parameters_of(caller, len(start))
    assert np.abs(expected - start).max() > 1e-3
    np.testing.assert_allclose(found, expected, atol=np.abs(expected - start).max() / 20)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"objective": party_pb2.OBJECTIVE_UNSPECIFIED},
            "text_model for labels, not by text_model.",
        ),
        ({"objective": party_pb2.OBJECTIVE_DOMAIN}, "the texts were never provided"),
        ({"descent": party_pb2.Descent(learning_rate=0.1)}, "an optimiser is not said"),
        ({"descent": party_pb2.Descent(learning_rate=float("nan"))}, "learning_rate = nan makes no sense"),
        ({"release": "steps.0"}, "steps.0 of privdistil is given by step, not by text_model for labels"),
    ],
)
async def test_a_training_that_makes_no_sense_is_refused_before_it_is_charged(
    learner, weights, descent, charged, change, says
):
    other = descent() if "release" in change else descent("more", weights=True)
    caller = await learner(weights(), other)
    refusal = await refused(caller.train_alone(caller.model, np.zeros(HEAD), **change))
    assert says in refusal.sentence
    assert charged() == []


@pytest.mark.parametrize(
    ("causal", "adapts", "says"),
    [
        (True, party_pb2.ADAPT_HEAD, "A gpt2 language model has no head apart from its embeddings"),
        (False, party_pb2.ADAPT_FULL, "The checkpoint that was provided lacks"),
    ],
)
async def test_a_model_without_what_is_to_be_trained_is_named(
    learner, language, weights, tiny_gpt2, causal, adapts, says
):
    caller = await learner(
        weights(), folder=tiny_gpt2 if causal else None, model={"adapt": adapts}, labelled=None,
        recipe=language, policy={"recipes": [language]},
    )  # fmt: skip
    refusal = await refused(caller.train_alone(caller.model, np.zeros(HEAD), objective=party_pb2.OBJECTIVE_LANGUAGE))
    assert refusal.reason == Reason.TRAINING
    assert says in refusal.sentence


@pytest.mark.slow
@pytest.mark.parametrize("trust", [plan_pb2.TRUST_TRUSTED_AGGREGATOR, plan_pb2.TRUST_SECURE_SUM])
def test_weights_leave_where_the_party_says_so_whoever_sums(terms, config, weights, descent, trust):
    parties = {"parties": ["north", "south", "west"], "minimum_parties": 3, "trust": trust}
    plan = {"recipe": "privdistil", "epsilon": 100.0, **parties}
    own = {"recipes": ["privdistil"], "weights": True, "epsilon": 200.0}
    peers = dict.fromkeys(("south", "west"), "SHA256:" + "0" * 64)
    both = [weights(), descent(shares=3)]
    assert admit(terms(releases=both, **plan), config(policy=own, peers=peers)) is None
    with pytest.raises(Refusal) as refusal:
        admit(terms(releases=both, **plan), config(policy=own | {"weights": False}, peers=peers))
    assert (refusal.value.reason, refusal.value.rule) == (Reason.POLICY, "weights")
    with pytest.raises(Refusal, match="counts on 3 noise shares, and each party trains alone") as refusal:
        admit(terms(releases=[weights(shares=3)], **plan), config(policy=own, peers=peers))
    assert refusal.value.reason == Reason.PLAN


@pytest.mark.slow
async def test_under_a_secure_sum_a_model_is_answered_and_steps_are_not(learner, weights, descent, charged):
    """One plan of both, as PrivDistil has: what has all its noise leaves, what is noised in shares does not."""
    releases = [weights(), descent(shares=2)]
    caller = await learner(
        *releases, trust=plan_pb2.TRUST_SECURE_SUM, parties=["north", "south"], peers=("south",), epsilon=1e3,
        policy={"epsilon": 1e4},
    )  # fmt: skip
    start = np.zeros(HEAD, np.float32)
    texts = json.dumps(PUBLIC).encode()
    await caller.provide(texts, kind="texts")
    domain = {"objective": party_pb2.OBJECTIVE_DOMAIN, "texts_sha256": artefact_digest(texts)}
    await caller.train_alone(caller.model, start, **domain)
    await caller.step(0, caller.model, start)
    found = await parameters_of(caller, HEAD)
    assert np.isfinite(found).all()
    assert np.abs(found).max() > 0.01
    once = [("weights", event_of(releases[0])), ("steps.0", event_of(step_of(releases[1], "steps.0")))]
    assert charged() == once
    refusal = await refused(caller.answer(caller.batch(0, 0, 1, "steps.0"), columns=HEAD))
    assert (refusal.reason, "steps.0 is summed securely" in refusal.sentence) == (Reason.PLAN, True)
    for kind in (party_pb2.SUM_ROUND_ADVERTISE, party_pb2.SUM_ROUND_MASK, party_pb2.SUM_ROUND_DISCLAIM):
        refusal = await refused(sum_round(caller, "weights", kind))
        assert (refusal.reason, "one party's model, or what it says, which is in no sum" in refusal.sentence) == (
            Reason.PLAN,
            True,
        )
    assert await sum_round(caller, "steps.0", party_pb2.SUM_ROUND_ADVERTISE)
    assert charged() == once


async def sum_round(caller, release, kind):
    request = party_pb2.SecureSumRequest(run=caller.run, release=release, round=kind, rows_at_once=1)
    return await caller.ask(collected(caller.stub.SecureSum(request, metadata=bearer(caller.token))))


async def collected(call):
    return [each async for each in call]


@pytest.mark.slow
async def test_a_word_that_overflows_in_the_model_fails_no_training_and_counts_as_an_empty_unit(
    learner, weights, pooled, films, tmp_path, caplog, monkeypatch
):
    monkeypatch.setitem(provided_weights.KINDS, "F32", replace(provided_weights.KINDS["F32"], most=255))
    folder = tmp_path / "attack"
    shutil.copytree(pooled, folder)
    tensors = load_file(folder / "model.safetensors")
    _, tokenizer = classifier(str(folder), LabelMap(("no", "yes")), seed=7)
    tensors["embeddings.word_embeddings.weight"][tokenizer.convert_tokens_to_ids("awful")] = 3e38
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    films([("good film", "yes"), ("bad film", "no"), ("awful film", "yes")])
    caller = await learner(weights(sampling_probability=1.0), folder=folder)
    said = await caller.train_alone(caller.model, np.zeros(HEAD, np.float32))
    assert said[-1].percent == 100
    assert np.isfinite(await parameters_of(caller, HEAD)).all()
    assert "4 times a unit's loss or gradient was no finite number" in caplog.text
