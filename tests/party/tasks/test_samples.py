"""Rows of a data set: a unit changes as few of them as is charged, and nothing else of a shard shows."""

import json
import os
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from aggregation.errors import IntegrityError
from aggregation.mechanisms.samples import SamplesMechanism
from aggregation.mechanisms.sequences import LAYERS, SequencesMechanism
from learning.bottleneck.forms import Form, NoisyModel
from learning.bottleneck.posterior import LOG_VARIANCES
from learning.models.batching import Tokens
from learning.noisy_vectors.projection import Projection
from party.config import PolicyTable
from party.errors import TrainingError
from party.shard_table import ShardTable
from party.tasks.job import Job
from party.tasks.samples import training
from party.tasks.samples.choosing import chosen
from party.tasks.samples.request import SamplesWork
from party.tasks.text.request import Lesson, TextModel
from protos.conclave.v1 import plan_pb2

KEY, NOISE = b"k" * 32, b"n" * 32
NAMES = ("negative", "positive")
SINGLE = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_SINGLE, labels=NAMES)
PAIR = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_PAIR, labels=NAMES)
SCORES = plan_pb2.LabelledText(kind=plan_pb2.TEXT_KIND_REGRESSION, low=0.0, high=1.0)
CLEAR = SamplesMechanism(
    rows=12, dimensions=2, levels=1 << 16, noise_multiplier=1e-4, texts=1, classes=2, label_epsilon=20.0
)
"""Noise so small that a row shows its text, so that tests can count."""
WORDS = ("good", "great", "bad", "awful", "film", "plot", "actor", "story", "slow", "fast")
ROWS = [
    {
        "text": f"the {WORDS[n % 10]} {WORDS[n * 7 % 10]} {WORDS[n // 10]}",
        "label": NAMES[n % 2], "id": f"r{n}", "who": f"u{n % 4}",
    }
    for n in range(20)
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tiny_bert, tmp_path_factory):
    """A model that says it is for the mean of its tokens, so that its last layer sees one vector of a text."""
    folder = tmp_path_factory.mktemp("model") / "bert"
    shutil.copytree(tiny_bert, folder)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return folder


@pytest.fixture(scope="module")
def width(folder):
    return int(json.loads((folder / "config.json").read_text())["hidden_size"])


@pytest.fixture
def make(tmp_path, folder, width):
    """`make(rows, ...)`: a job over these rows."""

    def makes(rows=ROWS, labelled=SINGLE, *, by_user=False, projection=None, shard=(), key=NOISE, layer=None):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        features = width * (2 if labelled is PAIR else 1)
        if projection is None:
            projection = Projection.fitted(np.random.default_rng(0).normal(size=(200, features)), 2).to_bytes()
        (tmp_path / "projection").write_bytes(projection)
        (tmp_path / "layer").write_bytes(layer or b"")
        table = {"source": str(tmp_path / "rows.jsonl"), "label": "label", "id": "id", "user": "who"} | dict(shard)
        model = TextModel(files={}, folder=str(folder), adapt="head", rank=0, alpha=0, longest=16, seed=7)
        lesson = Lesson("labels", labelled.SerializeToString().hex())
        return Job(
            parent=os.getpid(),
            shard=ShardTable(**table).model_dump(),
            policy=PolicyTable(epsilon=1.0, delta=1e-6, recipes=["nvdp"], samples=True).model_dump(),
            record="document",
            by_user=by_user,
            release="",
            cache=str(tmp_path / "cache"),
            result=str(tmp_path / "result.npz"),
            work=SamplesWork(
                model,
                lesson,
                "" if layer is not None else str(tmp_path / "projection"),
                KEY.hex(),
                key.hex(),
                str(tmp_path / "layer") if layer is not None else "",
            ),
        )

    return makes


def made(job, mechanism=CLEAR):
    return training.prepare(job, job.work, mechanism, None)(job, lambda percent: None).astype(np.int64)


def vectors(rows):
    """The vectors of all rows, in units of the clip."""
    return rows[:, :-1] * CLEAR.granularity


def texts(rows, mechanism=CLEAR):
    """The rows that a text fills, told from the others by their length, rounded."""
    vectors = rows[:, :-1] * mechanism.granularity
    full = np.linalg.norm(vectors, axis=1) > 0.01
    return {tuple(np.round(vector, 2)) for vector in vectors[full]}, int(full.sum())


@pytest.mark.slow
def test_every_row_is_a_text_or_noise_and_their_number_is_the_plans(make):
    for count in (1, 5, 12, 20):
        rows = made(make(ROWS[:count]))
        assert rows.shape == (12, 3)
        assert texts(rows)[1] == min(count, 12)


@pytest.mark.slow
def test_one_record_more_changes_one_row(make):
    for count in (5, 12, 19):
        before, after = (vectors(made(make(ROWS[:some]))) for some in (count, count + 1))
        gaps = np.linalg.norm(before[:, None] - after[None], axis=2)
        assert (gaps.min(axis=0) > 1e-3).sum() <= 1
        assert (gaps.min(axis=1) > 1e-3).sum() <= 1


@pytest.mark.slow
def test_a_text_that_stands_twice_leaves_once_so_that_two_equal_rows_never_tell_it(make):
    twin = ROWS[0] | {"id": "again", "label": NAMES[1]}
    rows = made(make([*ROWS[:4], twin]))
    assert texts(rows)[1] == 4


def test_a_shard_without_a_usable_row_gives_as_many_rows(make):
    rows = made(make([{"text": "a film", "label": "unheard of", "id": "x", "who": "u"}]))
    assert rows.shape == (12, 3)
    assert texts(rows)[1] == 0


@pytest.mark.slow
def test_a_label_outside_the_plans_and_a_text_that_is_too_long_change_their_own_row_alone(make):
    odd = [ROWS[5] | {"label": "neither"}, ROWS[6] | {"text": "good " * 400}]
    before, _ = texts(made(make(ROWS[:5])))
    after, count = texts(made(make([*ROWS[:5], *odd])))
    assert before <= after
    assert count == 6


@pytest.mark.slow
def test_a_user_fills_no_more_rows_than_are_charged(make):
    one = [row | {"who": "u"} for row in ROWS]
    assert texts(made(make(one, by_user=True), replace(CLEAR, texts=3)), replace(CLEAR, texts=3))[1] == 3
    assert texts(made(make(ROWS, by_user=True), replace(CLEAR, texts=2)), replace(CLEAR, texts=2))[1] == 8


@pytest.mark.slow
def test_the_same_key_makes_the_same_rows_whatever_was_drawn_before(make):
    assert np.array_equal(made(make()), made(make()))
    assert not np.array_equal(made(make()), made(make(key=b"o" * 32)))


@pytest.mark.slow
def test_a_texts_vector_depends_on_that_text_alone(make):
    """Bit for bit: not on the texts that are encoded beside it."""
    first, _ = texts(made(make(ROWS[:1])))
    many, _ = texts(made(make(ROWS[:12])))
    assert first <= many


@pytest.mark.slow
def test_pairs_leave_as_one_vector_each(make):
    rows = [row | {"other": f"a {WORDS[n % 10]} story"} for n, row in enumerate(ROWS[:6])]
    assert texts(made(make(rows, PAIR, shard={"second": "other"})))[1] == 6


@pytest.mark.slow
def test_scores_leave_as_the_part_of_the_range_that_they_are_in(make):
    rows = [row | {"label": str(value)} for row, value in zip(ROWS, (0.0, 0.24, 0.26, 0.74, 0.76, 1.0), strict=False)]
    mechanism = replace(CLEAR, classes=4, rows=6)
    found = made(make(rows[:6], SCORES), mechanism)
    assert sorted(found[:, -1].tolist()) == [0, 0, 1, 2, 3, 3]


@pytest.mark.parametrize("damage", [b"", b"{}", b"\xff" * 100])
def test_what_is_no_projection_is_refused_before_the_shard_is_opened(make, damage):
    job = make(projection=damage, shard={"source": "/nowhere/at/all.jsonl"})
    with pytest.raises(IntegrityError):
        training.prepare(job, job.work, CLEAR, None)


@pytest.mark.slow
def test_a_projection_of_other_vectors_or_other_numbers_is_refused_before_the_shard_is_opened(make, width):
    other = Projection.fitted(np.random.default_rng(0).normal(size=(200, width + 1)), 2).to_bytes()
    job = make(projection=other, shard={"source": "/nowhere/at/all.jsonl"})
    with pytest.raises(TrainingError, match="the encoder gives"):
        training.prepare(job, job.work, CLEAR, None)
    job = make(shard={"source": "/nowhere/at/all.jsonl"})
    with pytest.raises(TrainingError, match="release has 5"):
        training.prepare(job, job.work, replace(CLEAR, dimensions=5), None)
    with pytest.raises(TrainingError, match="takes 7"):
        training.prepare(job, job.work, replace(CLEAR, classes=7), None)


UNITS = st.lists(st.lists(st.integers(0, 9), min_size=0, max_size=5), min_size=1, max_size=12)


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(UNITS, st.integers(1, 4), st.integers(1, 8), st.data())
def test_a_unit_less_changes_no_more_of_the_chosen_texts_than_a_unit_may_have(units, each, most, data):
    """Whatever texts units share, and whatever labels they give them: the change is counted in rows."""

    def offered(some):
        flat = [(text, (text + place) % 2) for place, unit in some for text in unit]
        rows = [Tokens(np.array([text, 1], np.int32), 2) for text, _ in flat]
        labels = np.array([label for _, label in flat], np.int64)
        stops = np.cumsum([0, *(len(unit) for _, unit in some)])
        members = [range(start, stop) for start, stop in pairwise(stops.tolist())]
        picked = chosen(rows, labels, members, key=KEY, each=each, most=most)
        return {flat[number] for number in picked.tolist()}, len(picked)

    numbered = list(enumerate(units))
    left = data.draw(st.integers(0, len(units) - 1))
    whole, count = offered(numbered)
    less, fewer = offered([unit for unit in numbered if unit[0] != left])
    assert len({text for text, _ in whole}) == count <= most
    # A row changes where its text or its label does; those of one side stand against those of the other.
    assert max(len(whole - less), len(less - whole)) <= each
    assert fewer <= count


def layered(kind="nvib", rows=12):
    return SequencesMechanism(rows, kind, 6, 8, 0.5 if kind == "vib-fixed" else 0.0, 4096, 2)


def layer_for(width, kind="nvib", **tensors):
    """The parameters of a layer that adds as little noise as it may, so that a row shows its text."""
    model = NoisyModel(Form(kind, width, 8, 6, 1, heads=1, sigma=0.5), 3)
    found = dict(model.bottleneck.state_dict())
    if "log_variance.weight" in found:
        found["log_variance.weight"] = torch.zeros_like(found["log_variance.weight"])
        found["log_variance.bias"] = torch.full_like(found["log_variance.bias"], LOG_VARIANCES[0])
    return save({name: each.contiguous() for name, each in (found | tensors).items() if each is not None})


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("count", [0, 1, 5, 20])
def test_as_many_sequences_leave_whatever_a_shard_holds(make, width, kind, count):
    rows = ROWS[:count] or [{"text": "a film", "label": "unheard of", "id": "x", "who": "u"}]
    found = made(make(rows, layer=layer_for(width, kind)), layered(kind))
    assert found.shape == (12, layered(kind).columns)
    sequences = layered(kind).released(found)
    assert np.isfinite(sequences.vectors).all()
    if kind == "nvib":
        assert np.exp(sequences.log_weights).sum(axis=1) == pytest.approx(1, abs=0.02)


def test_a_sequence_never_tells_a_length(make, width):
    """All positions are drawn, those that a text does not have from the prior: none is 0, and none is missing."""
    short, long = ROWS[0] | {"text": "a"}, ROWS[1] | {"text": "the good plot of the great film was bad and slow"}
    sequences = layered(rows=2).released(made(make([short, long], layer=layer_for(width)), layered(rows=2)))
    assert (np.abs(sequences.vectors) > 0).mean() > 0.99


@pytest.mark.slow
def test_a_text_that_stands_twice_leaves_once_and_a_row_is_of_its_own_text(make, width):
    """Noise so small that a text is seen in its row: two draws of it are alike, and two of none are not."""
    content, kinds = layer_for(width, "vtdp"), layered("vtdp")

    def seen(rows):
        first, second = (
            kinds.released(made(make(rows, layer=content, key=key), kinds)).vectors[:, :3].reshape(12, -1)
            for key in (NOISE, b"o" * 32)
        )
        return (np.linalg.norm(first[:, None] - second[None], axis=2).min(axis=1) < 0.5).sum()

    assert seen(ROWS[:1]) == 1
    assert seen([ROWS[0], ROWS[0] | {"id": "again", "label": NAMES[1]}]) == 1
    assert seen([ROWS[0], ROWS[11]]) == 2


@pytest.mark.slow
def test_the_same_key_makes_the_same_sequences(make, width):
    content = layer_for(width)
    first = made(make(layer=content), layered())
    assert np.array_equal(first, made(make(layer=content), layered()))
    assert not np.array_equal(first, made(make(layer=content, key=b"o" * 32), layered()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"mean.weight": None}, "not the parameters"),
        ({"more": torch.zeros(1)}, "not the parameters"),
        ({"mean.bias": torch.zeros(7)}, "mean.bias must be"),
        ({"mean.bias": torch.full((8,), float("nan"))}, "mean.bias must be"),
        ({"log_variance.bias": torch.full((8,), -1e9)}, "log_variance.bias must be"),
    ],
)
def test_a_layer_that_does_not_fit_is_refused_before_the_shard_is_opened(make, width, change, said):
    """The attack: whoever provides a layer may make anything of it."""
    job = make(layer=layer_for(width, **change), shard={"source": "/nowhere/at/all.jsonl"})
    with pytest.raises(TrainingError, match=said):
        training.prepare(job, job.work, layered(), None)


@pytest.mark.parametrize("damage", [b"x", b"{}", b"\xff" * 100])
def test_what_is_no_layer_is_refused_before_the_shard_is_opened(make, damage):
    job = make(layer=damage, shard={"source": "/nowhere/at/all.jsonl"})
    with pytest.raises(TrainingError, match="no safetensors"):
        training.prepare(job, job.work, layered(), None)


@pytest.mark.parametrize("kind", LAYERS)
def test_a_layer_whose_numbers_are_as_large_as_they_may_be_fails_for_no_text(make, width, kind):
    """The attack: numbers that overflow for some texts and not for others would tell which a shard holds."""
    model = NoisyModel(Form(kind, width, 8, 6, 1, heads=1, sigma=0.5), 3)
    huge = {name: torch.full_like(each, 1e6) for name, each in model.bottleneck.state_dict().items()}
    found = made(make(layer=save(huge)), layered(kind))
    assert np.isfinite(layered(kind).released(found).vectors).all()
