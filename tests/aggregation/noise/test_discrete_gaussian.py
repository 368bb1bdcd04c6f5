"""Discrete Gaussian shares have the distribution that is charged."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import stats

from aggregation.errors import ConclaveError
from aggregation.noise.discrete_gaussian import DiscreteGaussian, _table
from aggregation.noise.rounded_gaussian import RoundedGaussian
from aggregation.noise.stream import NoiseStream

KEY = bytes(range(32))


def masses(sigma, reach):
    """P(k) at k = 0 .. reach, mpmath."""
    weights = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(sigma) ** 2)) for k in range(reach + 1)]
    whole = mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * mpmath.mpf(sigma) ** 2)))  # sum over all integers
    return [weight / whole for weight in weights]


def p_value(samples, sigma):
    """Chi-square against the discrete Gaussian over cells of expected count >= 20."""
    edge = int(3.2 * sigma)
    weights = np.exp(-(np.arange(-math.ceil(20 * sigma), math.ceil(20 * sigma) + 1) ** 2) / (2 * sigma**2))
    middle = len(weights) // 2
    expected = weights[middle - edge : middle + edge + 1] / weights.sum() * samples.size
    observed = np.bincount(samples[np.abs(samples) <= edge] + edge, minlength=2 * edge + 1)
    expected, observed = (
        np.append(expected, samples.size - expected.sum()),
        np.append(observed, samples.size - observed.sum()),
    )
    assert expected.min() >= 20
    return stats.chisquare(observed, expected).pvalue


@pytest.mark.parametrize("sigma", [2.0, 17.3])
def test_every_threshold_is_within_two_to_the_minus_128_of_the_truth(sigma):
    table = _table(sigma)
    with mpmath.workprec(400):
        mass = masses(sigma, table.reach)
        running = (1 - mass[0]) / 2 - sum(mass[1:])
        assert 0 < running * 2**137 < 1
        for i in range(table.reach):
            running += mass[table.reach - i]
            for at, right in ((i, running), (-1 - i, 1 - running)):
                threshold = mpmath.mpf((int(table.upper[at]) << 64) | int(table.lower[at])) / 2**128
                assert abs(threshold - right) < mpmath.mpf(2) ** -128


@pytest.mark.parametrize("sigma", [2.0, 17.3])
def test_total_variation_bounds_the_true_distance_of_one_sample(sigma):
    table = _table(sigma)
    edges = [0, *((int(a) << 64) | int(b) for a, b in zip(table.upper, table.lower, strict=True)), 1 << 128]
    with mpmath.workprec(500):
        mass = masses(sigma, table.reach)
        ideal = mass[:0:-1] + mass
        drawn = [mpmath.mpf(high - low) / 2**128 for low, high in pairwise(edges)]
        distance = sum(abs(p - q) for p, q in zip(drawn, ideal, strict=True)) + 1 - sum(ideal)
        assert 0 < distance / 2 <= DiscreteGaussian(sigma).total_variation < 1e-34


@pytest.mark.parametrize("sigma", [2.0, 30.0])
def test_samples_have_the_exact_distribution(sigma):
    samples = DiscreteGaussian(sigma).sample((1_000_000,), NoiseStream.from_key(KEY).child(int(sigma)))
    assert p_value(samples, sigma) > 1e-3


@pytest.mark.slow
def test_a_sigma_half_a_percent_off_or_a_rounded_normal_would_be_seen():
    """Power of the chi-square trial: at a million samples it rejects this sigma, at ten the 1/12 that rounding adds."""
    off = DiscreteGaussian(4.02).sample((1_000_000,), NoiseStream.from_key(KEY).child("off"))
    rounded = RoundedGaussian(4.0).sample((10_000_000,), NoiseStream.from_key(KEY).child("rounded"))
    assert p_value(off, 4.0) < 1e-3
    assert p_value(rounded, 4.0) < 1e-3
    right = DiscreteGaussian(4.0).sample((10_000_000,), NoiseStream.from_key(KEY).child("right"))
    assert p_value(right, 4.0) > 1e-3


@pytest.mark.slow
def test_the_variance_is_that_of_its_sigma():
    count = 1_000_000
    for sigma in (2.0, 16384.0):
        samples = DiscreteGaussian(sigma).sample((count,), NoiseStream.from_key(KEY).child("variance")) / sigma
        assert abs(samples.var() - 1) < 4 * math.sqrt(2 / count)
        assert abs(samples.mean()) < 4 / math.sqrt(count)


def test_shape_type_and_repetition_of_samples():
    first = DiscreteGaussian(3.0).sample((300, 250), NoiseStream.insecure(1))
    assert (first.shape, first.dtype) == ((300, 250), np.int64)
    assert np.array_equal(first, DiscreteGaussian(3.0).sample((300, 250), NoiseStream.insecure(1)))
    assert DiscreteGaussian(3.0).sample((0, 5), NoiseStream.insecure(1)).shape == (0, 5)


@pytest.mark.parametrize("sigma", [0.0, 1.99, -5.0, 2.0**31 + 1, math.inf, math.nan])
def test_a_sigma_that_cannot_be_vouched_for_is_refused(sigma):
    with pytest.raises(ConclaveError, match="levels"):
        DiscreteGaussian(sigma)
