"""Attacks on noisy sequences: all is found where nothing is hidden, and nothing where all is."""

import numpy as np
import pytest
import torch

from aggregation.errors import ConclaveError
from learning.audits.inversion import nearest_texts
from learning.audits.noisy_sequences import TokenReader, likeliest_samplers
from learning.bottleneck.posterior import Posterior, sampled
from learning.bottleneck.states import TokenStates


def samplers(texts: int, spread: float, *, counts: float | None = None, uneven: float = 0.0) -> Posterior:
    rng = torch.Generator().manual_seed(0)
    shape = (texts, 4, 6)
    return Posterior(
        torch.randn(shape, generator=rng) * spread,
        torch.randn(shape, generator=rng) * uneven,
        None if counts is None else torch.randn(shape[:2], generator=rng) * counts,
        torch.ones(shape[:2], dtype=torch.bool),
    )


def drawn(posterior: Posterior, seed: int = 1):
    return sampled(posterior, torch.Generator().manual_seed(seed))


def test_samplers_far_apart_are_all_told_and_equal_ones_are_guessed():
    far, same = samplers(200, 10.0), samplers(200, 0.0)
    assert likeliest_samplers(drawn(far), far).first == 1.0
    assert likeliest_samplers(drawn(same), same).first == pytest.approx(1 / 200)


def test_variances_tell_a_text_whose_means_do_not():
    posterior = samplers(200, 0.0, uneven=2.0)
    flat = posterior.mean.flatten(1).double().numpy()
    assert likeliest_samplers(drawn(posterior), posterior).first > 0.5
    assert nearest_texts(drawn(posterior).vectors.flatten(1).double().numpy(), flat, np.arange(200)).first < 0.05


def test_weights_tell_a_text_whose_vectors_do_not():
    posterior = samplers(50, 0.0, counts=3.0)
    assert likeliest_samplers(drawn(posterior), posterior).first > 5 / 50


def test_it_is_the_density_of_the_sample():
    posterior = samplers(5, 0.5, counts=0.5, uneven=0.5)
    sample = drawn(posterior)
    logs = np.zeros((5, 5))
    for text in range(5):
        gaussian = torch.distributions.Normal(posterior.mean[text], torch.exp(0.5 * posterior.log_variance[text]))
        weights = torch.distributions.Dirichlet(torch.exp(posterior.log_counts[text]))
        for row in range(5):
            logs[row, text] = gaussian.log_prob(sample.vectors[row]).sum()
            logs[row, text] += weights.log_prob(torch.exp(sample.log_weights[row]).clamp(min=1e-30))
    assert likeliest_samplers(sample, posterior).first == pytest.approx((logs.argmax(axis=1) == np.arange(5)).mean())


def test_samplers_with_gaps_are_refused():
    posterior = samplers(5, 1.0)
    gaps = Posterior(posterior.mean, posterior.log_variance, None, torch.zeros_like(posterior.mask))
    with pytest.raises(ConclaveError, match="Fill the posterior"):
        likeliest_samplers(drawn(posterior), gaps)


def spoken(texts: int, seed: int, noise: float, *, pooled: bool = False) -> tuple[Posterior, TokenStates]:
    """Texts of four tokens of 100, each with a vector of its own; pooled: of the sum of these."""
    rng = np.random.default_rng(seed)
    vectors = np.random.default_rng(5).normal(size=(100, 32))
    pieces = rng.integers(0, 100, (texts, 4))
    mean = torch.from_numpy(vectors[pieces]).float()
    mask = torch.ones((texts, 4), dtype=torch.bool)
    states = TokenStates(mean.half(), mask, torch.from_numpy(pieces).int())
    if pooled:
        mean, mask = mean.sum(dim=1, keepdim=True), mask[:, :1]
    return Posterior(mean, torch.full_like(mean, 2 * float(np.log(noise))), None, mask), states


@pytest.mark.parametrize(("pooled", "least"), [(False, 0.95), (True, 0.5)])
def test_tokens_are_read_where_noise_is_small_and_guessed_where_it_is_large(pooled, least):
    found = []
    for noise in (0.1, 100.0):
        own, states = spoken(1000, 0, noise, pooled=pooled)
        other, theirs = spoken(200, 1, noise, pooled=pooled)
        reader = TokenReader.fitted(drawn(own), own, states)
        found.append(reader.read(drawn(other, 2), theirs, guesses=1))
    assert found[0].precision > least
    assert found[1].precision < 0.2
    assert found[0].usual < 0.2


@pytest.mark.slow
def test_a_prior_component_ahead_of_the_tokens_is_left_out():
    own, states = spoken(1000, 0, 0.1)
    ahead = Posterior(
        torch.nn.functional.pad(own.mean, (0, 0, 1, 0)),
        torch.nn.functional.pad(own.log_variance, (0, 0, 1, 0)),
        None,
        torch.nn.functional.pad(own.mask, (1, 0), value=True),
    )
    reader = TokenReader.fitted(drawn(ahead), ahead, states)
    assert reader.before == 1
    assert reader.read(drawn(ahead, 2), states, guesses=1).precision > 0.95


def test_frequent_and_rare_tokens_are_not_guessed():
    own, states = spoken(1000, 0, 0.1)
    reader = TokenReader.fitted(drawn(own), own, states)
    assert len(reader.numbers) == 50  # of 100, the more frequent half left out
    few, theirs = spoken(3, 0, 0.1)
    with pytest.raises(ConclaveError, match="Give it more"):
        TokenReader.fitted(drawn(few), few, theirs)
    with pytest.raises(ConclaveError, match="cannot be guessed"):
        reader.read(drawn(own), states, guesses=51)
