"""The stream repeats, splits and refuses as it says; the rounded Gaussian has the distribution that is charged."""

import math
import os
import pickle
from concurrent.futures import ThreadPoolExecutor

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from aggregation.errors import ConclaveError
from aggregation.noise.rounded_gaussian import _TAIL, RoundedGaussian, _table
from aggregation.noise.stream import NoiseStream

KEY = bytes(range(32))
WORDS_OF_KEY = ["0x2599bb6a675849ad", "0x8a3b841b189adf32"]
LABELS = st.lists(st.one_of(st.text(max_size=5), st.integers(-1000, 1000)), max_size=3).map(tuple)


def threshold(table, i):
    return mpmath.mpf((int(table.upper[i]) << 64) | int(table.lower[i])) / 2**128


def cumulative(k, sigma):
    """P(round(N(0, sigma^2)) <= k)."""
    return mpmath.erfc(-(mpmath.mpf(k) + mpmath.mpf(0.5)) / (mpmath.mpf(sigma) * mpmath.sqrt(2))) / 2


def test_the_same_key_gives_the_same_words_however_they_are_asked_for():
    words = NoiseStream.from_key(KEY).uint64(1000)
    again = NoiseStream.from_key(KEY)
    assert np.array_equal(words, np.concatenate([again.uint64(1), again.uint64(300), again.uint64(699)]))
    assert words.dtype == np.uint64


def test_words_that_fill_an_array_are_those_that_are_asked_for():
    words = np.empty(100_001, np.uint64)
    NoiseStream.from_key(KEY).fill(words)
    assert np.array_equal(words, NoiseStream.from_key(KEY).uint64(100_001))


def test_what_goes_on_beside_a_stream_is_its_own_and_repeats_with_the_key():
    stream, again = NoiseStream.from_key(KEY), NoiseStream.from_key(KEY)
    again.uint64(5)
    first = stream.aside.uint64(4)
    assert np.array_equal(first, again.aside.uint64(4))
    assert not np.array_equal(first, stream.aside.uint64(4))  # it goes on
    assert [hex(word) for word in stream.uint64(2)] == WORDS_OF_KEY
    others = [again.child(), again.child("aside"), again.aside.aside, NoiseStream.from_key(bytes(32)).aside]
    assert not any(np.array_equal(first, other.uint64(4)) for other in others)
    assert stream.aside.secure
    assert not NoiseStream.insecure(1).aside.secure


def test_the_words_of_a_key_never_change_between_versions():
    assert [hex(word) for word in NoiseStream.from_key(KEY).uint64(2)] == WORDS_OF_KEY


def test_two_streams_from_the_system_differ():
    assert not np.array_equal(NoiseStream.from_system().uint64(4), NoiseStream.from_system().uint64(4))


@settings(max_examples=50, deadline=None)
@given(LABELS, LABELS)
def test_children_are_equal_exactly_when_their_labels_are(first, second):
    parent = NoiseStream.from_key(KEY)
    same = np.array_equal(parent.child(*first).uint64(4), parent.child(*second).uint64(4))
    assert same == ([(type(x), x) for x in first] == [(type(x), x) for x in second])


def test_a_child_is_named_by_its_labels_alone_and_differs_from_its_parent():
    parent = NoiseStream.from_key(KEY)
    before = parent.child("block", 3).uint64(4)
    parent.uint64(10)
    assert np.array_equal(before, parent.child("block", 3).uint64(4))
    assert not np.array_equal(parent.child().uint64(4), NoiseStream.from_key(KEY).uint64(4))
    assert not np.array_equal(parent.child("a").child("b").uint64(4), parent.child("a", "b").uint64(4))


def test_only_streams_of_a_secret_key_say_they_are_secure():
    assert NoiseStream.from_system().secure
    assert NoiseStream.from_key(KEY).child("x").secure
    insecure = NoiseStream.insecure(7, "north")
    assert not insecure.secure
    assert not insecure.child("x").secure


def test_an_insecure_stream_repeats_with_its_seed_and_labels():
    words = NoiseStream.insecure(7, "north").uint64(4)
    assert np.array_equal(words, NoiseStream.insecure(7, "north").uint64(4))
    assert not np.array_equal(words, NoiseStream.insecure(7, "south").uint64(4))
    assert not np.array_equal(words, NoiseStream.insecure(-7, "north").uint64(4))


def test_a_key_of_another_length_is_refused():
    with pytest.raises(ConclaveError, match="32 bytes, this one has 16"):
        NoiseStream.from_key(bytes(16))


def test_a_stream_shows_no_key_and_is_not_copied_out():
    stream = NoiseStream.from_key(KEY)
    assert repr(stream) == "NoiseStream(secure=True)"
    with pytest.raises(TypeError, match="same noise twice"):
        pickle.dumps(stream)


def test_a_stream_refuses_to_go_on_after_a_fork(monkeypatch):
    stream = NoiseStream.from_key(KEY)
    stream.uint64(1)
    monkeypatch.setattr(os, "getpid", lambda: -1)
    with pytest.raises(RuntimeError, match="fork"):
        stream.uint64(1)
    with pytest.raises(RuntimeError, match="fork"):
        _ = stream.aside


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [4.0, 17.3, 89.6])
def test_every_threshold_is_within_two_to_the_minus_128_of_the_truth(sigma):
    table = _table(sigma)
    with mpmath.workprec(400):
        worst = max(abs(threshold(table, i) - cumulative(i - table.reach, sigma)) for i in range(2 * table.reach))
    assert worst < mpmath.mpf(2) ** -128


def test_thresholds_of_a_long_table_are_right_where_they_are_looked_at():
    table = _table(1500.7)
    with mpmath.workprec(400):
        for i in range(0, 2 * table.reach, 997):
            assert abs(threshold(table, i) - cumulative(i - table.reach, 1500.7)) < mpmath.mpf(2) ** -128


@pytest.mark.parametrize("sigma", [4.0, 17.3])
def test_total_variation_bounds_the_true_distance_of_one_sample(sigma):
    table = _table(sigma)
    with mpmath.workprec(500):
        edges = [mpmath.mpf(0), *(threshold(table, i) for i in range(2 * table.reach)), mpmath.mpf(1)]
        ideal = [mpmath.mpf(0), *(cumulative(k, sigma) for k in range(-table.reach, table.reach + 1))]
        distance = 2 * (1 - ideal[-1])  # both tails, which the table cannot reach
        for i in range(2 * table.reach + 1):
            inside = ideal[i + 1] - ideal[i] if i else ideal[1] - cumulative(-table.reach - 1, sigma)
            distance += abs(edges[i + 1] - edges[i] - inside)
        assert 0 < distance / 2 <= RoundedGaussian(sigma).total_variation < 1e-34
    assert table.reach == math.ceil(_TAIL * sigma)


def summed(pmf, shares):
    total = {0: mpmath.mpf(1)}
    for _ in range(shares):
        step = {}
        for a, p in total.items():
            for b, q in pmf.items():
                step[a + b] = step.get(a + b, 0) + p * q
        total = step
    return total


def rounded_exact(k, sigma, shares):
    """P(round(N(0, shares sigma^2) + V) = k): density at k of the normal plus `shares` uniforms, in closed form.

    The density of a sum of h uniforms is an h-th difference of x_+^(h-1)/(h-1)!, and the normal's (h-1)-fold repeated
    integral is sd^(h-1) i_(h-1)(x/sd), with i_n the repeated integrals of the normal density from the left.
    """
    sd = sigma * mpmath.sqrt(shares)

    def repeated(n, z):
        before, now = mpmath.npdf(z), mpmath.ncdf(z)  # i_0 = pdf, i_1 = cdf; n i_(n+1) = z i_n + i_(n-1)
        for m in range(1, n):
            before, now = now, (z * now + before) / m
        return now

    return sum(
        (-1) ** j * mpmath.binomial(shares, j) * repeated(shares, (k + mpmath.mpf(shares) / 2 - j) / sd)
        for j in range(shares + 1)
    ) * sd ** (shares - 1)


def distance_of_sum(sigma, shares):
    reach = math.ceil(20 * sigma) + 2
    pmf = {k: cumulative(k, sigma) - cumulative(k - 1, sigma) for k in range(-reach, reach + 1)}
    total = summed(pmf, shares)
    span = math.ceil(20 * sigma * math.sqrt(shares)) + 2 + shares
    return sum(abs(total.get(k, 0) - rounded_exact(k, sigma, shares)) for k in range(-span, span + 1)) / 2


def alias(sigma, shares):
    """The bound of the proof, without the smallest sigma that the class insists on."""
    terms = (
        mpmath.exp(-2 * mpmath.pi**2 * m**2 * sigma**2 * k / (k + 1)) for k in range(1, shares) for m in range(1, 9)
    )
    return sum(terms, mpmath.mpf(0))


@pytest.mark.parametrize(("sigma", "shares"), [(0.3, 2), (0.3, 3), (0.5, 2), (0.5, 4), (0.8, 3), (1.5, 2), (1.5, 3)])
def test_a_sum_of_shares_is_a_rounded_gaussian_up_to_the_alias_bound(sigma, shares):
    with mpmath.workdps(60):
        distance, bound = distance_of_sum(mpmath.mpf(sigma), shares), alias(mpmath.mpf(sigma), shares)
        assert 0 < distance <= bound
        if shares == 2:
            assert distance > bound / 20  # the bound is about the thing itself: a tighter exponent would break it


@pytest.mark.slow
def test_at_the_smallest_sigma_a_sum_of_shares_is_a_rounded_gaussian_to_sixty_digits():
    with mpmath.workdps(110):
        distance = distance_of_sum(mpmath.mpf(4), 2)
        assert distance <= RoundedGaussian(4.0).sum_distance(2) < 1e-60
        assert RoundedGaussian(4.0).sum_distance(2) >= alias(mpmath.mpf(4), 2)


def test_the_distance_of_a_sum_grows_with_shares_and_is_nothing_for_one():
    noise = RoundedGaussian(5.0)
    assert noise.sum_distance(1) == 0.0
    assert 0 < noise.sum_distance(2) <= noise.sum_distance(3) <= noise.sum_distance(10)
    with mpmath.workdps(60):
        assert noise.sum_distance(10) >= alias(mpmath.mpf(5), 10)
    assert RoundedGaussian(100.0).sum_distance(2) > 0  # still a bound where it underflows


@pytest.mark.parametrize("sigma", [4.0, 30.0])
def test_samples_have_the_exact_distribution(sigma):
    """Chi-square over all cells of expected count >= 20; a fixed key, so no chance of failing on a good day."""
    count = 1_000_000
    samples = RoundedGaussian(sigma).sample((count,), NoiseStream.from_key(KEY).child(int(sigma)))
    edge = int(3.2 * sigma)
    exact = np.diff(stats.norm.cdf(np.arange(-edge, edge + 2) - 0.5, scale=sigma))
    observed = np.bincount(samples[np.abs(samples) <= edge] + edge, minlength=2 * edge + 1)
    rest = count - observed.sum()
    expected = np.append(exact, 1 - exact.sum()) * count
    assert expected.min() >= 20
    assert stats.chisquare(np.append(observed, rest), expected).pvalue > 1e-3


def test_a_sum_of_shares_has_the_variance_it_says():
    count, shares = 400_000, 4
    noise = RoundedGaussian(4.0)
    total = sum(noise.sample((count,), NoiseStream.from_key(KEY).child("share", i)) for i in range(shares))
    expected = shares * noise.variance
    assert noise.variance == pytest.approx(16 + 1 / 12)
    assert abs(total.var() - expected) < 4 * expected * math.sqrt(2 / count)


class Words:
    """A stream that says what it is told to."""

    def __init__(self, *words):
        self.words = list(words)

    def uint64(self, count):
        drawn, self.words = self.words[:count], self.words[count:]
        return np.array(drawn, dtype=np.uint64)


@pytest.mark.slow
@settings(deadline=None)
@given(st.integers(0, 2 * 270 - 1), st.integers(-2, 2), st.integers(0, 2**64 - 1))
def test_a_word_that_ties_is_decided_by_128_bits(index, nudge, low):
    table = _table(20.0)
    full = [(int(a) << 64) | int(b) for a, b in zip(table.upper, table.lower, strict=True)]
    for second in {low, max(0, min(2**64 - 1, int(table.lower[index]) + nudge))}:
        first = int(table.upper[index])
        drawn = RoundedGaussian(20.0).sample((1,), Words(first, second))
        assert drawn[0] == sum(value <= (first << 64) | second for value in full) - table.reach


@settings(deadline=None)
@given(st.integers(0, 2**64 - 1))
def test_a_word_that_does_not_tie_needs_no_second(word):
    table = _table(20.0)
    if word not in table.upper:
        assert RoundedGaussian(20.0).sample((1,), Words(word))[0] == (table.upper <= word).sum() - table.reach


@pytest.mark.parametrize("word", [0, 1, 2**63 - 1, 2**63, 2**64 - 1])
def test_words_at_the_ends_stay_on_the_table(word):
    drawn = RoundedGaussian(20.0).sample((2,), Words(word, word, 2**64 - 1, 2**64 - 1))
    assert np.abs(drawn).max() <= _table(20.0).reach


def test_shape_type_and_repetition_of_samples():
    noise = RoundedGaussian(12.5)
    first = noise.sample((300, 250), NoiseStream.insecure(1))
    assert first.shape == (300, 250)
    assert first.dtype == np.int64
    assert np.array_equal(first, noise.sample((300, 250), NoiseStream.insecure(1)))
    assert noise.sample((0, 5), NoiseStream.insecure(1)).shape == (0, 5)


def test_threads_with_streams_of_their_own_may_share_a_table():
    noise = RoundedGaussian(12.5)
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda i: noise.sample((50_000,), NoiseStream.insecure(i)), [1, 1, 2, 2]))
    assert np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[2], drawn[3])


@pytest.mark.parametrize("sigma", [0.0, 3.99, -5.0, 2.0**31 + 1, math.inf, math.nan])
def test_a_sigma_whose_noise_cannot_be_vouched_for_is_refused(sigma):
    with pytest.raises(ConclaveError, match=r"levels"):
        RoundedGaussian(sigma)
