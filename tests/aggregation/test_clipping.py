"""Clipping: no row on the grid is longer than the bound, and none depends on its neighbours."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregation.clipping import to_grid
from aggregation.errors import IntegrityError

VALUES = st.one_of(
    st.integers(-9, 9).map(float), st.floats(-1e308, 1e308), st.floats(-20, 20), st.floats(-1e-300, 1e-300)
)
ROWS = st.integers(1, 9).flatmap(
    lambda width: st.lists(st.lists(VALUES, min_size=width, max_size=width), min_size=1, max_size=5)
)
CLIPS = st.one_of(st.floats(1e-3, 1e3), st.sampled_from([1.0, 5.0, 16.0]))
LEVELS = st.one_of(st.integers(1, 300), st.integers(1 << 19, 1 << 20))


def squares(row):
    return sum(int(step) ** 2 for step in row)


def test_a_long_row_keeps_its_direction():
    assert to_grid(np.array([[300.0, -400.0], [0.0, 0.5]]), 1.0, 10).tolist() == [[6, -8], [0, 5]]


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(ROWS, CLIPS, LEVELS)
def test_no_row_is_longer_than_the_bound(rows, clip, levels):
    steps = to_grid(np.array(rows), clip, levels)
    assert steps.dtype == np.int64
    assert all(squares(row) <= levels**2 for row in steps)


@pytest.mark.slow
@settings(deadline=None)
@given(ROWS, CLIPS, LEVELS)
def test_a_row_comes_out_the_same_whatever_stands_beside_it(rows, clip, levels):
    together = to_grid(np.array(rows), clip, levels)
    alone = np.concatenate([to_grid(np.array([row]), clip, levels) for row in rows])
    assert np.array_equal(together, alone)


@pytest.mark.parametrize("order", ["C", "F"])
def test_wide_rows_too_come_out_the_same_whatever_stands_beside_them(order):
    rows = np.asarray(np.random.default_rng(5).normal(size=(40, 333)), order=order)
    alone = np.concatenate([to_grid(row[None], 1.0, 1 << 20) for row in rows])
    assert np.array_equal(to_grid(rows, 1.0, 1 << 20), alone)


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(LEVELS, st.lists(st.integers(-1000, 1000), min_size=1, max_size=6), st.floats(0.1, 1e6))
def test_a_row_keeps_its_direction_to_within_a_step(levels, values, stretch):
    row = np.array(values) * stretch
    steps = to_grid(row[None], 1.0, levels)[0]
    norm = max(float(np.linalg.norm(row)), 1.0)
    assert np.abs(steps - row / norm * levels).max() <= 1 + 1e-6


@pytest.mark.slow
@given(ROWS, CLIPS, LEVELS)
@settings(deadline=None)
def test_the_opposite_vector_has_the_opposite_steps(rows, clip, levels):
    assert np.array_equal(to_grid(-np.array(rows), clip, levels), -to_grid(np.array(rows), clip, levels))


def test_a_row_within_the_bound_is_rounded_to_the_nearest_step():
    assert to_grid(np.array([[2.6, -1.4, -0.5001]]), 5.0, 5).tolist() == [[3, -1, -1]]


def test_a_row_that_would_round_past_the_bound_is_truncated_towards_zero():
    # 5/sqrt(3) = 2.89 each: rounded to 3, the norm^2 would be 27 > 25
    assert to_grid(np.array([[9.0, -9.0, 9.0]]), 1.0, 5).tolist() == [[2, -2, 2]]


def test_even_a_norm_that_comes_out_wrong_cannot_break_the_bound(monkeypatch):
    true_sqrt = np.sqrt
    monkeypatch.setattr(np, "sqrt", lambda values: np.maximum(true_sqrt(values) * 0.5, 1.0))
    steps = to_grid(np.array([[3.0, -3.0, 3.0, -3.0]]), 1.0, 50)
    assert squares(steps[0]) <= 2500
    assert np.sign(steps[0]).tolist() == [1, -1, 1, -1]


def test_zero_huge_and_tiny_rows_are_fine():
    rows = np.array([[0.0, 0.0], [-1.7e308, 1.7e308], [5e-324, -5e-324], [1e-300, 4.0]])
    assert to_grid(rows, 4.0, 100).tolist() == [[0, 0], [-70, 70], [0, 0], [0, 100]]


@pytest.mark.parametrize("shape", [(0, 3), (3, 0)])
def test_nothing_stays_nothing(shape):
    assert to_grid(np.zeros(shape), 1.0, 10).shape == shape


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int32])
def test_other_real_numbers_are_taken_as_they_are(kind):
    assert to_grid(np.array([[3, -4]], dtype=kind), 10.0, 10).tolist() == [[3, -4]]


@pytest.mark.parametrize(
    ("vectors", "reason"),
    [
        (np.array([[1.0, math.nan]]), "NaN"),
        (np.array([[1.0, -math.inf]]), "infinity"),
        (np.ones(3), "ndarray of 1 dimensions"),
        ([[1.0]], "list of"),
        (np.ones((1, 2), dtype=complex), "complex"),
        (np.ones((1, 2), dtype=bool), "bool"),
        (np.array([[object()]]), "object"),
    ],
)
def test_what_is_no_matrix_of_finite_numbers_is_refused(vectors, reason):
    with pytest.raises(IntegrityError, match=reason):
        to_grid(vectors, 1.0, 10)
