"""Discrete Laplace noise has the law that its epsilon is charged for."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import stats

from aggregation.errors import ConclaveError
from aggregation.noise.discrete_laplace import DiscreteLaplace, _digits
from aggregation.noise.stream import NoiseStream

KEY = bytes(range(32))


def _thresholds(table):
    return [(int(a) << 64) | int(b) for a, b in zip(table.upper, table.lower, strict=True)]


def _one_geometric(scale):
    """The exact chances with which one geometric variable is drawn, as the tables have them, of 0, 1, ..."""
    chances = [mpmath.mpf(1)]
    for place, table in _digits(scale):
        edges = [0, *_thresholds(table), 1 << 128]
        each = [mpmath.mpf(high - low) / 2**128 for low, high in pairwise(edges)]
        assert len(chances) == 1 << place, "a digit begins where the one before it ends"
        chances = [digit * low for digit in each for low in chances]
    return chances


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0625, 0.7, 17.3, 100.0, 130.0])
def test_total_variation_bounds_the_true_distance_of_one_sample(scale):
    with mpmath.workprec(500):
        drawn = _one_geometric(scale)
        ratio = mpmath.exp(-1 / mpmath.mpf(scale))
        ideal = [(1 - ratio) * ratio**n for n in range(len(drawn))]
        distance = (sum(abs(p - q) for p, q in zip(drawn, ideal, strict=True)) + ratio ** len(drawn)) / 2
        assert 2 * distance <= DiscreteLaplace(scale).total_variation < 1e-33


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.7, 5.0, 300.0])
def test_samples_have_the_law(scale):
    """A chi-square trial over the middle and both tails. A scale 1% off would be seen at this size."""

    def p_value(samples, of):
        edge = max(1, int(3 * of))
        q = math.exp(-1 / of)
        k = np.arange(-edge, edge + 1)
        expected = (1 - q) / (1 + q) * q ** np.abs(k) * samples.size
        tail = q ** (edge + 1) / (1 + q) * samples.size
        inside = samples[np.abs(samples) <= edge] + edge
        observed = [(samples < -edge).sum(), *np.bincount(inside, minlength=2 * edge + 1), (samples > edge).sum()]
        return stats.chisquare(observed, [tail, *expected, tail]).pvalue

    samples = DiscreteLaplace(scale).sample((2_000_000,), NoiseStream.from_key(KEY).child(str(scale)))
    assert p_value(samples, scale) > 1e-3
    off = DiscreteLaplace(scale * 1.01).sample((2_000_000,), NoiseStream.from_key(KEY).child(str(scale)))
    assert p_value(off, scale) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.0625, 3.0, 2.0**30, 1.7 * 2.0**40])
def test_the_variance_is_that_of_the_law(scale):
    found = DiscreteLaplace(scale)
    samples = found.sample((1000, 300), NoiseStream.from_key(KEY).child("variance", str(scale)))
    assert samples.shape == (1000, 300)
    values = samples.astype(float)
    # The fourth moment of a Laplace variable is 6 times its squared variance: 2.5 parts in a thousand of error, here.
    if found.variance > 1:
        assert abs(values.var() / found.variance - 1) < 0.02
        assert abs(values.mean()) < 5 * math.sqrt(found.variance / samples.size)
    else:
        assert values.sum() == 0 or found.variance * samples.size > 1e-3


@pytest.mark.slow
def test_wide_samples_use_all_their_digits():
    """Of a scale of 2^30 every low bit is a fair coin, nearly; none is stuck."""
    samples = DiscreteLaplace(2.0**30).sample((100_000,), NoiseStream.from_key(KEY))
    for bit in range(24):
        assert abs(((samples >> bit) & 1).mean() - 0.5) < 0.01


def test_what_is_drawn_does_not_depend_on_the_size_of_a_cache_piece():
    whole = DiscreteLaplace(9.0).sample((5,), NoiseStream.from_key(KEY))
    again = DiscreteLaplace(9.0).sample((5,), NoiseStream.from_key(KEY))
    assert (whole == again).all()
    assert not (whole == DiscreteLaplace(9.0).sample((5,), NoiseStream.from_key(KEY).child("other"))).all()


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 2.0**49])
def test_a_scale_that_cannot_be_drawn_is_refused(scale):
    with pytest.raises(ConclaveError, match="Laplace noise of scale"):
        DiscreteLaplace(scale)
