"""Samples: no unit moves rows further than is charged, labels tell no more than their epsilon, nothing tells how many
texts there are.
"""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aggregation.accounting.library import GaussianDpEvent
from aggregation.accounting.price import calibrate, price
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.registry import made, numbers_of
from aggregation.mechanisms.samples import SamplesMechanism
from aggregation.noise.stream import NoiseStream

MECHANISM = SamplesMechanism(
    rows=50, dimensions=3, levels=64, noise_multiplier=1.0, texts=1, classes=3, label_epsilon=1.0
)


def stream(number):
    return NoiseStream.insecure(number, "samples")


def drawn(mechanism, vectors, labels, number=0):
    vectors = np.asarray(vectors, np.float64).reshape(-1, mechanism.dimensions)
    return mechanism.drawn(mechanism.contribute(vectors), np.asarray(labels, np.int64), stream(number))


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-1e308, 1e308), min_size=3, max_size=3), min_size=2, max_size=2))
def test_two_texts_are_never_further_apart_than_the_sensitivity(rows):
    first, second = MECHANISM.contribute(np.array(rows))
    assert sum(int(each) ** 2 for each in first - second) <= MECHANISM.sensitivity**2
    assert sum(int(each) ** 2 for each in first) <= MECHANISM.levels**2


def test_opposite_texts_reach_the_sensitivity():
    first, second = MECHANISM.contribute(np.array([[9.0, 0, 0], [-9.0, 0, 0]]))
    assert np.linalg.norm(first - second) == MECHANISM.sensitivity


@pytest.mark.parametrize(("epsilon", "sigma"), [(1, 7.46), (2, 3.99), (4, 2.16), (8, 1.20)])
def test_the_noise_of_one_row_is_that_of_the_analytic_gaussian_mechanism(epsilon, sigma):
    multiplier = calibrate(GaussianDpEvent, epsilon, 1e-5)
    mechanism = replace(MECHANISM, levels=4096, noise_multiplier=multiplier, label_epsilon=0.0)
    assert mechanism.sigma == pytest.approx(sigma, abs=0.006)
    assert price([mechanism.event()], 1e-5).epsilon <= epsilon


@pytest.mark.slow
def test_a_user_of_four_texts_costs_as_a_vector_twice_as_long_and_four_labels():
    one, four = MECHANISM, replace(MECHANISM, texts=4)
    assert four.sensitivity == 2 * one.sensitivity
    assert four.sigma == pytest.approx(2 * one.sigma, rel=1e-3)
    assert price([four.event()], 1e-5).epsilon > price([one.event()], 1e-5).epsilon + 1


def test_vectors_get_the_noise_that_is_charged():
    mechanism = replace(MECHANISM, rows=20_000, label_epsilon=5.0)
    rows = drawn(mechanism, [], [])
    noise = rows[:, :-1].ravel() * mechanism.granularity
    assert noise.std() == pytest.approx(2.0, rel=0.02)
    assert mechanism.sigma == pytest.approx(2.0, rel=1e-3)
    assert abs(noise.mean()) < 0.05


def test_every_party_releases_as_many_rows_whatever_it_holds():
    for texts in (0, 1, 49, 50):
        rows = drawn(MECHANISM, np.zeros((texts, 3)), np.zeros(texts))
        assert rows.shape == (50, 4)


def test_rows_without_a_text_cannot_be_told_from_texts_of_no_length():
    """A text whose vector is zero, with a label that is drawn evenly, is what fills the rows."""
    mechanism = replace(MECHANISM, rows=30_000)
    empty = drawn(mechanism, [], [], 1)
    labels = np.arange(30_000) % 3
    full = drawn(mechanism, np.zeros((30_000, 3)), labels, 2)
    assert np.bincount(empty[:, -1]) / 30_000 == pytest.approx(np.full(3, 1 / 3), abs=0.02)
    assert np.bincount(full[:, -1]) / 30_000 == pytest.approx(np.full(3, 1 / 3), abs=0.02)
    assert empty[:, :-1].std() == pytest.approx(full[:, :-1].std(), rel=0.02)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_labels_are_kept_as_often_as_their_epsilon_says(epsilon):
    mechanism = replace(MECHANISM, rows=60_000, label_epsilon=epsilon)
    said = np.bincount(drawn(mechanism, np.zeros((60_000, 3)), np.full(60_000, 1))[:, -1], minlength=3) / 60_000
    kept = math.exp(epsilon) / (math.exp(epsilon) + 2)
    assert said[1] == pytest.approx(kept, abs=0.01)
    assert said[0] == pytest.approx((1 - kept) / 2, abs=0.01)
    assert mechanism.kept == pytest.approx(kept, rel=1e-9)


@pytest.mark.slow
@settings(deadline=None, max_examples=300)
@given(st.integers(2, 1024), st.floats(1e-6, 20))
def test_no_label_tells_more_than_its_epsilon_exactly(classes, epsilon):
    """In whole words of 64 bits: the most that a kept label may be likelier than each other, remainders counted."""
    mechanism = replace(MECHANISM, classes=classes, label_epsilon=epsilon)
    kept = mechanism._keeps
    least = ((1 << 64) - kept) * ((1 << 64) // (classes - 1))  # of 2^128: what the rarest other label gets
    import mpmath

    with mpmath.workprec(300):
        assert mpmath.mpf(kept) * (1 << 64) <= mpmath.exp(mpmath.mpf(epsilon)) * least


def test_public_labels_leave_as_they_are_and_cost_nothing():
    mechanism = replace(MECHANISM, label_epsilon=0.0)
    labels = np.arange(50) % 3
    rows = drawn(mechanism, np.zeros((50, 3)), labels)
    assert Counter(rows[:, -1].tolist()) == Counter(labels.tolist())
    assert mechanism.event() == GaussianDpEvent(1.0)


@pytest.mark.slow
def test_the_order_of_rows_tells_nothing_of_the_order_of_texts():
    mechanism = replace(MECHANISM, rows=8, noise_multiplier=0.1, label_epsilon=0.0, classes=2)
    places = Counter()
    for number in range(800):
        rows = drawn(mechanism, [[1, 0, 0]] + [[-1, 0, 0]] * 7, [1] + [0] * 7, number)
        places[int(rows[:, -1].argmax())] += 1
    expected = 100
    assert sum((places[place] - expected) ** 2 / expected for place in range(8)) < 24.3  # chi-squared, 7, at 1e-3


def test_the_same_key_makes_the_same_rows():
    first, again = (drawn(MECHANISM, np.eye(3), [0, 1, 2], 5) for _ in range(2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, drawn(MECHANISM, np.eye(3), [0, 1, 2], 6))


@pytest.mark.parametrize("labels", [[3], [-1], [0, 1]], ids=["no class", "below the first", "more than texts"])
def test_labels_that_are_none_are_refused(labels):
    with pytest.raises(IntegrityError):
        drawn(MECHANISM, np.zeros((1, 3)), labels)


def test_more_texts_than_rows_are_refused():
    with pytest.raises(IntegrityError, match="51 texts"):
        drawn(MECHANISM, np.zeros((51, 3)), np.zeros(51))


@pytest.mark.parametrize(
    "vectors", [np.array([[1.0, math.nan, 0]]), np.array([[math.inf, 0, 0]]), np.ones((2, 2)), np.ones(3)]
)
def test_what_is_no_vector_is_refused(vectors):
    with pytest.raises(IntegrityError):
        MECHANISM.contribute(vectors)


@pytest.mark.parametrize(
    "rows",
    [np.zeros((50, 3)), np.zeros((49, 4)), np.full((50, 4), 3), np.full((50, 4), -1)],
    ids=["columns", "rows", "no class", "below the first"],
)
def test_received_rows_that_are_none_are_refused(rows):
    with pytest.raises(IntegrityError):
        MECHANISM.released(rows.astype(np.int64))


def test_received_rows_are_in_units_of_the_clip():
    found = MECHANISM.released(np.full((50, 4), 2))
    assert found.vectors.tolist()[0] == [2 / 64] * 3
    assert found.labels.tolist() == [2] * 50


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", 0), ("rows", (1 << 20) + 1), ("dimensions", 0), ("levels", 0), ("noise_multiplier", 0.0), ("texts", 0),
        ("noise_multiplier", math.inf), ("classes", 1), ("classes", 1025), ("label_epsilon", -1.0), ("rows", True),
        ("label_epsilon", math.nan), ("label_epsilon", 21.0), ("noise_multiplier", 1e-9),
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(ConclaveError):
        replace(MECHANISM, **{name: value})


def test_the_registry_makes_it_again():
    assert made("samples", numbers_of(MECHANISM)) == MECHANISM


def test_every_row_counts_as_a_query():
    assert MECHANISM.queries(1) == 50


def test_the_report_says_rows_noise_and_labels():
    said = MECHANISM.described(50, 4, MECHANISM.forms[0])
    assert "50 rows" in said
    assert "Gaussian noise of 2" in said
    assert "probability 0.5761" in said
    assert "public" in replace(MECHANISM, label_epsilon=0.0).described(50, 4, MECHANISM.forms[0])


def test_the_order_and_the_samplers_distance_are_charged_to_delta():
    """Whoever verifies knows the number of cells alone."""
    assert MECHANISM.slack(50, 4, 1.0) == MECHANISM.slack(200, 1, 1.0) > 50**2 * 2.0**-128
