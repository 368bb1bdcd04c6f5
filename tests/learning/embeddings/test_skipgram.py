import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import sparse

from aggregation.errors import IntegrityError
from learning.embeddings import denoising
from learning.embeddings.denoising import denoise
from learning.embeddings.evaluation import context_perplexity, unigram_perplexity
from learning.embeddings.skipgram import SkipGram, fit, fit_noisy, unigram

SIZE, TOPICS = 60, 3
Counts = NDArray[np.float64]


def _expected(size: int = SIZE, pairs: float = 300_000.0) -> Counts:
    """What a language with Zipf's frequencies and three topics leads to: words of one topic meet 4 times as often."""
    frequency = 1 / (np.arange(size) + 5.0)
    topic = np.arange(size) % TOPICS
    counts = np.outer(frequency, frequency) * np.where(topic[:, None] == topic, 4.0, 1.0)
    return np.asarray(counts * pairs / counts.sum(), dtype=np.float64)


def _heldout(size: int = SIZE) -> sparse.csr_array:
    return sparse.csr_array(_expected(size))


def _noisy(sigma: float, seed: int = 0) -> Counts:
    return _expected() + np.random.default_rng(seed).normal(0, sigma, (SIZE, SIZE))


def _topic_is_kept(vectors: NDArray[np.float32], words: int = 30) -> float:
    """Share of the frequent words whose nearest other frequent word is of their topic; 1/3 by chance."""
    unit = vectors[:words] / np.linalg.norm(vectors[:words], axis=1, keepdims=True)
    likeness = unit @ unit.T - 2 * np.eye(words)
    return float((likeness.argmax(axis=1) % TOPICS == np.arange(words) % TOPICS).mean())


def test_probabilities_of_every_centre_sum_to_one() -> None:
    model = fit(_expected(), dimension=4, seed=0, steps=5)
    logarithms = model.log_probabilities(np.arange(SIZE))
    assert logarithms.shape == (SIZE, SIZE)
    np.testing.assert_allclose(np.exp(logarithms).sum(axis=1), 1, rtol=1e-5)


def test_exact_counts_are_learned_to_their_entropy() -> None:
    counts = _expected()
    conditional = counts / counts.sum(axis=1, keepdims=True)
    entropy = float(-(counts * np.log(conditional)).sum() / counts.sum())
    model = fit(counts, dimension=6, seed=0, ridge=1.0)
    assert context_perplexity(model, _heldout()) < np.exp(entropy) * 1.005
    assert _topic_is_kept(model.inputs) == 1.0


def test_dense_and_sparse_counts_give_the_same_student() -> None:
    counts = _expected()
    counts[counts < 30] = 0
    dense, sparsely = fit(counts, dimension=4, seed=0), fit(sparse.csr_array(counts), dimension=4, seed=0)
    np.testing.assert_array_equal(dense.inputs, sparsely.inputs)


@pytest.mark.slow
def test_blocks_do_not_change_what_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """The objective agrees to rounding. The path to its minimum magnifies rounding; where it ends does not."""
    vectors = torch.from_numpy(np.random.default_rng(0).normal(0, 0.3, (SIZE, 4))).float()

    def learn() -> tuple[list[float], list[float]]:
        problem = denoising._Problem(_noisy(20.0), 20.0, 4, 0)
        values = problem._objective(problem.alone.log(), vectors, torch.tensor([1.0, -1.0, 1.0, 1.0]))
        models = fit(_expected(), dimension=4, seed=0), fit_noisy(_noisy(20.0), 20.0, dimension=4, seed=0)
        return [float(value.abs().sum()) for value in values], [context_perplexity(m, _heldout()) for m in models]

    sums, perplexities = learn()
    monkeypatch.setattr("learning.embeddings.skipgram.BLOCK_CELLS", SIZE * 7)
    monkeypatch.setattr("learning.embeddings.denoising.BLOCK_CELLS", SIZE * 7)
    blocked_sums, blocked_perplexities = learn()
    assert blocked_sums == pytest.approx(sums, rel=1e-5)
    assert blocked_perplexities == pytest.approx(perplexities, rel=1e-3)


def test_a_fit_goes_on_from_a_model() -> None:
    first = fit(_expected(), dimension=4, seed=0, steps=100)
    onward = fit(_expected(), dimension=4, seed=1, steps=2, start=first)
    afresh = fit(_expected(), dimension=4, seed=1, steps=2)
    assert context_perplexity(onward, _heldout()) < context_perplexity(afresh, _heldout())
    with pytest.raises(IntegrityError, match="start from"):
        fit(_expected(), dimension=5, seed=0, start=first)


@pytest.mark.parametrize("sigma", [1.0, 20.0, 60.0])
def test_the_noisy_student_beats_the_floor_while_there_is_signal(sigma: float) -> None:
    noisy = _noisy(sigma)
    model = fit_noisy(noisy, sigma, dimension=8, seed=0)
    floor = unigram_perplexity(unigram(noisy, sigma), _heldout())
    assert context_perplexity(model, _heldout()) < floor - 0.5
    assert _topic_is_kept(model.inputs) > 0.8


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("sigma", [300.0, 3_000.0, 1e6])
def test_the_noisy_student_falls_back_on_the_floor_where_the_signal_drowns(sigma: float, seed: int) -> None:
    noisy = _noisy(sigma, seed)
    model = fit_noisy(noisy, sigma, dimension=20, seed=0)
    floor = unigram_perplexity(unigram(noisy, sigma), _heldout())
    assert context_perplexity(model, _heldout()) < floor * 1.05


def test_the_unigram_is_nearer_the_truth_than_noisy_row_sums() -> None:
    truth = _expected().sum(axis=1) / _expected().sum()
    sums = np.maximum(_noisy(60.0).sum(axis=1), 0) + 0.5
    estimate = unigram(_noisy(60.0), 60.0)
    assert estimate.sum() == pytest.approx(1)
    assert (estimate > 0).all()
    assert np.abs(np.log(estimate / truth)).mean() < np.abs(np.log(sums / sums.sum() / truth)).mean()


def test_the_unigram_of_exact_counts_is_their_row_sums() -> None:
    np.testing.assert_allclose(unigram(_expected(), 0), _expected().sum(axis=1) / _expected().sum(), rtol=1e-3)


def test_exact_counts_have_one_unigram_sparse_or_dense_and_noisy_ones_are_dense() -> None:
    counts = np.random.default_rng(0).poisson(0.3, (SIZE, SIZE)).astype(np.float64)
    np.testing.assert_array_equal(unigram(sparse.csr_array(counts), 0), unigram(counts, 0))
    with pytest.raises(IntegrityError, match="dense"):
        unigram(sparse.csr_array(counts), 1.0)


def test_the_gradient_is_that_of_the_objective() -> None:
    rng = np.random.default_rng(5)
    problem = denoising._Problem(_noisy(20.0), 20.0, 3, 0)
    problem.ceiling = 50.0
    bias = torch.from_numpy(np.log(_expected().sum(axis=1) / 500) + rng.normal(0, 0.1, SIZE)).float()
    vectors = torch.from_numpy(rng.normal(0, 0.3, (SIZE, 3))).float()
    signs = torch.tensor([1.0, -1.0, 1.0])
    _, by_bias, by_vectors = problem._objective(bias, vectors, signs)
    step = 1e-2
    for word in (0, 7, 40):
        for gradient, values, place in ((by_bias, bias, (word,)), (by_vectors, vectors, (word, word % 3))):
            losses = []
            for side in (step, -step):
                moved = values.clone()
                moved[place] += side
                there = (moved, vectors, signs) if values is bias else (bias, moved, signs)
                losses.append(float(problem._objective(*there)[0]))
            measured = (losses[0] - losses[1]) / (2 * step)
            assert float(gradient[place]) == pytest.approx(measured, rel=0.05, abs=2.0)


def _digests() -> list[str]:
    models = fit_noisy(_noisy(20.0), 20.0, dimension=8, seed=3), fit(_expected(), dimension=8, seed=3)
    parts = (m.inputs.tobytes() + m.outputs.tobytes() + m.bias.tobytes() for m in models)
    return [hashlib.sha256(part).hexdigest() for part in parts]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_bytes_in_another_process_too() -> None:
    program = "import sys; sys.path.insert(0, sys.argv[1]); import test_skipgram; print(*test_skipgram._digests())"
    command = [sys.executable, "-c", program, str(Path(__file__).parent)]
    environment = os.environ | {"OMP_NUM_THREADS": "3"}  # as Ray sets it for what it starts
    there = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    assert there.stdout.split() == _digests()


def test_another_seed_gives_another_student() -> None:
    first, second = (fit(_expected(), dimension=8, seed=seed, steps=5) for seed in (3, 4))
    assert not np.array_equal(first.inputs, second.inputs)


def test_progress_runs_up_to_one() -> None:
    for learn, counts in ((fit, (_expected(),)), (fit_noisy, (_noisy(20.0), 20.0))):
        heard: list[float] = []
        learn(*counts, dimension=4, seed=0, steps=10, on_step=heard.append)
        assert heard == sorted(heard)
        assert 0 < heard[0] < 0.5
        assert heard[-1] == 1.0


@pytest.mark.parametrize("size", [2, 5])
def test_more_dimensions_than_words_are_filled_with_zeros(size: int) -> None:
    model = fit_noisy(_expected(size), 1.0, dimension=10, seed=0)
    assert model.inputs.shape == (size, 10)
    assert not model.inputs[:, size:].any()
    assert np.isfinite(model.log_probabilities(np.arange(size))).all()


@pytest.mark.slow
def test_counts_of_nothing_at_all_give_a_finite_student() -> None:
    for counts in (np.zeros((SIZE, SIZE)), -_expected()):
        model = fit_noisy(counts, 10.0, dimension=5, seed=0)
        assert np.isfinite(model.log_probabilities(np.arange(SIZE))).all()


def test_the_callers_counts_are_left_alone() -> None:
    counts = _noisy(20.0)
    before = counts.copy()
    denoise(counts, 20.0, dimension=3, seed=0, steps=2)
    np.testing.assert_array_equal(counts, before)


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("nan"), float("inf")])
def test_noise_without_a_positive_sigma_is_refused(sigma: float) -> None:
    with pytest.raises(IntegrityError, match="positive standard deviation"):
        fit_noisy(_noisy(1.0), sigma, seed=0)


def test_counts_that_cannot_be_are_refused() -> None:
    broken = _noisy(1.0)
    broken[3, 4] = np.nan
    with pytest.raises(IntegrityError, match="NaN"):
        fit_noisy(broken, 1.0, seed=0)
    with pytest.raises(IntegrityError, match=r"\(60, 59\)"):
        fit_noisy(_noisy(1.0)[:, 1:], 1.0, seed=0)
    with pytest.raises(IntegrityError, match="not negative"):
        fit(_noisy(100.0), dimension=3, seed=0)
    with pytest.raises(IntegrityError, match="square"):
        fit(_expected()[:, 1:], dimension=3, seed=0)
    with pytest.raises(IntegrityError, match="do not fit"):
        SkipGram(np.zeros((3, 2), np.float32), np.zeros((3, 3), np.float32), np.zeros(3, np.float32))
