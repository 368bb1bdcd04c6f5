"""Teachers on a party's text: one unit is in one teacher, and what they say is bounded as the mechanism says."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from learning.embeddings.teachers import hidden_states, votes_of
from learning.embeddings.weights import to_bytes
from learning.text.words import Vocabulary
from party.config import PolicyTable
from party.errors import TrainingError
from party.releasing.mechanisms import mechanism_of
from party.shard.units import slot
from party.shard_table import ShardTable
from party.tasks.job import Job
from party.tasks.process import attempt, work
from party.tasks.result import load_counts
from party.tasks.teachers.request import TeachersWork
from party.tasks.teachers.training import Wanted, _summed, answers, teach

WORDS = ("apple", "bread", "cheese", "door", "egg", "fish")
TEXTS = {
    "d1": "apple bread cheese apple bread",
    "d2": "door egg fish apple egg",
    "d3": "bread bread cheese door cheese",
    "d4": "fish egg apple apple egg fish",
    "d5": "cheese door egg bread fish",
}
KEY = b"k" * 32
TEACHERS = 3
BOTH = Wanted(votes=True, hidden=True)
EXTRA = "fish apple fish apple fish fish fish door"


@pytest.fixture
def make(tmp_path, releases, reference):
    """Makes a job over the texts: fields of its teaching can be changed, and the release by the word for it."""
    (tmp_path / "vocabulary").write_bytes(Vocabulary(WORDS).to_bytes())
    (tmp_path / "reference").write_bytes(to_bytes(reference()))
    (joint,) = releases("joint")

    def makes(texts=TEXTS, release=joint, *, record="document", by_user=False, **changes):
        rows = tmp_path / "rows.jsonl"
        rows.write_text("".join(json.dumps({"text": t, "id": n, "who": f"u{n}"}) + "\n" for n, t in texts.items()))
        teaching = {
            "vocabulary": str(tmp_path / "vocabulary"),
            "window": 2,
            "teachers": TEACHERS,
            "reference": str(tmp_path / "reference"),
            "alignment": "initialisation",
            "queries": [5, 0, 1, 3],
            "classes": [0, 2, 4],
            "layers": ["centre", "context"],
            "vote": "probable",
            "seed": 7,
            "slot_key": KEY.hex(),
            "training": "",
            "training_key": "",
            "expected_batch": 2.0,
            "learning_rate": 0.5,
        }
        return Job(
            parent=os.getpid(),
            shard=ShardTable(source=str(rows), id="id", user="who").model_dump(),
            policy=PolicyTable(epsilon=1.0, delta=1e-6, recipes=["dped"]).model_dump(),
            record=record,
            by_user=by_user,
            release=release.SerializeToString().hex(),
            cache=str(tmp_path / "cache"),
            result=str(tmp_path / "result.npz"),
            work=TeachersWork(**teaching | changes),
        )

    return makes


@pytest.fixture
def private(releases):
    """What a job's teaching has where teachers are trained under DP-SGD."""
    return {"training": releases("training")[0].SerializeToString().hex(), "training_key": (b"n" * 32).hex()}


def said(job):
    return answers(job.reading, job.work, BOTH, lambda percent: None)


def changed(one, other):
    """Teachers whose hidden states differ at all."""
    return [number for number in range(TEACHERS) if one.states[number].tobytes() != other.states[number].tobytes()]


def test_answers_have_the_axes_that_the_mechanism_takes(make):
    signal = said(make())
    assert signal.votes.shape == (TEACHERS, 4)
    assert signal.states.shape == (TEACHERS, 4, 2, 4)
    assert set(signal.votes.ravel()) <= {0, 1, 2}
    assert signal.states.dtype == np.float32


@pytest.mark.slow
@pytest.mark.parametrize("alignment", ["initialisation", "procrustes"])
def test_one_unit_more_changes_one_teacher(make, alignment):
    before = said(make(alignment=alignment))
    for name in ("new-1", "new-2", "new-3"):
        after = said(make({"first": EXTRA} | TEXTS if name == "new-3" else TEXTS | {name: EXTRA}, alignment=alignment))
        (teacher,) = changed(before, after)
        assert teacher == slot(KEY, "first" if name == "new-3" else name, TEACHERS)
        others = [number for number in range(TEACHERS) if number != teacher]
        np.testing.assert_array_equal(before.votes[others], after.votes[others])


def test_one_unit_more_changes_one_privately_trained_teacher(make, private):
    before = said(make(**private))
    (teacher,) = changed(before, said(make(TEXTS | {"new": EXTRA}, **private)))
    assert teacher == slot(KEY, "new", TEACHERS)


def test_another_key_puts_units_into_other_teachers(make):
    assert len(changed(said(make()), said(make(slot_key=(b"j" * 32).hex())))) > 1


def test_chunks_do_not_change_the_teachers(make, private, monkeypatch):
    whole, privately = said(make()), said(make(**private))
    monkeypatch.setattr("party.shard.counted._CHUNK_UNITS", 1)
    assert changed(whole, said(make())) == []
    assert changed(privately, said(make(**private))) == []


def test_what_units_are_summed_in_grows_with_their_pairs_and_not_with_the_vocabulary():
    cells = 10**14  # of ten million words: a number for each would be 800 TB
    units = sparse.csr_array(([1.0, 2.0, 4.0], [cells - 1, 7, cells - 1], [0, 1, 3]), shape=(2, cells))
    once = _summed(units)
    assert once.indices.tolist() == [7, cells - 1]
    assert once.data.tolist() == [2.0, 5.0]
    assert (once + _summed(units)).data.tolist() == [4.0, 10.0]
    assert _summed(units[:0]).nnz == 0


def test_pairs_of_one_document_stay_with_one_teacher(make, reference):
    own = hidden_states(reference(), np.array([5, 0, 1, 3]), ["centre", "context"])
    for name, text in TEXTS.items():
        signal = said(make({name: text}, record="pair"))
        taught = [number for number in range(TEACHERS) if not np.array_equal(signal.states[number], own)]
        assert taught == [slot(KEY, name, TEACHERS)]


def test_all_text_of_a_user_is_in_one_teacher(make):
    before = said(make(by_user=True))
    (teacher,) = changed(before, said(make(TEXTS | {"new": EXTRA}, by_user=True)))
    assert teacher == slot(KEY, "unew", TEACHERS)


@pytest.mark.parametrize("alignment", ["initialisation", "procrustes"])
@pytest.mark.parametrize("vote", ["probable", "lift"])
def test_a_teacher_without_units_answers_as_the_reference_does(make, reference, alignment, vote):
    signal = said(make({"d1": TEXTS["d1"]}, alignment=alignment, vote=vote))
    queries, classes = np.array([5, 0, 1, 3]), np.array([0, 2, 4])
    model = reference()
    relative = None
    if vote == "lift":
        relative = np.log(np.exp(model.log_probabilities(np.arange(6)).astype(np.float64)).mean(axis=0))
    empty = [number for number in range(TEACHERS) if number != slot(KEY, "d1", TEACHERS)]
    for number in empty:
        np.testing.assert_array_equal(signal.votes[number], votes_of(model, queries, classes, relative_to=relative))
        np.testing.assert_array_equal(signal.states[number], hidden_states(model, queries, ["centre", "context"]))


def test_a_privately_trained_teacher_without_units_is_noise_about_the_reference(make, private, reference):
    """Were it the reference itself, an answer would tell that nobody is in it."""
    signal = said(make({"d1": TEXTS["d1"]}, **private))
    own = hidden_states(reference(), np.array([5, 0, 1, 3]), ["centre", "context"])
    assert all((signal.states[number] != own).all() for number in range(TEACHERS))


def test_the_noise_of_private_training_follows_from_its_key_and_differs_between_teachers(make, private, reference):
    one, again = said(make(**private)), said(make(**private))
    assert changed(one, again) == []
    assert changed(one, said(make(**private | {"training_key": (b"m" * 32).hex()}))) == [0, 1, 2]
    empty = said(make({"d1": TEXTS["d1"]}, **private))
    first, second = (empty.states[n] for n in range(TEACHERS) if n != slot(KEY, "d1", TEACHERS))
    assert (first != second).all()


@pytest.mark.parametrize(
    ("wanted", "votes", "states"), [(Wanted(True, False), True, False), (Wanted(False, True), False, True)]
)
def test_only_what_the_mechanism_takes_is_asked(make, wanted, votes, states):
    job = make()
    signal = answers(job.reading, job.work, wanted, lambda percent: None)
    assert (signal.votes is not None, signal.states is not None) == (votes, states)


@pytest.mark.slow
def test_a_joint_release_sums_votes_and_clipped_hidden_states(make):
    job = make(classes=[0, 2, 4])
    signal = said(job)
    work(job, lambda percent: None)
    total = load_counts(Path(job.result)).toarray()
    assert total.shape == (4, 3 + 8)
    for query in range(4):
        np.testing.assert_array_equal(total[query, :3], 2 * np.bincount(signal.votes[:, query], minlength=3))
    norms = np.linalg.norm(signal.states.astype(np.float64), axis=3, keepdims=True)
    clipped = (signal.states / np.maximum(norms, 1.0)).sum(axis=0).reshape(4, 8)
    np.testing.assert_allclose(total[:, 3:] / 64, clipped, atol=TEACHERS / 64)


@pytest.mark.parametrize("kind", ["joint", "free"])
def test_what_is_stored_is_the_mechanisms_own_contribution(make, releases, kind):
    (release,) = releases(kind)
    job = make(release=release)
    mechanism = mechanism_of(release)
    expected = mechanism.contribute(said(job)).toarray()
    np.testing.assert_array_equal(teach(job, mechanism, lambda percent: None).toarray(), expected)
    assert expected.any()


def test_thresholded_votes_are_one_column_a_teacher(make, releases):
    (release,) = releases("thresholded")
    job = make(release=release)
    work(job, lambda percent: None)
    np.testing.assert_array_equal(load_counts(Path(job.result)).toarray(), said(job).votes.T)


@pytest.mark.slow
def test_one_unit_more_moves_a_joint_sum_within_its_sensitivity(make, releases):
    (release,) = releases("joint")
    mechanism = mechanism_of(release)
    before = teach(make(), mechanism, lambda percent: None).toarray()
    for name in ("a", "b", "c", "d"):
        after = teach(make(TEXTS | {name: EXTRA * 40}), mechanism, lambda percent: None).toarray()
        moved = np.linalg.norm(after - before, axis=1)
        assert moved.any()
        assert (moved <= mechanism.sensitivity).all()


def test_progress_is_told_in_teachers_and_never_in_units(make):
    told = []
    job = make()
    answers(job.reading, job.work, BOTH, told.append)
    assert told == [33, 66, 99]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"queries": [0, 6]}, "a query is word 6; the vocabulary has 6 words"),
        ({"classes": [0, 1, 99]}, "a class is word 99"),
        ({"reference": "other"}, "knows 7 words, the vocabulary has 6"),
        ({"reference": "broken"}, "the reference that was provided cannot be used"),
    ],
)
def test_what_does_not_fit_ends_with_a_sentence(make, tmp_path, reference, change, says):
    (tmp_path / "other").write_bytes(to_bytes(reference(7)))
    (tmp_path / "broken").write_bytes(b"\x80pickle")
    if "reference" in change:
        change = {"reference": str(tmp_path / change["reference"])}
    kind, sentence, _ = attempt(make(**change), lambda percent: None)
    assert kind == TrainingError.__name__
    assert says in sentence
    assert not (tmp_path / "result.npz").exists()


def test_a_job_travels_as_one_line(make, private):
    job = make(**private)
    line = job.to_json()
    assert "\n" not in line
    assert Job.from_json(line.encode()) == job


def test_hidden_states_of_another_width_are_not_summed(make, releases):
    (release,) = releases("joint")
    release.joint.hidden.width = 5
    kind, sentence, _ = attempt(make(release=release), lambda percent: None)
    assert kind == "IntegrityError"
    assert "width 5" in sentence
