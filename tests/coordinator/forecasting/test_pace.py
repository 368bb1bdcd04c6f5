"""Lengths of public text, and how long a model takes for texts of them."""

import numpy as np
import pytest
import torch

from coordinator.forecasting import pace
from coordinator.forecasting.pace import Lengths, Span, pace_of
from learning.models.adapting import adapt
from learning.models.encoders import classifier
from learning.text.labelled import LabelMap, ScoreRange

CLASSES = LabelMap(("no", "yes"))


@pytest.fixture
def made(tiny_bert):
    """A small classifier or regression of which all is trained, and its tokenizer."""

    def makes(targets=CLASSES):
        model, tokenizer = classifier(str(tiny_bert), targets, seed=7)
        adapt(model, "full", seed=7)
        return model, tokenizer

    return makes


def lengths(*values):
    return Lengths(np.array(sorted(values), np.int64), known=True)


def test_lengths_are_those_of_the_texts_as_they_are_read(made):
    _, tokenizer = made()
    found = Lengths.of(tokenizer, ["film", "film film film", "film " * 40], longest=16)
    assert found.known
    assert found.values.tolist() == [3, 5, 16]
    assert found.middle == 5
    assert found.cut(4).values.tolist() == [3, 4, 4]
    pairs = Lengths.of(tokenizer, ["film", "film"], ["film", "film film"], longest=16)
    assert pairs.values.tolist() == [5, 6]


def test_without_public_text_every_text_is_taken_to_be_as_long_as_one_may_be(made):
    found = Lengths.of(made()[1], [], longest=16)
    assert not found.known
    assert found.values.tolist() == [16]


@pytest.mark.parametrize("trained", [True, False])
def test_longer_texts_take_longer_and_the_range_is_theirs(made, trained):
    model, _ = made()
    threads = torch.get_num_threads()
    mixed = pace_of(model, lengths(*[8] * 50, *[32] * 50), trained=trained, sample=1e6)
    assert mixed.text.least < mixed.text.likely < mixed.text.most
    assert mixed.text.least * 2 < mixed.text.most
    assert mixed.text.likely == pytest.approx((mixed.text.least + mixed.text.most) / 2, rel=0.001)
    assert mixed.trial > 0
    assert torch.get_num_threads() == threads


def test_a_few_texts_at_a_time_leave_places_empty(made, monkeypatch):
    """Were every micro-batch to take a second, whatever its length."""
    monkeypatch.setattr(pace, "_timed", lambda work: 1.0)
    model, _ = made()
    few, many = (pace_of(model, lengths(*range(8, 33)), trained=False, sample=size) for size in (4, 4000))
    assert few.text.likely > 1.3 * many.text.likely


def test_a_regression_is_measured_as_well(made):
    model, _ = made(ScoreRange(0.0, 5.0))
    assert pace_of(model, lengths(8), trained=True, sample=10).text.likely > 0


def test_a_span_goes_through_a_function():
    assert Span(2.0, 1.0, 3.0).through(lambda each: 10 * each) == Span(20.0, 10.0, 30.0)
