"""The DP-MERF baseline: embeddings are what they claim, bounded unit by unit, and the fit recovers what they hold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse

from aggregation.errors import IntegrityError
from aggregation.mechanisms.vectors import VectorMechanism
from aggregation.noise.stream import NoiseStream
from learning.embeddings import dp_merf
from learning.embeddings.cooccurrence import unit_counts
from learning.embeddings.dp_merf import Features, contribute, embed, fit_sketch
from learning.embeddings.evaluation import context_perplexity, unigram_perplexity
from learning.embeddings.skipgram import SkipGram, fit

SIZE, WIDTH = 40, 24


def some_units(seed: int = 0, count: int = 30) -> sparse.csr_array:
    rng = np.random.default_rng(seed)
    return unit_counts([[rng.integers(-1, SIZE, rng.integers(0, 15)).astype(np.int32)] for _ in range(count)], SIZE)


def by_hand(unit: sparse.csr_array, features: Features) -> NDArray[np.float64]:
    return features.rows.T @ unit.toarray().reshape(SIZE, SIZE) @ features.rows


def truth() -> NDArray[np.float64]:
    """Expected counts of text with two topics, symmetric, [V, V]; common words as Zipf has it."""
    topic = np.where(np.arange(SIZE) % 2, 1.0, -1.0)
    weights = 1 / (np.arange(SIZE) + 2.0)
    joint = np.outer(weights, weights) * np.exp(1.0 * np.outer(topic, topic))
    return joint / joint.sum() * 400_000


def uneven() -> NDArray[np.float64]:
    """The same, with the words' frequencies turned upside down here and there."""
    tilt = np.exp(np.where(np.arange(SIZE) % 5 == 0, 1.5, -0.5))
    joint = truth() * np.outer(tilt, tilt)
    return joint / joint.sum() * 400_000


def noisy(counts: NDArray[np.float64], sigma: float, features: Features) -> NDArray[np.float64]:
    clean = embed(sparse.csr_array(counts.reshape(1, -1)), features)[0]
    return clean + np.random.default_rng(9).normal(0, sigma, clean.shape)


def test_features_have_unit_norm_and_follow_from_the_seed() -> None:
    features = Features.from_seed(SIZE, WIDTH, 3)
    np.testing.assert_allclose(np.linalg.norm(features.rows, axis=1), 1)
    np.testing.assert_array_equal(features.rows, Features.from_seed(SIZE, WIDTH, 3).rows)
    assert not np.array_equal(features.rows, Features.from_seed(SIZE, WIDTH, 4).rows)
    kernel = Features.from_seed(300, 100, 0).rows @ Features.from_seed(300, 100, 0).rows.T
    off = kernel[~np.eye(300, dtype=bool)]
    assert off.mean() == pytest.approx(0, abs=0.005)
    assert off.var() == pytest.approx(1 / 100, rel=0.05)


@pytest.mark.parametrize("rows", [np.ones((3, 2)), np.full((3, 2), np.nan), np.ones(3), np.eye(3, dtype=np.float32)])
def test_features_of_another_norm_or_form_are_refused(rows: NDArray[np.float64]) -> None:
    with pytest.raises(IntegrityError):
        Features(rows)


def test_an_embedding_is_the_isometric_upper_triangle_of_the_features_products() -> None:
    features, units = Features.from_seed(SIZE, WIDTH, 0), some_units()
    vectors = embed(units, features)
    assert vectors.shape == (30, features.dimension) == (30, WIDTH * (WIDTH + 1) // 2)
    upper = np.triu_indices(WIDTH)
    for unit, vector in enumerate(vectors):
        whole = by_hand(units[[unit]], features)
        np.testing.assert_allclose(vector, np.where(upper[0] == upper[1], 1, math.sqrt(2)) * whole[upper], atol=1e-9)
        assert np.linalg.norm(vector) == pytest.approx(float(np.linalg.norm(whole)), abs=1e-9)


def test_an_embedding_depends_on_its_unit_alone_bit_for_bit() -> None:
    features, units = Features.from_seed(SIZE, WIDTH, 0), some_units()
    alone = np.concatenate([embed(units[unit : unit + 1], features) for unit in range(30)])
    np.testing.assert_array_equal(embed(units, features), alone)


def test_a_cell_given_in_two_parts_is_one_cell() -> None:
    features, place = Features.from_seed(SIZE, WIDTH, 0), [3 * SIZE + 4, 4 * SIZE + 3]
    once = sparse.csr_array((np.full(2, 5.0), place, [0, 2]), shape=(1, SIZE * SIZE))
    twice = sparse.csr_array((np.array([2.0, 5.0, 3.0]), [place[0], place[1], place[0]], [0, 3]), shape=once.shape)
    np.testing.assert_allclose(embed(twice, features), embed(once, features), atol=1e-12)


def test_a_unit_without_pairs_is_embedded_as_zeros() -> None:
    assert not embed(sparse.csr_array((2, SIZE * SIZE)), Features.from_seed(SIZE, WIDTH, 0)).any()


def test_units_of_another_vocabulary_are_refused() -> None:
    with pytest.raises(IntegrityError, match="pair counts"):
        embed(sparse.csr_array((2, SIZE)), Features.from_seed(SIZE, WIDTH, 0))


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000), st.floats(0.5, 30), st.integers(0, 29))
def test_leaving_a_unit_out_moves_the_contribution_by_at_most_the_sensitivity(seed: int, clip: float, out: int) -> None:
    features, units = Features.from_seed(SIZE, WIDTH, 0), some_units(seed)
    mechanism = VectorMechanism(clip, 500, 1.0, 1)
    without = units[np.arange(30) != out]
    change = contribute(units, features, mechanism) - contribute(without, features, mechanism)
    assert int(np.square(change).sum()) <= 500**2


def test_slices_do_not_change_the_contribution(monkeypatch: pytest.MonkeyPatch) -> None:
    features, units, mechanism = Features.from_seed(SIZE, WIDTH, 0), some_units(), VectorMechanism(4.0, 500, 1.0, 1)
    whole = contribute(units, features, mechanism)
    assert whole.any()
    monkeypatch.setattr(dp_merf, "_SLICE", 4 * features.dimension)
    np.testing.assert_array_equal(contribute(units, features, mechanism), whole)


def start_model() -> SkipGram:
    return fit(truth(), dimension=4, seed=0)


@pytest.mark.slow
@pytest.mark.parametrize("start", [None, start_model()], ids=["afresh", "public"])
def test_the_fit_recovers_counts_that_the_embedding_holds(start: SkipGram | None) -> None:
    features = Features.from_seed(SIZE, 3 * WIDTH, 1)
    counts = uneven()
    model = fit_sketch(noisy(counts, 1.0, features), 1.0, features, start=start, dimension=4, seed=0, steps=150)
    heldout = sparse.csr_array(counts)
    floor = unigram_perplexity(counts.sum(axis=1) / counts.sum(), heldout)
    best = context_perplexity(fit(counts, dimension=4, seed=0), heldout)
    assert context_perplexity(model, heldout) < best + 0.4 * (floor - best)


def test_where_the_signal_drowns_the_public_model_is_what_is_left() -> None:
    features, start = Features.from_seed(SIZE, WIDTH, 1), start_model()
    model = fit_sketch(noisy(uneven(), 1e7, features), 1e7, features, start=start, dimension=4, seed=0)
    heldout = sparse.csr_array(truth())
    assert context_perplexity(model, heldout) == pytest.approx(context_perplexity(start, heldout), rel=0.03)


def test_a_release_under_the_mechanism_can_be_fitted() -> None:
    features, mechanism = Features.from_seed(SIZE, WIDTH, 1), VectorMechanism(8.0, 200, 1.0, 2)
    total = sum(
        contribute(some_units(party), features, mechanism)
        + mechanism.noise_share((features.dimension,), NoiseStream.insecure(party))
        for party in range(2)
    )
    released = mechanism.release(np.asarray(total), 2)
    told: list[float] = []
    one, two = (
        fit_sketch(released.values, released.sigma, features, dimension=3, seed=5, steps=5, on_step=told.append)
        for _ in range(2)
    )
    np.testing.assert_array_equal(one.inputs, two.inputs)
    assert one.inputs.shape == one.outputs.shape == (SIZE, 3)
    assert told[-1] == 1


def test_the_gradient_is_that_of_the_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dp_merf, "BLOCK_CELLS", 7 * SIZE)
    features = Features.from_seed(SIZE, WIDTH, 1)
    problem = dp_merf._Problem(noisy(uneven(), 50.0, features), 50.0, features, start_model(), 4, 0)
    rng = np.random.default_rng(5)
    tilt = torch.from_numpy(rng.normal(0, 0.3, SIZE)).float()
    vectors = problem.home + torch.from_numpy(rng.normal(0, 0.2, (2 * SIZE, 4))).float()
    _, by_tilt, by_vectors = problem.objective(tilt, vectors)
    step = 1e-2
    for word in (0, 7, 39, SIZE + 2):
        places = [(by_vectors, vectors, (word, word % 4))] + [(by_tilt, tilt, (word,))] * (word < SIZE)
        for gradient, values, place in places:
            kept, losses = values[place].clone(), []
            for side in (step, -step):
                values[place] = kept + side
                losses.append(float(problem.objective(tilt, vectors)[0]))
            values[place] = kept
            assert float(gradient[place]) == pytest.approx((losses[0] - losses[1]) / (2 * step), rel=0.02, abs=1.0)


@pytest.mark.parametrize(
    ("values", "sigma", "start", "reason"),
    [
        (np.zeros(5), 1.0, None, "finite numbers"),
        (np.full(WIDTH * (WIDTH + 1) // 2, np.nan), 1.0, None, "finite numbers"),
        (np.zeros(WIDTH * (WIDTH + 1) // 2), 0.0, None, "positive standard deviation"),
        (np.zeros(WIDTH * (WIDTH + 1) // 2), math.inf, None, "positive standard deviation"),
        (np.zeros(WIDTH * (WIDTH + 1) // 2), 1.0, start_model(), "start from"),
    ],
)
def test_what_cannot_be_a_release_is_refused(
    values: NDArray[np.float64], sigma: float, start: SkipGram | None, reason: str
) -> None:
    with pytest.raises(IntegrityError, match=reason):
        fit_sketch(values, sigma, Features.from_seed(SIZE, WIDTH, 0), start=start, dimension=5, seed=0)
