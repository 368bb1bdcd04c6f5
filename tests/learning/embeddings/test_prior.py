"""The student from noisy moments: a good public model helps, a misleading one hardly hurts, noise leaves the floor."""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import sparse

from aggregation.errors import IntegrityError
from aggregation.mechanisms.mechanism import Released
from learning.embeddings import prior as prior_module
from learning.embeddings.evaluation import context_perplexity, unigram_perplexity
from learning.embeddings.moments import Directions, embed, public_directions
from learning.embeddings.prior import fit_moments, frequencies_of
from learning.embeddings.skipgram import SkipGram, fit

SIZE, TOPICS, RANK, PAIRS = 60, 3, 8, 300_000.0
Counts = NDArray[np.float64]


def language(topics: NDArray[np.int64], tilt: float = 0.0) -> Counts:
    """Expected counts where words of one topic meet four times as often; frequencies by Zipf's law, tilted by word."""
    frequency = np.exp(tilt * np.cos(np.arange(SIZE))) / (np.arange(SIZE) + 5.0)
    counts = np.outer(frequency, frequency) * np.where(topics[:, None] == topics, 4.0, 1.0)
    return np.asarray(counts * PAIRS / counts.sum(), dtype=np.float64)


TRUE = np.arange(SIZE) % TOPICS
OTHER = np.random.default_rng(1).permutation(TRUE)
PRIVATE = language(TRUE, tilt=1.0)


def directions_of(topics: NDArray[np.int64], rank: int = RANK) -> Directions:
    """What public text with these topics, and no tilt, leads to."""
    public = language(topics)
    rng = np.random.default_rng(2)
    units = sparse.csr_array(rng.poisson(public / PAIRS * 60, (200, SIZE, SIZE)).reshape(200, -1).astype(np.float64))
    model = fit(public, dimension=RANK, seed=0, ridge=1.0)
    return public_directions(model, units, rank=rank)[0]


def release(directions: Directions, sigma: float, seed: int = 0, counts: Counts = PRIVATE) -> Released:
    """Sigma in a unit's norm for a unit of 60 pairs, or so: 1 is the noise of a release at an epsilon of about 4."""
    clean = embed(sparse.csr_array(counts.reshape(1, -1)), directions)[0]
    return Released(clean + np.random.default_rng(seed).normal(0, sigma, clean.shape), sigma)


def judge(model: SkipGram) -> float:
    return context_perplexity(model, sparse.csr_array(PRIVATE))


def floor(released: Released, directions: Directions) -> float:
    return unigram_perplexity(frequencies_of(released, directions), sparse.csr_array(PRIVATE))


def _problem(released: Released, directions: Directions) -> prior_module._Problem:
    return prior_module._Problem(released, directions, frequencies_of(released, directions))


@pytest.fixture(scope="module")
def good() -> Directions:
    return directions_of(TRUE)


@pytest.fixture(scope="module")
def misleading() -> Directions:
    return directions_of(OTHER)


def best() -> float:
    conditional = PRIVATE / PRIVATE.sum(axis=1, keepdims=True)
    return float(np.exp(-(PRIVATE * np.log(conditional)).sum() / PRIVATE.sum()))


def test_with_hardly_any_noise_the_student_is_as_good_as_can_be(good: Directions) -> None:
    assert judge(fit_moments(release(good, 1.0), good)) < best() * 1.005


@pytest.mark.parametrize("sigma", [100.0, 1000.0])
def test_a_good_prior_helps_where_noise_hides_what_it_knows(good: Directions, sigma: float) -> None:
    released = release(good, sigma)
    assert judge(fit_moments(released, good)) < floor(released, good) * 0.97


def test_the_public_interaction_is_kept_where_it_is_right(good: Directions, misleading: Directions) -> None:
    def trusted(directions: Directions) -> float:
        released = release(directions, 300.0)
        return _problem(released, directions).trust().public

    assert trusted(good) >= 0.75
    assert trusted(misleading) <= 0.25


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sigma", [10.0, 300.0])
def test_a_misleading_prior_hardly_hurts(misleading: Directions, sigma: float, seed: int) -> None:
    released = release(misleading, sigma, seed)
    assert judge(fit_moments(released, misleading)) < floor(released, misleading) * 1.02


@pytest.mark.slow
def test_a_misleading_prior_hardly_hurts_where_noise_hides_nearly_all(misleading: Directions) -> None:
    """Without the noise of the means in the model, two of these twelve were at 1.8 and 3.7 times the floor."""
    found = []
    for seed in range(12):
        released = release(misleading, 1000.0, seed)
        found.append(judge(fit_moments(released, misleading)) / floor(released, misleading))
    assert np.mean(found) < 1.03
    assert max(found) < 1.2


@pytest.mark.parametrize("sigma", [1e5, 1e8])
def test_nothing_but_noise_leaves_the_public_frequencies_and_stays_finite(good: Directions, sigma: float) -> None:
    released = release(good, sigma)
    public = good.weights.astype(np.float64) ** -2
    found = frequencies_of(released, good)
    assert np.abs(np.log(found * public.sum() / public)).max() < 2.5
    assert judge(fit_moments(released, good)) < SIZE * 1.5


def test_released_frequencies_are_found_again_and_beat_public_ones(good: Directions) -> None:
    truth = PRIVATE.sum(axis=1) / PRIVATE.sum()
    found = frequencies_of(release(good, 30.0), good)
    assert found.sum() == pytest.approx(1)
    assert np.abs(np.log(found / truth)).max() < 0.2
    public = good.weights.astype(np.float64) ** -2
    assert unigram_perplexity(found, sparse.csr_array(PRIVATE)) < 0.97 * unigram_perplexity(
        public / public.sum(), sparse.csr_array(PRIVATE)
    )


def test_frequencies_alone_give_the_floor(good: Directions) -> None:
    alone = directions_of(TRUE, rank=0)
    released = release(alone, 30.0)
    model = fit_moments(released, alone)
    assert model.inputs.shape == (SIZE, 0)
    assert judge(model) == pytest.approx(floor(released, alone), rel=1e-5)


def test_moments_are_taken_about_the_frequencies_also_where_clipping_gave_others(good: Directions) -> None:
    other = language(TRUE, tilt=-0.5) / 2
    values = release(good, 1e-3).values
    values[SIZE:] = release(good, 1e-3, counts=other).values[SIZE:]
    problem = _problem(Released(values, 1e-3), good)
    vectors = problem.vectors.double().numpy()
    np.testing.assert_allclose(problem.moments, vectors.T @ other @ vectors / other.sum(), atol=1e-3)
    mean = problem.frequencies.double().numpy() @ vectors
    np.testing.assert_allclose(mean, 0, atol=1e-5)


def test_shells_that_show_only_noise_keep_the_public_values(good: Directions, monkeypatch: pytest.MonkeyPatch) -> None:
    """Residuals drawn as noise alone: the likeliest variance is then above the smallest about every second time."""
    monkeypatch.setattr(prior_module, "TRUSTS", (1.0,))
    problem = _problem(release(good, 300.0, counts=language(TRUE)), good)
    expected, opened = problem._balanced(1.0)[1], []
    for seed in range(20):
        noise = np.random.default_rng(seed).normal(size=(RANK, RANK)) * np.sqrt(problem.noise)
        problem.moments = expected + np.triu(noise) + np.triu(noise, 1).T
        opened.append((problem.trust().variance > prior_module._VARIANCES[0]).mean())
    assert np.mean(opened) < 0.1


def test_the_gradient_leads_to_the_moments(good: Directions) -> None:
    """At the minimum without a prior the model's margins and moments are those released: the family's own equations."""
    released = release(good, 1e-3)
    model = fit_moments(released, good, steps=100)
    joint = np.exp(model.log_probabilities(np.arange(SIZE)).astype(np.float64)) * PRIVATE.sum(axis=1, keepdims=True)
    vectors = good.vectors.astype(np.float64)
    scale = np.abs(vectors.T @ PRIVATE @ vectors).max()
    np.testing.assert_allclose(vectors.T @ joint @ vectors / scale, vectors.T @ PRIVATE @ vectors / scale, atol=2e-3)


def test_blocks_do_not_change_what_is_learned(good: Directions, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = judge(fit_moments(release(good, 100.0), good))
    monkeypatch.setattr(prior_module, "BLOCK_CELLS", SIZE * 7)
    assert judge(fit_moments(release(good, 100.0), good)) == pytest.approx(whole, rel=1e-4)


def test_the_same_values_give_the_same_bytes_and_are_left_alone(good: Directions) -> None:
    released = release(good, 100.0)
    before = released.values.copy()
    first, second = fit_moments(released, good), fit_moments(released, good)
    assert first.inputs.tobytes() == second.inputs.tobytes()
    np.testing.assert_array_equal(released.values, before)
    assert torch.is_grad_enabled()


def test_progress_runs_up_to_one(good: Directions) -> None:
    heard: list[float] = []
    fit_moments(release(good, 100.0), good, on_step=heard.append)
    assert heard == sorted(heard)
    assert heard[-1] == 1.0


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf")])
def test_noise_without_a_positive_sigma_is_refused(good: Directions, sigma: float) -> None:
    with pytest.raises(IntegrityError, match="positive standard deviation"):
        fit_moments(Released(np.zeros(good.columns), sigma), good)


def test_values_of_other_directions_are_refused(good: Directions) -> None:
    with pytest.raises(IntegrityError, match="finite numbers"):
        fit_moments(Released(np.zeros(good.columns - 1), 1.0), good)
