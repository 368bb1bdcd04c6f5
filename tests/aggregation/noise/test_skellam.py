"""Skellam shares have the distribution that is charged, add up to one again, and hold at least the variance asked."""

import math
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special, stats

from aggregation.errors import ConclaveError
from aggregation.noise import skellam
from aggregation.noise.rounded_gaussian import RoundedGaussian
from aggregation.noise.skellam import Skellam, _table
from aggregation.noise.stream import NoiseStream

KEY = bytes(range(32))


def exact(variance, reach):
    """P(k) at k = -reach .. reach."""
    return special.ive(np.abs(np.arange(-reach, reach + 1)), variance)


def table_masses(table):
    """Probabilities of -reach .. reach as the table draws them, times 2^128."""
    edges = [0, *((int(a) << 64) | int(b) for a, b in zip(table.upper, table.lower, strict=True)), 1 << 128]
    return [high - low for low, high in pairwise(edges)]


def p_value(samples, variance):
    """Chi-square of samples against Skellam(variance): cells of expected count >= 20, the two ends as one cell."""
    reach = math.ceil(8 * math.sqrt(variance)) + 8
    probabilities = exact(variance, reach)
    width = max(1, int(math.sqrt(variance) / 20))  # at most some 300 cells, or rare tails would hide in the crowd
    edges = np.arange(-reach, reach + 2, width)
    cells = np.add.reduceat(probabilities, edges[:-1] + reach) if width > 1 else probabilities
    if width > 1:
        cells[-1] = probabilities[edges[-2] + reach : edges[-1] + reach].sum()
    else:
        edges = np.arange(-reach, reach + 2)
    observed = np.histogram(samples, bins=edges - 0.5)[0]
    kept = cells * samples.size >= 20
    expected = np.append(cells[kept], 1 - cells[kept].sum()) * samples.size
    seen = np.append(observed[kept], samples.size - observed[kept].sum())
    return stats.chisquare(seen, expected).pvalue


@pytest.mark.parametrize("variance", [2.0**-4, 0.7, 4.0, 60.3])
def test_every_threshold_is_within_two_to_the_minus_128_of_the_truth(variance):
    table = _table(variance)
    with mpmath.workprec(400):
        v = mpmath.mpf(variance)
        mass = [mpmath.exp(-v) * mpmath.besseli(k, v) for k in range(table.reach + 1)]
        running = (1 - mass[0]) / 2 - sum(mass[1:])
        assert running * 2**137 < 1
        for i in range(table.reach):
            running += mass[table.reach - i]
            threshold = mpmath.mpf((int(table.upper[i]) << 64) | int(table.lower[i])) / 2**128
            mirrored = mpmath.mpf((int(table.upper[-1 - i]) << 64) | int(table.lower[-1 - i])) / 2**128
            assert abs(threshold - running) < mpmath.mpf(2) ** -128
            assert abs(1 - mirrored - running) < mpmath.mpf(2) ** -128


@pytest.mark.parametrize("variance", [1234.5, 2e4])
def test_weights_of_a_long_table_are_right_where_they_are_looked_at(variance):
    weights = skellam._weights(variance)
    total = 2 * sum(weights) - weights[0]
    end = len(weights) - 1
    with mpmath.workprec(400):
        v = mpmath.mpf(variance)
        for k in (0, 1, end // 21, end // 2, 2 * end // 3):
            truth = mpmath.exp(-v) * mpmath.besseli(k, v)
            assert abs(mpmath.mpf(weights[k]) / total - truth) < mpmath.mpf(2) ** -250


@pytest.mark.parametrize("variance", [2.0**-4, 3.3, 1e6, 1e8 + 1 / 3])
def test_weights_of_any_table_have_the_moments_of_the_distribution(variance):
    weights = skellam._weights(variance)
    total = 2 * sum(weights) - weights[0]
    v = Fraction(variance)
    for power, moment in ((2, v), (4, 3 * v**2 + v)):
        error = Fraction(2 * sum(k**power * weight for k, weight in enumerate(weights)), total) / moment - 1
        assert abs(error) < Fraction(1, 2**200)


@pytest.mark.parametrize("variance", [0.5, 4.0, 1e4, 1e8])
def test_what_a_table_leaves_out_is_as_little_as_its_docstring_says(variance):
    end = skellam._beyond(variance, 300.0)
    probability = 300.0 * math.log(2)
    t = math.asinh((end - 1) / variance)
    assert t * (end - 1) - 2 * variance * math.sinh(t / 2) ** 2 >= probability * (1 - 1e-9)
    assert end < 25 * math.sqrt(variance) + 160


@pytest.mark.parametrize("variance", [0.7, 4.0])
def test_total_variation_bounds_the_true_distance_of_one_sample(variance):
    table = _table(variance)
    drawn = table_masses(table)
    with mpmath.workprec(500):
        v = mpmath.mpf(variance)
        ideal = [mpmath.exp(-v) * mpmath.besseli(abs(k), v) for k in range(-table.reach, table.reach + 1)]
        distance = sum(abs(mpmath.mpf(p) / 2**128 - q) for p, q in zip(drawn, ideal, strict=True)) + 1 - sum(ideal)
        assert 0 < distance / 2 <= Skellam(variance).total_variation < 1e-34


@pytest.mark.parametrize(("shares", "variance"), [(2, 3.0), (3, 12.0), (5, 2.5)])
def test_the_tables_of_shares_convolve_to_the_table_of_the_whole(shares, variance):
    """Exact integers: the distance of the convolution is at most the sum of the parts' and the whole's."""
    share = Skellam.share(variance, shares)
    part, whole = table_masses(_table(share.variance)), table_masses(_table(variance))
    summed = [1]
    for _ in range(shares):
        step = [0] * (len(summed) + len(part) - 1)
        for i, p in enumerate(summed):
            for j, q in enumerate(part):
                step[i + j] += p * q
        summed = step
    margin = (len(summed) - len(whole)) // 2
    padded = [0] * margin + whole + [0] * margin
    one = 1 << 128 * shares
    scaled = [(value << 128 * (shares - 1)) for value in padded]
    distance = Fraction(sum(abs(p - q) for p, q in zip(summed, scaled, strict=True)), 2 * one)
    nudge = abs(share.variance * shares - variance)  # a share's variance is a float: the whole is a hair larger
    assert distance <= shares * share.total_variation + Skellam(variance).total_variation + nudge
    assert distance < 1e-15


@pytest.mark.parametrize("variance", [0.25, 4.0, 30.0, 1e4, 2e6])
def test_samples_have_the_exact_distribution(variance):
    samples = Skellam(variance).sample((1_000_000,), NoiseStream.from_key(KEY).child(str(variance)))
    assert p_value(samples, variance) > 1e-3


@pytest.mark.parametrize(("variance", "wrong"), [(4.0, 4.04), (30.0, 30.3), (1e4, 1.01e4)])
def test_a_variance_that_is_one_percent_off_would_be_seen(variance, wrong):
    """The chi-square trial has power: at a million samples it rejects one percent of variance."""
    samples = Skellam(wrong).sample((1_000_000,), NoiseStream.from_key(KEY).child(str(wrong)))
    assert p_value(samples, variance) < 1e-3


def test_a_rounded_normal_would_be_seen():
    normal = RoundedGaussian(math.sqrt(16.5)).sample((1_000_000,), NoiseStream.from_key(KEY).child("normal"))
    assert p_value(normal, 16.5 + 1 / 12) < 1e-6
    assert p_value(Skellam(16.5 + 1 / 12).sample((1_000_000,), NoiseStream.from_key(KEY)), 16.5 + 1 / 12) > 1e-3


def test_shares_of_parties_add_up_to_the_whole_and_one_share_fewer_is_seen():
    parties, variance = 9, 40.0
    shares = [
        Skellam.share(variance, parties).sample((1_000_000,), NoiseStream.from_key(KEY).child("party", i))
        for i in range(parties)
    ]
    assert p_value(sum(shares), variance) > 1e-3
    assert p_value(sum(shares[1:]), variance) < 1e-6
    assert p_value(sum(shares[1:]), variance * 8 / 9) > 1e-3


def test_a_variance_past_the_longest_table_is_a_sum_of_equal_parts(monkeypatch):
    monkeypatch.setattr(skellam, "LARGEST_TABLE", 4.0)
    assert Skellam(30.0)._parts() == (8, 3.75)
    samples = Skellam(30.0).sample((1_000_001,), NoiseStream.from_key(KEY).child("parts"))
    assert p_value(samples, 30.0) > 1e-3
    assert Skellam(30.0).total_variation == 8 * Skellam(3.75).total_variation


@settings(deadline=None)
@given(st.floats(1.0, 1e9), st.integers(1, 12))
def test_shares_together_hold_the_variance_and_hardly_more(variance, shares):
    share = Skellam.share(variance, shares)
    held = Fraction(share.variance) * shares
    assert Fraction(variance) <= held <= Fraction(variance) * (1 + Fraction(1, 10**15))
    parts, each = share._parts()
    assert Fraction(each) * parts >= Fraction(share.variance)
    assert each <= skellam.LARGEST_TABLE


@pytest.mark.parametrize("variance", [4.0, 1e8])
def test_moments_are_those_of_the_distribution(variance):
    """Mean 0, variance v, fourth moment 3 v^2 + v: each within four of its standard errors."""
    count = 1_000_000
    scaled = Skellam(variance).sample((count,), NoiseStream.from_key(KEY).child("moments")) / math.sqrt(variance)
    assert abs(scaled.mean()) < 4 / math.sqrt(count)
    assert abs(scaled.var() - 1) < 4 * math.sqrt((2 + 1 / variance) / count)
    assert abs((scaled**4).mean() - 3 - 1 / variance) < 4 * math.sqrt(150 / count)


def test_shape_type_and_repetition_of_samples():
    first = Skellam(9.0).sample((300, 250), NoiseStream.insecure(1))
    assert first.shape == (300, 250)
    assert first.dtype == np.int64
    assert np.array_equal(first, Skellam(9.0).sample((300, 250), NoiseStream.insecure(1)))
    assert Skellam(9.0).sample((0, 5), NoiseStream.insecure(1)).shape == (0, 5)


@pytest.mark.parametrize("variance", [0.0, 0.06, -1.0, 2.0**32 + 1, math.inf, math.nan])
def test_a_variance_that_cannot_be_drawn_is_refused(variance):
    with pytest.raises(ConclaveError, match="levels"):
        Skellam(variance)
