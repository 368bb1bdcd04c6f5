"""Rounded vectors keep the norm that is charged, whatever the draws; random rounding keeps means."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from aggregation import clipping
from aggregation.clipping import nearest, rounded_square, stochastic
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.noise.stream import NoiseStream

KEY = bytes(range(32))
FINITE = st.floats(-1e6, 1e6) | st.floats(allow_nan=False, allow_infinity=False)
VECTORS = arrays.arrays(np.float64, st.tuples(st.integers(0, 4), st.integers(1, 12)), elements=FINITE)


def squares(rows):
    return (rows.astype(object) ** 2).sum(axis=1)


@pytest.mark.slow
@settings(deadline=None)
@given(VECTORS, st.floats(1e-3, 1e4), st.integers(1, 5000), st.floats(1e-6, 0.9), st.integers(0, 99))
def test_random_rounding_never_passes_its_bound(vectors, clip, levels, failure, seed):
    rounded = stochastic(vectors, clip, levels, failure, NoiseStream.insecure(seed))
    assert rounded.shape == vectors.shape
    assert rounded.dtype == np.int64
    assert all(square <= rounded_square(levels, vectors.shape[1], failure) for square in squares(rounded))


@pytest.mark.slow
@settings(deadline=None)
@given(VECTORS, st.floats(1e-3, 1e4), st.integers(2, 5000))
def test_rounding_to_the_nearest_never_passes_the_clip(vectors, clip, levels):
    rounded = nearest(vectors, clip, levels)
    assert all(square <= levels**2 for square in squares(rounded))


@pytest.mark.parametrize("failure", [0.5, 1e-6])
def test_words_that_always_say_up_cannot_pass_the_bound(failure):
    """A stream whose draws all round away from 0 is drawn from again and again, then the row is truncated."""

    class Up:
        def uint64(self, count):
            return np.zeros(count, dtype=np.uint64)

    row = np.full((1, 10_000), 0.001)
    rounded = stochastic(row, 1.0, 10, failure, Up())
    assert squares(rounded)[0] <= rounded_square(10, 10_000, failure)
    assert not rounded.any()


@given(st.integers(1, 10**5), st.integers(1, 10**8), st.floats(1e-9, 0.9), st.floats(1e-9, 0.9))
def test_the_bound_is_what_the_paper_says_and_falls_with_the_chance_of_failure(levels, dimension, first, second):
    low, high = sorted((first, second))
    value, root = rounded_square(levels, dimension, high), math.sqrt(dimension)
    assert levels**2 <= value <= (levels + root) ** 2
    likely = levels**2 + dimension / 4 + math.sqrt(2 * math.log(1 / high)) * (levels + root / 2)
    assert value <= likely * (1 + 1e-12)
    assert value <= rounded_square(levels, dimension, low)


def test_random_rounding_is_seldom_done_twice(monkeypatch):
    """At a chance of a half the paper's bound is loose: in a thousand rows, few fail the first draw."""
    tries = []
    real = clipping._squares

    def counted(rows):
        tries.append(len(rows))
        return real(rows)

    monkeypatch.setattr(clipping, "_squares", counted)
    rows = np.random.default_rng(0).normal(size=(1000, 300))
    stochastic(rows, 1.0, 20, 0.5, NoiseStream.from_key(KEY))
    assert tries[0] == 1000
    assert sum(tries[1:]) < 10


def test_random_rounding_keeps_means_and_rounding_to_the_nearest_loses_small_values():
    row = np.random.default_rng(1).normal(size=400)
    row *= 0.9 / np.linalg.norm(row)
    repeats = 4000
    rows = np.tile(row, (repeats, 1))
    mean = stochastic(rows, 1.0, 4, 0.1, NoiseStream.from_key(KEY)).mean(axis=0) / 4
    error = np.abs(mean - row).max()
    assert error < 5 * 0.5 / 4 / math.sqrt(repeats)  # a coordinate's deviation is at most half a step
    assert not nearest(rows[:1], 1.0, 11).any()


@pytest.mark.slow
def test_rounding_again_pulls_towards_zero_and_would_be_seen(monkeypatch):
    """Negative control of the means: a bound that most draws miss biases them."""
    row = np.full((4000, 400), 0.5 / 4 / 20)
    monkeypatch.setattr(clipping, "rounded_square", lambda *_: 5)
    biased = stochastic(row, 1.0, 4, 0.5, NoiseStream.from_key(KEY)).mean() / 4
    assert biased < 0.6 * row[0, 0]


def test_values_on_the_grid_stay_as_they_are():
    rows = np.array([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, -1.0]])
    for rounded in (stochastic(rows, 10.0, 10, 0.1, NoiseStream.from_key(KEY)), nearest(rows, 10.0, 10)):
        assert np.array_equal(rounded, rows)


def test_longer_rows_are_clipped_to_the_norm():
    rows = np.array([[3e300, 4e300], [-30.0, 40.0]])
    assert np.abs(stochastic(rows, 5.0, 500, 0.1, NoiseStream.from_key(KEY)) - [[300, 400], [-300, 400]]).max() <= 1
    assert np.abs(nearest(rows, 5.0, 500) - [[300, 400], [-300, 400]]).max() <= 1


@pytest.mark.parametrize("vectors", [np.zeros(3), np.array([[math.nan]]), np.array([[math.inf]]), np.array([["a"]])])
def test_what_is_no_array_of_numbers_is_refused(vectors):
    with pytest.raises(IntegrityError):
        stochastic(vectors, 1.0, 10, 0.1, NoiseStream.from_key(KEY))
    with pytest.raises(IntegrityError):
        nearest(vectors, 1.0, 10)


@pytest.mark.parametrize(
    ("clip", "levels", "failure"),
    [(0.0, 10, 0.1), (math.inf, 10, 0.1), (1.0, 0, 0.1), (1.0, 1 << 21, 0.1), (1.0, 10, 0.95)],
)
def test_a_setting_out_of_range_is_refused(clip, levels, failure):
    with pytest.raises(ConclaveError):
        stochastic(np.zeros((1, 2)), clip, levels, failure, NoiseStream.from_key(KEY))


def test_too_few_levels_for_rounding_to_the_nearest_are_refused():
    with pytest.raises(ConclaveError, match="levels"):
        nearest(np.ones((1, 400)), 1.0, 10)
