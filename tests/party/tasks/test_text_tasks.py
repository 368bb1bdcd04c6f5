"""What a party takes of text models beside steps and trainings: its artefacts, ensembles, and models that it cannot."""

import json

import numpy as np
import pytest

from aggregation.noise.stream import NoiseStream
from party.releasing.answers import noised
from party.releasing.mechanisms import mechanism_of
from party.tasks.result import load_counts, save_counts
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest
from protos.refusal import Reason, Refusal

pytestmark = pytest.mark.usefixtures("trains_here")

VOTES = plan_pb2.Release(
    name="votes",
    charges=4,
    form=plan_pb2.FORM_SUMMED,
    joint=plan_pb2.JointMechanism(
        votes=plan_pb2.VotesMechanism(classes=2, levels=2, noise=12.0, shares=2, distribution="gaussian")
    ),
)
QUERIES = ("the film was good", "bad plot", "dull", "we saw it")


async def refused(waiting):
    with pytest.raises(Refusal) as refusal:
        await waiting
    return refusal.value


async def asked(caller, texts=QUERIES, **changes):
    content = json.dumps(texts).encode()
    await caller.provide(content, kind="texts")
    descent = party_pb2.Descent(
        learning_rate=0.1, optimiser=party_pb2.OPTIMISER_ADAMW, schedule=party_pb2.FALLING_LINEAR, epochs=2, batch=4
    )
    settings = {"release": "votes", "model": caller.model, "teachers": 3, "descent": descent}
    task = party_pb2.EnsembleTask(**settings | {"texts_sha256": artefact_digest(content)} | changes)
    return await caller.trained(party_pb2.TrainRequest(run=caller.run, operation_id="votes-0", ensemble=task))


@pytest.mark.slow
async def test_an_ensembles_votes_are_answered_like_any_teachers(learner):
    caller = await learner(VOTES)
    await asked(caller)
    (block,) = await caller.answer(caller.batch(0, 0, 4, "votes"), columns=2)
    noise = mechanism_of(VOTES).noise_share((4, 2), NoiseStream.insecure(7, "north", "votes", "0"))
    votes = block - noise
    assert (votes >= 0).all()
    assert (votes.sum(axis=1) == 3 * VOTES.joint.votes.levels).all()  # one vote of each classifier, on the grid


@pytest.mark.parametrize(
    ("texts", "change", "says"),
    [
        ([*QUERIES, "more"], {}, "5 texts are asked, and release votes is paid for 4"),
        ([], {}, "are no JSON list"),
        (QUERIES, {"teachers": 0}, "0 teachers make no sense"),
        (QUERIES, {"texts_sha256": b"t" * 32}, "the texts were never provided"),
    ],
)
async def test_an_ensemble_that_makes_no_sense_is_refused(learner, texts, change, says):
    caller = await learner(VOTES)
    assert says in (await refused(asked(caller, texts, **change))).sentence


async def test_an_ensemble_needs_labels(learner):
    caller = await learner(VOTES, labelled=None)
    assert "ensemble learns from labels" in (await refused(asked(caller))).sentence


@pytest.fixture(scope="module")
def mixing(tmp_path_factory, tiny_bert):
    """The folder of a model that has parameters where no layer shows them, with the tokenizer of a BERT."""
    from transformers import AutoTokenizer, XLNetConfig, XLNetModel

    folder = tmp_path_factory.mktemp("mixing") / "xlnet"
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    XLNetModel(XLNetConfig(vocab_size=len(tokenizer), d_model=16, n_layer=1, n_head=2, d_inner=16)).save_pretrained(
        folder
    )
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.slow
async def test_a_layer_of_an_unknown_kind_is_named_with_what_to_do(learner, descent, mixing):
    from learning.models.adapting import adapt, flatten
    from learning.models.encoders import classifier
    from learning.text.labelled import LabelMap

    model, _ = classifier(str(mixing), LabelMap(("no", "yes")), seed=7)
    adapt(model, "full", seed=7)
    vector = flatten(model).numpy()
    caller = await learner(descent(parameters=len(vector)), folder=mixing, model={"adapt": party_pb2.ADAPT_FULL})
    refusal = await refused(caller.step(0, caller.model, vector))
    assert refusal.reason == Reason.TRAINING
    assert "is a XLNetRelativeAttention whose gradients cannot be told apart by examples" in refusal.sentence
    assert "What to do: freeze it, or use another model." in refusal.sentence


async def test_an_artefact_over_the_partys_limit_is_refused(learner):
    caller = await learner(limits={"artefact_mib": 1})
    for kind in ("model", "parameters", "texts"):
        refusal = await refused(caller.provide(b"x", kind=kind, size=2**20 + 1))
        assert refusal.reason == Reason.ARTEFACT
        assert "1,048,577 bytes is over the limit of 1 MiB ([limits] artefact_mib" in refusal.sentence
    assert not (await caller.provide(b"x" * 1000, kind="texts")).known


async def test_parameters_are_the_runs_own_and_only_the_last_are_kept(learner, tmp_path):
    caller = await learner()
    folder = tmp_path / "north.party"
    for content in (b"1234", b"5678", b"5678"):
        await caller.provide(content, kind="parameters")
        digest = artefact_digest(content).hex()
        assert [path.stem for path in folder.glob("runs/run-1/*.parameters")] == [digest]
        assert not (folder / "artefacts" / digest).exists()
    assert (await caller.provide(b"5678", kind="parameters")).known


def test_a_dense_sum_is_kept_whole_and_noised_stretch_by_stretch(descent, tmp_path, monkeypatch):
    mechanism = mechanism_of(descent(parameters=1000))
    clean = np.arange(-500, 500, dtype=np.int32)[None, :] * 2**20
    save_counts(tmp_path / "sum.npz", clean)
    assert (tmp_path / "sum.npz").stat().st_size < 5000
    loaded = load_counts(tmp_path / "sum.npz")
    assert np.array_equal(loaded, clean)
    monkeypatch.setattr("party.releasing.answers._AT_ONCE", 64)
    stream = NoiseStream.insecure(1, "dense")
    found = noised(loaded, mechanism, NoiseStream.insecure(1, "dense"))
    drawn = np.concatenate([mechanism.noise_share((min(64, 1000 - at),), stream) for at in range(0, 1000, 64)])
    assert np.array_equal(found[0], (clean[0].astype(np.int64) + drawn).astype(np.int32))
    assert len(set(drawn.tolist())) > 500
