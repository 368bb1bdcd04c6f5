"""Answers after a training that was paid for: the same sums as under noise, no noise, no price."""

import math

import numpy as np
import pytest
from dp_accounting import NoOpDpEvent

from aggregation.accounting.price import price
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.joint import TeacherSignal
from aggregation.noise.stream import NoiseStream

FREE = FreeAnswers(after="training", classes=3, layers=2, width=4, clip=1.0, levels=2**20)
VOTES = np.array([[0, 2], [0, 1], [2, 1]])


def states(scale=0.3):
    return np.random.default_rng(0).normal(0, scale, (3, 2, 2, 4)).astype(np.float32)


def released(mechanism, signal, present=1):
    return mechanism.release(mechanism.contribute(signal).toarray(), present)


def test_votes_are_counted_and_hidden_states_summed_to_the_grid():
    answered = released(FREE, TeacherSignal(VOTES, states(0.1)))
    np.testing.assert_array_equal(answered.votes.values, [[2, 0, 1], [0, 2, 1]])
    expected = states(0.1).astype(np.float64).sum(axis=0).reshape(2, 8)
    np.testing.assert_allclose(answered.hidden.values, expected, atol=3 * 2**-20)
    assert (answered.votes.sigma, answered.hidden.sigma) == (0.0, 0.0)


def test_vectors_beyond_the_clip_are_shortened_to_it():
    answered = released(FREE, TeacherSignal(VOTES[:1], states(50.0)[:1]))
    norms = np.linalg.norm(answered.hidden.values.reshape(2, 2, 4), axis=2)
    assert (norms <= 1 + 1e-9).all()
    np.testing.assert_allclose(norms, 1, atol=1e-5)


def test_there_is_no_noise_and_nothing_to_pay():
    assert not FREE.noise_share((5, FREE.columns), NoiseStream.from_key(b"k" * 32)).any()
    assert isinstance(FREE.event(), NoOpDpEvent)
    assert price([FREE.event()], 1e-6).epsilon == 0
    assert FREE.slack(10**9, 1, 8.0) == 0


@pytest.mark.parametrize(("change", "columns"), [({}, 11), ({"layers": 0}, 3), ({"classes": 0}, 8)])
def test_a_part_that_is_not_asked_has_no_columns(change, columns):
    mechanism = FreeAnswers(**{name: getattr(FREE, name) for name in FREE.__slots__} | change)
    assert mechanism.columns == columns
    signal = TeacherSignal(VOTES if mechanism.classes else None, states() if mechanism.layers else None)
    answered = released(mechanism, signal)
    assert (answered.votes is None) == (mechanism.classes == 0)
    assert (answered.hidden is None) == (mechanism.layers == 0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"after": ""}, "none is named"),
        ({"classes": 0, "layers": 0}, "votes, hidden states or both"),
        ({"classes": 1}, "classes is 1"),
        ({"layers": -1}, "layers is -1"),
        ({"width": 0}, "width is 0"),
        ({"clip": 0.0}, "clip is 0"),
        ({"clip": math.nan}, "clip is nan"),
        ({"clip": math.inf}, "clip is inf"),
        ({"levels": 0}, "levels is 0|noise is 0"),
        ({"levels": 2**20 + 1}, "levels is"),
    ],
)
def test_settings_out_of_range_are_refused(change, says):
    with pytest.raises(ConclaveError, match=says):
        FreeAnswers(**{name: getattr(FREE, name) for name in FREE.__slots__} | change)


@pytest.mark.parametrize("total", [np.zeros((2, 10), np.int64), np.zeros(11, np.int64), np.zeros((2, 11))])
def test_a_total_of_another_shape_or_kind_is_refused(total):
    with pytest.raises(IntegrityError, match="integers of 11 columns"):
        FREE.release(total, 1)


@pytest.mark.parametrize("signal", [TeacherSignal(VOTES, None), TeacherSignal(None, states())])
def test_a_part_that_is_missing_is_refused(signal):
    with pytest.raises(IntegrityError, match="asked and missing"):
        FREE.contribute(signal)
