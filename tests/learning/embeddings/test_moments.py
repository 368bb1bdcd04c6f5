"""Moments along public directions: a unit's vector is what it claims, and the sum is bounded unit by unit."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from aggregation.errors import IntegrityError
from aggregation.mechanisms.vectors import VectorMechanism
from aggregation.noise.stream import NoiseStream
from learning.embeddings import moments
from learning.embeddings.cooccurrence import counts_of, pair_counts, unit_counts
from learning.embeddings.moments import Directions, contribute, embed, public_directions
from learning.embeddings.skipgram import SkipGram, fit

SIZE, RANK = 20, 3


def some_passages(seed: int, count: int = 40) -> list[NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-1, SIZE, rng.integers(0, 12)).astype(np.int32) for _ in range(count)]


def some_units(seed: int = 0, count: int = 40) -> sparse.csr_array:
    return unit_counts([[passage] for passage in some_passages(seed, count)], SIZE)


def some_directions(seed: int = 0) -> Directions:
    rng = np.random.default_rng(seed)
    parts = rng.normal(size=(SIZE, RANK)), rng.normal(size=RANK), rng.uniform(0.5, 2, SIZE)
    return Directions(*(part.astype(np.float32) for part in parts))


@pytest.fixture(scope="module")
def prior() -> SkipGram:
    return fit(counts_of(some_passages(7, 400), SIZE), dimension=6, seed=0)


def mechanism(clip: float, levels: int = 1 << 12) -> VectorMechanism:
    return VectorMechanism(clip, levels, 1.0, 1)


def test_a_unit_comes_to_its_weighted_frequencies_and_its_moments() -> None:
    units, directions = some_units(), some_directions()
    augmented = np.hstack([np.ones((SIZE, 1)), directions.vectors.astype(np.float64)])
    for unit, row in enumerate(embed(units, directions)):
        counts = units[[unit]].toarray().reshape(SIZE, SIZE)
        frequencies, found = directions.unpack(row)
        np.testing.assert_allclose(frequencies, counts.sum(axis=1), atol=1e-9)
        np.testing.assert_allclose(found, augmented.T @ counts @ augmented, atol=1e-9)
        norm = (counts.sum(axis=1) * directions.weights) ** 2
        assert row @ row == pytest.approx(norm.sum() + (found**2).sum())


def test_one_end_of_a_pair_says_as_much_as_both() -> None:
    directions = some_directions()
    one_end, both = np.zeros((2, SIZE, SIZE))
    one_end[3, 5], both[3, 5], both[5, 3] = 1.0, 0.5, 0.5
    rows = sparse.csr_array(np.stack([one_end.ravel(), both.ravel()]))
    first, second = embed(rows, directions)
    np.testing.assert_allclose(first, second)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), removed=st.integers(0, 39), clip=st.floats(0.5, 50))
def test_removing_a_unit_moves_the_sum_by_the_sensitivity_at_most(seed: int, removed: int, clip: float) -> None:
    units, bound = some_units(seed), mechanism(clip)
    others = sparse.csr_array(units[np.delete(np.arange(40), removed)])
    change = contribute(units, some_directions(), bound) - contribute(others, some_directions(), bound)
    assert math.sqrt((change.astype(object) ** 2).sum()) <= bound.sensitivity


def test_slices_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = contribute(some_units(), some_directions(), mechanism(9.0))
    monkeypatch.setattr(moments, "_SLICE", some_directions().columns * 7)
    np.testing.assert_array_equal(contribute(some_units(), some_directions(), mechanism(9.0)), whole)


def test_equal_pairs_count_as_often_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = pair_counts(some_passages(3), SIZE)
    together = contribute(pairs, some_directions(), mechanism(2.0))
    monkeypatch.setattr(moments, "alike", lambda units: [(units, 1)])
    np.testing.assert_array_equal(contribute(pairs, some_directions(), mechanism(2.0)), together)


@pytest.mark.slow
def test_the_sum_over_parties_is_released_as_frequencies_and_moments() -> None:
    units, directions, bound = some_units(), some_directions(), mechanism(400.0, 1 << 13)
    exact = units.sum(axis=0).reshape(SIZE, SIZE)
    total = contribute(some_units(0), directions, bound)
    noise = bound.noise_share(total.shape, NoiseStream.insecure(0, "moments"))
    frequencies, found = directions.unpack(bound.release(total, 1).values)
    np.testing.assert_allclose(frequencies, exact.sum(axis=1), atol=2.0)
    assert found[0, 0] == pytest.approx(exact.sum(), abs=2.0)
    released = bound.release(total + noise, 1)
    assert released.values.shape == (directions.columns,)
    assert released.sigma == pytest.approx(400, rel=1e-3)


def test_public_directions_have_variance_one_and_the_priors_order(prior: SkipGram) -> None:
    units = some_units(5, 300)
    directions, clip = public_directions(prior, units, rank=RANK)
    assert directions.vectors.shape == (SIZE, RANK)
    assert (np.diff(np.abs(directions.strengths)) <= 0).all()
    shares = directions.weights.astype(np.float64) ** -2
    shares /= shares.sum()
    second = (directions.vectors * shares[:, None]).T @ directions.vectors
    np.testing.assert_allclose(second, np.eye(RANK), atol=1e-4)
    norms = np.linalg.norm(embed(units, directions), axis=1)
    assert (norms[norms > 0] <= clip).mean() == pytest.approx(moments.QUANTILE, abs=0.02)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), size=st.integers(4, 30), width=st.integers(1, 6))
def test_the_leading_directions_are_those_of_the_whole_matrix(seed: int, size: int, width: int) -> None:
    left, right = np.random.default_rng(seed).normal(size=(2, size, width))
    whole = (left @ right.T + right @ left.T) / 2
    rank = min(size, 2 * width)
    values, vectors = moments._leading(left, right, rank)
    np.testing.assert_allclose((vectors * values) @ vectors.T, whole, atol=1e-9)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(rank), atol=1e-9)
    known = np.linalg.eigvalsh(whole)
    np.testing.assert_allclose(values, known[np.argsort(-np.abs(known), kind="stable")][:rank], atol=1e-9)
    assert (vectors.max(axis=0) >= -vectors.min(axis=0)).all(), "an eigenvector's largest coordinate is above 0"
    fewer, first = moments._leading(left, right, 1)
    np.testing.assert_array_equal(first, vectors[:, :1])
    assert fewer == values[:1]


def test_more_directions_than_the_prior_has_are_still_orthonormal() -> None:
    left, right = np.random.default_rng(0).normal(size=(2, 12, 2))
    values, vectors = moments._leading(left, right, 9)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(9), atol=1e-9)
    np.testing.assert_allclose(values[4:], 0, atol=1e-9)


def test_directions_of_many_words_take_no_matrix_of_words_times_words() -> None:
    size, width = 1500, 4
    rng = np.random.default_rng(0)
    inputs, outputs = rng.normal(size=(2, size, width)).astype(np.float32)
    passages = [rng.integers(0, size, 20).astype(np.int32) for _ in range(5)]
    units = unit_counts([[passage] for passage in passages], size)
    tracemalloc.start()
    public_directions(SkipGram(inputs, outputs, np.zeros(size, np.float32)), units, rank=width)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < size * size * 8 / 4


def test_no_public_pair_is_clipped_where_pairs_are_units(prior: SkipGram) -> None:
    pairs = pair_counts(some_passages(5, 100), SIZE)
    directions, clip = public_directions(prior, pairs, rank=RANK)
    assert np.linalg.norm(embed(pairs, directions), axis=1).max() <= clip * (1 + 1e-9)


@pytest.mark.parametrize("share", [0.3, 0.8])
def test_frequencies_take_their_share_of_a_usual_unit(prior: SkipGram, share: float) -> None:
    units = some_units(5, 300)
    directions, _ = public_directions(prior, units, rank=RANK, share=share)
    rows = embed(units, directions)[np.diff(units.indptr) > 0]
    squares = (rows[:, :SIZE] ** 2).sum(axis=1), (rows[:, SIZE:] ** 2).sum(axis=1)
    ratio = np.exp(np.log(squares[0]).mean() - np.log(squares[1]).mean())
    assert ratio == pytest.approx(share / (1 - share), rel=1e-3)


def test_directions_travel_as_bytes(prior: SkipGram) -> None:
    directions, _ = public_directions(prior, some_units(), rank=RANK)
    content = directions.to_bytes()
    again = Directions.from_bytes(content)
    assert again.to_bytes() == content
    np.testing.assert_array_equal(again.vectors, directions.vectors)
    for broken in (b"", content[:-3], SIZE.to_bytes(8, "little")):
        with pytest.raises(IntegrityError, match="cut short"):
            Directions.from_bytes(broken)


def test_without_directions_frequencies_alone_are_left(prior: SkipGram) -> None:
    directions, clip = public_directions(prior, some_units(), rank=0)
    assert directions.columns == SIZE + 1
    assert clip > 0
    assert embed(some_units(), directions).shape == (40, SIZE + 1)


def test_what_does_not_fit_is_refused(prior: SkipGram) -> None:
    units, directions = some_units(), some_directions()
    with pytest.raises(IntegrityError, match="pair counts"):
        embed(sparse.csr_array(units[:, 1:]), directions)
    with pytest.raises(IntegrityError, match="pair counts"):
        public_directions(prior, sparse.csr_array(units[:, 1:]), rank=RANK)
    with pytest.raises(IntegrityError, match="rank"):
        public_directions(prior, units, rank=SIZE + 1)
    with pytest.raises(IntegrityError, match="share"):
        public_directions(prior, units, rank=RANK, share=1.0)
    with pytest.raises(IntegrityError, match="quantile"):
        public_directions(prior, units, rank=RANK, quantile=0.0)
    with pytest.raises(IntegrityError, match="more of them"):
        public_directions(prior, sparse.csr_array(units * 0), rank=RANK)
    with pytest.raises(IntegrityError, match="finite numbers"):
        directions.unpack(np.full(directions.columns, np.nan))
    with pytest.raises(IntegrityError, match="do not fit"):
        Directions(directions.vectors, directions.strengths[1:], directions.weights)
    with pytest.raises(IntegrityError, match="above 0"):
        Directions(directions.vectors, directions.strengths, -directions.weights)
