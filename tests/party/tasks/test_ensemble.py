"""Classifiers on a party's units that vote on public texts: one unit is in one of them, and moves its votes alone."""

import json
import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.votes import VotesMechanism
from learning.classification.training import predict
from learning.models.adapting import flatten
from learning.models.batching import encode
from learning.models.encoders import classifier
from learning.text.labelled import LabelMap
from party.admission.labels import columns_of, targets_of
from party.config import PolicyTable
from party.errors import TrainingError
from party.shard.units import slot
from party.shard_table import ShardTable
from party.tasks.ensemble import training
from party.tasks.ensemble.request import EnsembleWork
from party.tasks.job import Job
from party.tasks.text.request import Descent, TextModel
from protos.conclave.v1 import plan_pb2

KEY = b"k" * 32
TEACHERS = 3
NAMES = ("negative", "positive")
VOTES = JointMechanism(VotesMechanism(classes=2, levels=4, noise=5.0, shares=2), None)
SINGLE = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_SINGLE, labels=NAMES)
PAIR = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_PAIR, labels=NAMES)
SCORES = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_REGRESSION, low=0.0, high=1.0)
WORDS = (("bad", "awful", "dull"), ("good", "great", "bright"))
OTHER = ("film", "plot", "actor", "story", "the", "was", "slow", "fast")


def review(number, label=None):
    """A row in which one word of praise or blame decides."""
    rng = np.random.default_rng(number)
    label = number % 2 if label is None else label
    text = " ".join(rng.permutation([*rng.choice(OTHER, rng.integers(1, 8)), rng.choice(WORDS[label])]))
    return {"text": text, "label": NAMES[label], "id": f"r{number}", "who": f"u{number % 7}"}


ROWS = [review(number) for number in range(30)]
QUERIES = [review(number)["text"] for number in range(100, 140)]


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Models here are so small that threads would only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tiny_bert, tmp_path_factory):
    """A model that says it is for the mean of its tokens, so that its last layer is its whole head."""
    folder = tmp_path_factory.mktemp("model") / "bert"
    shutil.copytree(tiny_bert, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


def prepare(job, mechanism):
    return training.prepare(job, job.work, mechanism, None)


@pytest.fixture
def make(tmp_path, folder):
    """`make(rows, ...)`: a job over these rows; the fields of its text work can be changed."""

    def makes(rows=ROWS, labelled=SINGLE, texts=QUERIES, *, by_user=False, descent=(), shard=(), **changes):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / "texts").write_text(json.dumps(texts))
        table = {"source": str(tmp_path / "rows.jsonl"), "label": "label", "id": "id", "user": "who"} | dict(shard)
        descending = {
            "learning_rate": 0.02, "optimiser": "adamw", "schedule": "linear", "warm_up": 0.1, "momentum": 0.9,
            "decay": 0.01, "expected_batch": 0.0, "epochs": 4, "batch": 4,
        }  # fmt: skip
        model = {
            "files": {}, "folder": str(folder), "adapt": "head", "rank": 2, "alpha": 4, "longest": 32, "seed": 7,
        }  # fmt: skip
        model |= {name: changes.pop(name) for name in list(changes) if name in model}
        ensemble = {
            "model": TextModel(**model), "labelled": labelled.SerializeToString().hex(), "key": KEY.hex(),
            "texts": str(tmp_path / "texts"), "teachers": TEACHERS, "descent": Descent(**descending | dict(descent)),
        }  # fmt: skip
        return Job(
            parent=os.getpid(),
            shard=ShardTable(**table).model_dump(),
            policy=PolicyTable(epsilon=1.0, delta=1e-6, recipes=["pate"]).model_dump(),
            record="document",
            by_user=by_user,
            release="",
            cache=str(tmp_path / "cache"),
            result=str(tmp_path / "result.npz"),
            work=EnsembleWork(**ensemble | changes),
        )

    return makes


def said(job, progress=lambda percent: None):
    labelled = plan_pb2.LabelledText.FromString(bytes.fromhex(job.work.labelled))
    columns, targets = columns_of(labelled, job.reading.shard), targets_of(labelled, job.reading.shard)
    return training.answers(job.reading, job.work, columns, targets, progress)


@pytest.fixture
def learned(monkeypatch):
    """`learned(job)`: votes [teachers, queries], and the parameters of each classifier when it voted."""

    def learns(job):
        kept = []
        vote = training.Learner.votes

        def votes(self, *given):
            found = vote(self, *given)
            kept.append(flatten(self.trained).numpy().tobytes())
            return found

        with monkeypatch.context() as patch:
            patch.setattr(training.Learner, "votes", votes)
            return said(job), kept

    return learns


def start_votes(folder, texts=QUERIES):
    model, tokenizer = classifier(str(folder), LabelMap(NAMES), seed=7)
    return predict(model, encode(tokenizer, texts, longest=32).rows).argmax(axis=1)


@pytest.mark.slow
def test_votes_are_summed_as_the_mechanism_bounds_them(make):
    told = []
    job = make()
    total = training.vote(job, job.work, VOTES, told.append).toarray()
    votes = said(job)
    assert votes.shape == (TEACHERS, len(QUERIES))
    assert np.array_equal(total, 4 * np.stack([(votes == place).sum(axis=0) for place in (0, 1)], axis=1))
    assert told == [33, 66, 99]


@pytest.mark.slow
@pytest.mark.parametrize(("adapt", "rate", "epochs"), [("lora", 0.02, 10), ("full", 0.003, 8)])
def test_classifiers_learn_what_words_decide(make, adapt, rate, epochs):
    rows = [review(number) for number in range(450)]
    votes = said(make(rows, adapt=adapt, descent={"learning_rate": rate, "epochs": epochs}))
    truth = np.arange(100, 140) % 2
    assert ((votes == truth).mean(axis=1) > 0.85).all()


@pytest.mark.slow
@pytest.mark.parametrize("adapt", ["head", "lora", "full"])
def test_one_unit_less_changes_one_classifier(make, learned, adapt):
    short = {"descent": {"epochs": 1}, "adapt": adapt}
    votes, models = learned(make(**short))
    for number in (0, 13):
        after, others = learned(make([row for row in ROWS if row["id"] != f"r{number}"], **short))
        teacher = slot(KEY, f"r{number}", TEACHERS)
        assert [each for each in range(TEACHERS) if models[each] != others[each]] == [teacher]
        same = [each for each in range(TEACHERS) if each != teacher]
        assert np.array_equal(votes[same], after[same])


@pytest.mark.slow
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 10_000), st.integers(0, len(ROWS)), st.sampled_from(NAMES), st.integers(1, 25))
def test_one_unit_more_changes_one_classifier_wherever_it_stands(make, learned, name, place, label, words):
    row = {"text": " ".join([*OTHER, "good", "bad"] * 3)[: 5 * words], "label": label, "id": f"new-{name}", "who": "u9"}
    short = {"descent": {"epochs": 1}}
    (votes, models), (after, others) = (
        learned(make(rows, **short)) for rows in (ROWS, [*ROWS[:place], row, *ROWS[place:]])
    )
    teacher = slot(KEY, row["id"], TEACHERS)
    assert [each for each in range(TEACHERS) if models[each] != others[each]] == [teacher]
    assert not (votes != after)[[each for each in range(TEACHERS) if each != teacher]].any()


@pytest.mark.slow
def test_all_rows_of_a_user_are_in_one_classifier(make, learned):
    short = {"descent": {"epochs": 1}, "by_user": True}
    _, models = learned(make(**short))
    for user in ("u0", "u4"):
        _, others = learned(make([row for row in ROWS if row["who"] != user], **short))
        assert [each for each in range(TEACHERS) if models[each] != others[each]] == [slot(KEY, user, TEACHERS)]


@pytest.mark.slow
def test_a_classifier_without_units_votes_as_the_public_start_does(make, folder):
    rows = ROWS[:6]
    teachers = 40
    votes = said(make(rows, teachers=teachers, descent={"learning_rate": 0.5, "epochs": 20}))
    start = start_votes(folder)
    filled = {slot(KEY, row["id"], teachers) for row in rows}
    empty = [each for each in range(teachers) if each not in filled]
    assert (votes[empty] == start).all()
    assert (votes[sorted(filled)] != start).any()


@pytest.mark.slow
def test_a_classifier_of_one_class_votes_for_it(make):
    rows = [review(number, 1 if slot(KEY, f"r{number}", TEACHERS) == 0 else None) for number in range(30)]
    votes = said(make(rows, descent={"learning_rate": 0.3, "epochs": 20}))
    assert (votes[0] == 1).all()
    assert (votes[1:] == 0).any()


def test_a_training_that_goes_to_infinity_votes_as_the_start_and_tells_the_party_alone(make, folder, caplog):
    wild = {"learning_rate": 1e38, "optimiser": "sgd", "schedule": "constant", "warm_up": 0.0, "epochs": 50}
    votes = said(make(descent=wild))
    assert (votes == start_votes(folder)).all()
    assert f"{TEACHERS} of {TEACHERS} classifiers went to infinity" in caplog.text


@pytest.mark.slow
def test_the_head_of_a_model_without_fixed_features_is_trained_through_it(make, tiny_bert, learned):
    short = {"folder": str(tiny_bert), "descent": {"epochs": 1}}
    votes, models = learned(make(**short))
    _, others = learned(make(ROWS[1:], **short))
    assert votes.shape == (TEACHERS, len(QUERIES))
    assert [each for each in range(TEACHERS) if models[each] != others[each]] == [slot(KEY, "r0", TEACHERS)]


@pytest.mark.slow
def test_pairs_are_asked_as_pairs(make, folder):
    rows = [row | {"reply": ROWS[-1 - place]["text"]} for place, row in enumerate(ROWS)]
    shard = {"second": "reply"}
    texts = [[first, second] for first, second in zip(QUERIES, reversed(QUERIES), strict=True)]
    job = make(rows, PAIR, texts, shard=shard, teachers=40)
    votes = said(job)
    model, tokenizer = classifier(str(folder), LabelMap(NAMES), seed=7)
    asked = encode(tokenizer, [each[0] for each in texts], [each[1] for each in texts], longest=32).rows
    empty = sorted(set(range(40)) - {slot(KEY, row["id"], 40) for row in rows})
    assert (votes[empty] == predict(model, asked).argmax(axis=1)).all()
    with pytest.raises(TrainingError, match="lists of two texts"):
        said(make(rows, PAIR, QUERIES, shard=shard))


@pytest.mark.parametrize("texts", [[], {"a": 1}, [1], [["a", "b"]], ["a", None]])
def test_texts_that_are_none_are_one_sentence(make, texts):
    with pytest.raises(TrainingError, match="no JSON list of texts"):
        said(make(texts=texts))


def test_scores_and_other_releases_are_refused(make):
    rows = [row | {"label": "0.5"} for row in ROWS]
    with pytest.raises(TrainingError, match="votes are of classes"):
        prepare(make(rows, SCORES), VOTES)
    hidden = HiddenMechanism(layers=1, width=4, clip=1.0, levels=8, noise=5.0, shares=2)
    with pytest.raises(TrainingError, match="takes 2 classes and hidden states"):
        prepare(make(), replace(VOTES, hidden=hidden))
    three = JointMechanism(VotesMechanism(classes=3, levels=4, noise=5.0, shares=2), None)
    with pytest.raises(TrainingError, match="one of 2 classes, and the release takes 3"):
        prepare(make(), three)


def test_too_few_units_are_told_to_the_partys_log_and_nobody_else(make, caplog):
    job = make(descent={"epochs": 1})
    said(replace(job, policy=job.policy | {"declared_size": 1000}))
    assert "30 units, fewer than the 1,000" in caplog.text


def test_what_was_read_is_in_the_census(make, tmp_path):
    path = tmp_path / "census"
    said(replace(make(descent={"epochs": 1}), census=str(path), census_key="6b" * 32))
    content = path.read_bytes()
    rows = {content[start : start + 17] for start in range(0, len(content), 17)}
    texts, users = ({row[key] for row in ROWS} for key in ("text", "who"))
    assert len(rows) == len(ROWS) + len(texts) + len(users)


@pytest.mark.parametrize("by_user", [False, True])
@pytest.mark.parametrize("rows", [[], [review(1) | {"label": "purple"}], [{"text": 5}]], ids=["none", "label", "text"])
def test_without_an_example_every_classifier_votes_as_the_start(make, folder, rows, by_user):
    votes = said(make(rows, by_user=by_user))
    np.testing.assert_array_equal(votes, [start_votes(folder)] * TEACHERS)


@pytest.mark.slow
def test_rows_that_cannot_be_used_change_no_vote(make):
    awful = [review(1) | {"label": "purple", "id": "r-1"}, {"text": ["a"]}, review(2) | {"text": " ", "id": "r-2"}]
    np.testing.assert_array_equal(said(make([*ROWS[:10], *awful, *ROWS[10:]])), said(make()))
