"""One awful record in a shard of private text: a unit of nothing, or of its own, and every other unit as it was."""

import csv
import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from aggregation.mechanisms.vectors import VectorMechanism
from learning.embeddings.moments import Directions
from learning.embeddings.skipgram import SkipGram
from learning.models.batching import encode
from learning.text.labelled import LabelMap, TextColumns
from learning.text.table import MAXIMUM_CELL
from learning.text.words import Vocabulary
from party.releasing.mechanisms import answering
from party.shard.counted import counted_units
from party.shard.labelled import labelled_units
from party.shard.reading import Reading
from party.shard.units import MOST_CHARACTERS, units
from party.shard_table import ShardTable
from party.tasks.counts.request import CountsWork
from party.tasks.counts.training import cooccurrence
from party.tasks.moments.request import MomentsWork
from party.tasks.moments.training import moments
from party.tasks.teachers import training as teaching
from protos.conclave.v1 import plan_pb2

WORDS = ("apple", "bread", "cheese", "door")
GOOD = [
    {"text": "apple bread", "label": "no", "id": "g0", "who": "u0"},
    {"text": "cheese door apple", "label": "yes", "id": "g1", "who": "u1"},
    {"text": "bread cheese apple", "label": "no", "id": "g2", "who": "u0"},
    {"text": "door", "label": "yes", "id": "g3", "who": "u2"},
]
COLUMNS, CLASSES = TextColumns("single", "text", None, "label"), LabelMap(("no", "yes"))
FEW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["\ud800", "apple", "yes"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ROW = st.fixed_dictionaries({}, optional=dict.fromkeys(("text", "label", "id"), JSON) | {"who": JSON})
AWFUL = [
    b"[" * 50_000, b"1" * 5000, b'{"text": "apple', b"\xff\xfe", b'{"text": "\\ud800", "label": "no", "id": "h"}',
    b'{"text": "apple", "label": "purple", "id": "h"}', b'{"label": "no"}', b'{"text": ["apple"], "label": "no"}',
    b'{"text": "apple bread", "label": 1' + b"0" * 5000 + b', "id": "h"}', b"[1]", b'"text"', b"null", b"{}",
]  # fmt: skip


def line_of(value):
    return json.dumps(value).encode()


LINES = st.one_of(
    st.binary(max_size=60).filter(lambda line: b"\n" not in line), JSON.map(line_of), ROW.map(line_of),
    st.sampled_from(AWFUL),
)  # fmt: skip


def shard_of(path, **more):
    return ShardTable(**{"source": str(path), "label": "label", "id": "id", "user": "who"} | more)


@pytest.fixture(scope="module")
def tokenizer(pooled):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(pooled)


@pytest.fixture
def became(tmp_path, tokenizer):
    """`became(path)`: what each unit of labelled text became, in order; `by_user` by id."""

    def reads(path, **more):
        settings = {"longest": 16, "known": len(tokenizer), "by_user": False, "frank": False, "cache": tmp_path} | more
        slots = []
        found = labelled_units(
            shard_of(path), COLUMNS, CLASSES, tokenizer, slot_of=lambda unit: slots.append(unit) or 0, **settings
        )
        members = found.members or [[place] for place in range(len(found))]
        return [
            (name, [(found.rows[place].ids.tolist(), int(found.labels[place])) for place in unit])
            for name, unit in zip(slots, members, strict=True)
        ]

    return reads


def lines(*rows):
    return b"".join(row + b"\n" for row in rows)


def with_one(rows, place, awful):
    return [*rows[:place], awful, *rows[place:]]


def check(became, path, place, one_more=True):
    """The units of the shard at `path`, less the one at `place`, are those of the good rows alone."""
    good = path.with_name("good.jsonl")
    if not good.exists():
        good.write_bytes(lines(*map(line_of, GOOD)))
    expected, found = became(good), became(path)
    assert len(found) in ((len(GOOD), len(GOOD) + 1) if one_more else (len(GOOD) + 1,))
    assert found == expected or [*found[:place], *found[place + 1 :]] == expected
    users = dict(became(path, by_user=True))
    for name, own in became(good, by_user=True):
        assert users[name] == own


@pytest.mark.slow
@given(LINES, st.integers(0, 4))
@FEW
@example(AWFUL[0], 0)
@example(AWFUL[5], 0)
@example(b"[1]", 0)
def test_a_json_line_changes_no_other_unit(became, tmp_path, awful, place):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(lines(*with_one(list(map(line_of, GOOD)), place, awful)))
    check(became, path, place)
    other = tmp_path / "rows.json"  # JSON Lines under another name
    other.write_bytes(path.read_bytes())
    check(became, other, place)


@pytest.mark.slow
@given(JSON.map(line_of) | st.sampled_from([b"[" * 30_000 + b"]" * 30_000, b"1" * 5000, b"NaN", b"1e999"]), st.data())
@FEW
def test_an_element_of_an_array_changes_no_other_unit(became, tmp_path, awful, data):
    place = data.draw(st.integers(0, 4))
    path = tmp_path / "rows.json"
    path.write_bytes(b"[\n" + b",\n".join(with_one(list(map(line_of, GOOD)), place, awful)) + b"\n]")
    check(became, path, place)


def csv_line(row):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(row)
    return out.getvalue().encode(errors="surrogateescape").removesuffix(b"\n")


CELLS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), min_size=1, max_size=6)


@pytest.mark.slow
@given(
    CELLS.map(csv_line)
    | st.binary(max_size=40).filter(lambda line: b"\n" not in line)
    | st.sampled_from([b'"', b'x,"abc', b'"a"b,c,d,e', b"\xff,no,h,w", b"a\rb,no,h,w"]),
    st.integers(0, 4),
)
@FEW
@example(b'hostile,"', 0)
def test_a_csv_row_changes_no_other_unit(became, tmp_path, awful, place):
    path = tmp_path / "rows.csv"
    rows = [csv_line(row.values()) for row in GOOD]
    path.write_bytes(lines(b"text,label,id,who", *with_one(rows, place, awful)))
    check(became, path, place)


@pytest.mark.slow
@given(
    st.none() | st.binary(max_size=20),
    st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    st.integers(0, 4),
)
@FEW
def test_a_parquet_row_changes_no_other_unit(became, tmp_path, text, label, place):
    rows = [row | {"text": row["text"].encode()} for row in GOOD]
    path = tmp_path / "rows.parquet"
    pq.write_table(
        pa.Table.from_pylist(with_one(rows, place, {"text": text, "label": label, "id": "h", "who": "h"})), path
    )
    check(became, path, place, one_more=False)


@pytest.mark.slow
def test_a_record_too_long_is_a_unit_of_nothing_and_a_long_one_is_cut(became, tmp_path):
    path = tmp_path / "rows.jsonl"
    too_long = b'{"text": "' + b"a" * MAXIMUM_CELL + b'"}'
    path.write_bytes(lines(*with_one(list(map(line_of, GOOD)), 1, too_long)))
    check(became, path, 1)
    long = [{"text": "a " * MOST_CHARACTERS, "id": f"{n}", "who": "u", "label": "no"} for n in range(3)]
    path.write_bytes(lines(*map(line_of, long)))
    for by_user, count in ((False, 3), (True, 1)):
        found = list(units(shard_of(path), "document", by_user=by_user, cache=tmp_path, frank=False))
        assert [sum(map(len, unit.passages)) for unit in found] == [MOST_CHARACTERS] * count


@pytest.fixture
def job(tmp_path):
    """`job(rows)`: how a shard of these lines is read, and what is counted of it."""
    (tmp_path / "vocabulary").write_bytes(Vocabulary(WORDS).to_bytes())
    (tmp_path / "directions").write_bytes(
        Directions(np.eye(4, 2, dtype=np.float32), np.ones(2, np.float32), np.full(4, 0.5, np.float32)).to_bytes()
    )

    def makes(rows, record="document", *, by_user=False, window=2):
        path = tmp_path / "rows.jsonl"
        path.write_bytes(lines(*rows))
        reading = Reading(
            shard=shard_of(path, label=None), record=record, by_user=by_user, cache=tmp_path / "cache", frank=False
        )
        return reading, MomentsWork(str(tmp_path / "vocabulary"), window, str(tmp_path / "directions"))

    return makes


def counted(asked):
    """Every unit's pairs under its document's or user's id; a unit without a pair is left out."""
    reading, work = asked
    found = [
        (name, row.indices.tolist(), row.data.tolist())
        for names, chunk in counted_units(reading, Vocabulary(WORDS), work.window)
        for name, row in zip(names, (chunk[[place]] for place in range(chunk.shape[0])), strict=True)
    ]
    return [each for each in found if each[1]]


@pytest.mark.slow
@pytest.mark.parametrize(("record", "by_user"), [("document", False), ("document", True), ("sentence", False),
                                                  ("pair", False)])  # fmt: skip
def test_counts_of_other_units_and_moments_stay_what_they_are(job, record, by_user):
    mechanism = VectorMechanism(1.0, 64, 1.0, 1)
    good = list(map(line_of, GOOD))
    expected, sums = counted(job(good, record, by_user=by_user)), []

    @given(LINES)
    @settings(FEW, max_examples=10)
    @example(AWFUL[0])
    def holds(awful):
        asked = job(with_one(good, 2, awful), record, by_user=by_user)
        found = counted(asked)
        for each in expected:
            assert each in found
        if len(found) == len(expected):
            sums.append(moments(*asked, mechanism).toarray())

    holds()
    whole = moments(*job(good, record, by_user=by_user), mechanism).toarray()
    assert sums
    assert all((each == whole).all() for each in sums)


def test_a_unit_of_very_many_pairs_is_counted_as_far_as_memory_is_bounded(job, monkeypatch):
    monkeypatch.setattr("party.shard.counted.MOST_PAIRS", 40)
    row = line_of({"text": "apple " * 500, "id": "long", "who": "u"})
    ((_, _, (pairs,)),) = counted(job([row], window=5))
    assert 0 < pairs <= 40


@pytest.mark.parametrize("record", ["document", "sentence", "pair"])
@pytest.mark.parametrize("rows", [[], [b"\xff"], [b"{}", b"[]"]])
def test_of_no_unit_counts_and_moments_are_zeros(job, rows, record, caplog):
    counts = plan_pb2.Release(
        name="counts", charges=1, form=plan_pb2.FORM_SUMMED,
        counts=plan_pb2.CountsMechanism(clip=2.0, levels=64, noise_multiplier=1.0, shares=1, distribution="gaussian"),
    )  # fmt: skip
    reading, work = job(rows, record)
    words = CountsWork(work.vocabulary, work.window)
    assert (cooccurrence(reading, words, answering(counts)).toarray() == np.zeros((4, 4))).all()
    found = moments(reading, work, VectorMechanism(1.0, 64, 1.0, 1))
    assert not found.toarray().any()
    assert found.shape[1] > 0
    assert "learns nothing" in caplog.text


class Fails:
    """A tokenizer that fails on one text, and takes all texts that come with it down."""

    def __init__(self, tokenizer, word, error):
        self._tokenizer, self._word, self._error = tokenizer, word, error

    def __getattr__(self, name):
        return getattr(self._tokenizer, name)

    def __call__(self, texts, *more, **settings):
        if any(self._word in text for text in texts):
            raise self._error
        return self._tokenizer(texts, *more, **settings)


class PanicException(BaseException):
    """What a panic in Rust becomes."""


TEXTS = ["the film was good", "a PATIENT film", "bad plot", "the end"]


@pytest.mark.parametrize("error", [ValueError("no"), PanicException("no"), RuntimeError("regex")])
def test_a_text_that_the_tokenizer_fails_on_is_no_example_and_the_others_are_theirs(tokenizer, error):
    fails = Fails(tokenizer, "PATIENT", error)
    found = encode(fails, TEXTS, longest=16, known=len(tokenizer))
    alone = encode(tokenizer, TEXTS, longest=16)
    assert [row.ids.tolist() for row in found.rows] == [
        [] if "PATIENT" in text else row.ids.tolist() for text, row in zip(TEXTS, alone.rows, strict=True)
    ]
    with pytest.raises(type(error)):
        encode(fails, TEXTS, longest=16)


def test_a_token_that_the_model_does_not_have_is_no_example(tokenizer):
    rows = encode(tokenizer, TEXTS, longest=16).rows
    least = max(int(row.ids.max()) for row in rows)
    found = encode(tokenizer, TEXTS, longest=16, known=least)
    assert [len(row) > 0 for row in found.rows] == [int(row.ids.max()) < least for row in rows]


def test_only_an_interruption_ends_the_reading(tokenizer):
    with pytest.raises(KeyboardInterrupt):
        encode(Fails(tokenizer, "PATIENT", KeyboardInterrupt()), TEXTS, longest=16, known=len(tokenizer))


def test_a_teacher_that_goes_to_infinity_answers_as_the_reference(monkeypatch, caplog):
    rng = np.random.default_rng(0)
    reference = SkipGram(*(rng.normal(size=(4, 2)).astype(np.float32) for _ in range(2)), np.zeros(4, np.float32))
    lost = SkipGram(np.full((4, 2), np.inf, np.float32), reference.outputs, reference.bias)
    monkeypatch.setattr(teaching, "vocabulary_of", lambda work: Vocabulary(WORDS))
    monkeypatch.setattr(teaching, "reference_of", lambda teaching, size: reference)
    monkeypatch.setattr(teaching, "_teachers", lambda *given: iter([lost, reference]))
    asked = type("Asked", (), {"queries": [0, 1], "classes": [2, 3], "layers": ["centre"], "vote": "probable",
                               "teachers": 2})()  # fmt: skip
    told = []
    found = teaching.answers(None, asked, teaching.Wanted(votes=True, hidden=True), told.append)
    np.testing.assert_array_equal(found.states[0], found.states[1])
    np.testing.assert_array_equal(found.votes[0], found.votes[1])
    assert "1 of 2 teachers went to infinity" in caplog.text
    assert told == [50, 99]


SHARDS = {
    "no row": b"",
    "nothing that is text": b'\xff\n[1]\n{"text": 5}\n{"other": "column"}\n',
    "one that is not": b'\xff\xff\n' + lines(*map(line_of, GOOD)),
}  # fmt: skip


@pytest.mark.usefixtures("trains_here")
@pytest.mark.parametrize("content", SHARDS.values(), ids=SHARDS)
async def test_a_party_answers_alike_whatever_its_rows_are(opened, tmp_path, content, caplog):
    """Over the wire, with a promise to keep: the same words, sizes and charges as with usable text."""
    (tmp_path / "notes.jsonl").write_bytes(content)
    caller = await opened()
    await caller.join()
    await caller.provide()
    progress = await caller.train()
    assert {each.percent for each in progress} <= {255, 100}
    (block,) = await caller.answer(caller.batch(0, 0, 6))
    assert (block.shape, block.dtype) == ((6, 6), np.int32)
    assert block.any()
    assert ("learns nothing" in caplog.text) == (b"apple" not in content)


@pytest.mark.usefixtures("trains_here")
async def test_teachers_without_a_unit_answer_over_the_wire(opened, terms, releases, tmp_path):
    (tmp_path / "notes.jsonl").write_bytes(b"\xff\n")
    caller = await opened(plan=terms(releases=releases("joint"), epsilon=19.0))
    await caller.ready_to_teach()
    progress = await caller.teach()
    assert progress[-1].finished
    (block,) = await caller.answer(caller.batch(0, 0, 4, "answers"), columns=3 + 2 * 4)
    assert block.shape == (4, 11)


ONE_CLASS, OUTSIDE = [("good film", "yes")] * 3, [("good film", "yes"), ("odd film", "purple")]


@pytest.mark.slow
@pytest.mark.usefixtures("trains_here")
@pytest.mark.parametrize("rows", [ONE_CLASS, OUTSIDE, [("odd film", "purple")], []], ids=str)
async def test_weights_come_whatever_the_labels_are(learner, descent, films, rows):
    """A label outside the map, one class, no example, no row: a training under noise that ends as any other."""
    films(rows)
    release = descent("weights", weights=True)
    caller = await learner(release, policy={"simulation": False}, insecure_reproducible_noise=False)
    progress = await caller.train_alone(caller.model, np.zeros(2 * 32 + 2, np.float32))
    assert {each.percent for each in progress if not each.finished} <= {255, 25, 50, 75, 99}
    (block,) = await caller.answer(caller.batch(0, 0, 1, "weights"), columns=2 * 32 + 2)
    assert np.isfinite(block[0].view(np.float32)).all()
