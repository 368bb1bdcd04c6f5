"""Laws drawn by bins: exactly the law that is charged, however wide, from words that each serve once."""

import math
import tracemalloc
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy import stats

from aggregation.noise import bins, discrete_gaussian, rounded_gaussian, tables
from aggregation.noise.bins import of_size
from aggregation.noise.discrete_gaussian import DiscreteGaussian
from aggregation.noise.rounded_gaussian import RoundedGaussian
from aggregation.noise.stream import NoiseStream

KEY = bytes(range(32))
LAWS = {"rounded": rounded_gaussian, "discrete": discrete_gaussian}
WIDE = {"rounded": RoundedGaussian, "discrete": DiscreteGaussian}


class Words:
    """A stream that says what it is told to, and what its asides are."""

    def __init__(self, *words, aside=None):
        self.words, self._aside = list(words), aside

    def uint64(self, count):
        assert len(self.words) >= count
        drawn, self.words = self.words[:count], self.words[count:]
        return np.array(drawn, dtype=np.uint64)

    def fill(self, words):
        words[:] = self.uint64(words.size)

    @property
    def aside(self):
        return self._aside


def sized(law, sigma, slot_bits, place_bits):
    return of_size(sigma, lambda k: LAWS[law]._mass(sigma, k), slot_bits, place_bits)


def truth(law, sigma, k):
    """f(k), by another way than the sampler's."""
    s = mpmath.mpf(sigma)
    if law == "rounded":
        edges = [(abs(mpmath.mpf(k)) + side) / (s * mpmath.sqrt(2)) for side in (-0.5, 0.5)]
        return (mpmath.erfc(edges[0]) - mpmath.erfc(edges[1])) / 2
    return mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * s * s)) / all_weights(sigma, mpmath.mp.prec)


@cache
def all_weights(sigma, precision):
    """The sum of exp(-k^2/(2 sigma^2)) over all integers k."""
    with mpmath.workprec(precision):
        return mpmath.jtheta(3, 0, mpmath.exp(-1 / (2 * mpmath.mpf(sigma) ** 2)))


def chances(table):
    """What a one-sided table draws, in 2^-128."""
    edges = [0, *((int(a) << 64) | int(b) for a, b in zip(table.upper, table.lower, strict=True)), 1 << 128]
    return [high - low for low, high in pairwise(edges)]


def law_of(made):
    """The exact law of one value, given uniform words: of the slots, and of proposals that are kept."""
    width = 1 << made.place_bits
    proposed = {}
    for number, chance in enumerate(chances(made.rest)):
        each = mpmath.mpf(chance) / 2**128 / (2 * width)
        kept_beyond = [1 - mpmath.mpf(made.threshold(number, beyond)) / 2**160 for beyond in range(width + 1)]
        for place in range(width):
            for side in (0, 1):
                size = number * width + place
                value = -1 - size if side else size
                assert value not in proposed
                proposed[value] = each * kept_beyond[place + side]
    rest = 1 - mpmath.mpf(made.filled) / 2**made.slot_bits
    whole = sum(proposed.values())
    drawn = {value: rest * chance / whole for value, chance in proposed.items()}
    for start in made.starts[: made.filled]:
        for place in range(width):
            drawn[int(start) + place] += mpmath.mpf(2) ** -(made.slot_bits + made.place_bits)
    return drawn


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("sigma", "slot_bits", "place_bits"), [(5.0, 8, 0), (5.0, 8, 1), (6.3, 10, 2), (6.3, 4, 3), (4.0, 9, 6)]
)
def test_the_law_of_a_value_is_within_its_total_variation_of_the_law_that_is_charged(law, sigma, slot_bits, place_bits):
    made = sized(law, sigma, slot_bits, place_bits)
    with mpmath.workprec(400):
        drawn = law_of(made)
        assert abs(sum(drawn.values()) - 1) < mpmath.mpf(2) ** -300
        sizes = {size: truth(law, sigma, size) for size in {abs(k) for k in drawn}}
        ideal = {k: sizes[abs(k)] for k in drawn}
        distance = (sum(abs(drawn[k] - ideal[k]) for k in drawn) + 1 - sum(ideal.values())) / 2
        assert 0 < distance <= made.total_variation < 1e-33
        assert max(abs(drawn[k] - drawn[-k]) for k in drawn if -k in drawn) < 2 * made.total_variation


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_bins_hold_no_more_than_the_law_and_leave_little(law):
    sigma = 1000.0
    made = sized(law, sigma, 12, 4)
    with mpmath.workprec(400):
        for number, boxes in list(enumerate(made.boxes))[::7]:
            assert mpmath.mpf(boxes) / 2**16 <= truth(law, sigma, 16 * (number + 1))
    assert 2 * sum(made.boxes) == made.filled > 0.93 * 2**12


def test_every_integer_lies_in_one_bin_and_zero_on_one_side_alone():
    made, width = sized("rounded", 20.0, 8, 3), 8
    begins = sorted(set(made.starts[: made.filled].tolist()))
    assert begins == list(range(begins[0], -begins[0], width))
    bits = lambda side, place: side << 63 | place << 32 | (2**32 - 1)  # noqa: E731
    found = [
        made._kept(np.array([0], np.uint64), np.array([bits(side, place)], np.uint64), Words()).tolist()
        for side in (0, 1)
        for place in range(width)
    ]
    assert [value for each in found for value in each] == [*range(width), *range(-1, -width - 1, -1)]


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("sigma", [16384.5, 2.0**20, 2.0**31])
def test_double_precision_is_within_the_margin(law, sigma):
    """At random, at the first and last bins, and at both ends of a bin, where its parts are smallest and largest."""
    made = WIDE[law](sigma)
    sampler = LAWS[law]._sampler(sigma)
    assert made.total_variation == sampler.total_variation
    rng, last, width = np.random.default_rng(0), len(sampler.boxes) - 1, 1 << sampler.place_bits
    points = [(number, beyond) for number in (0, 1, 200, last) for beyond in (1, 2, width // 2, width - 1, width)]
    points += [(int(rng.integers(last + 1)), int(rng.integers(1, width + 1))) for _ in range(100)]
    numbers, beyonds = (np.array(each, np.int64) for each in zip(*points, strict=True))
    nearly = sampler.nearly(numbers, beyonds)
    for value, (number, beyond) in zip(nearly, points, strict=True):
        with mpmath.workprec(400):
            right = mpmath.mpf(sampler.threshold(number, beyond)) / 2**160
            assert abs(mpmath.mpf(float(value)) / right - 1) < mpmath.mpf(2) ** -29
            assert right <= 1 + mpmath.mpf(2) ** -150
    assert not sampler.nearly(numbers, np.zeros_like(numbers)).any()


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("sigma", [16384.5, 2.0**31])
def test_what_is_asked_of_a_law_holds(law, sigma):
    """f(k)/f(j) is a normal's ratio up to a part of 2^-30 of the exponent, and f is what it is said to be."""
    mass = LAWS[law]._mass
    with mpmath.workprec(600):
        for j, k in ((0, 1), (0, 10_000), (3, 40_000), (int(13 * sigma), int(13.5 * sigma))):
            t = (mpmath.mpf(k) ** 2 - mpmath.mpf(j) ** 2) / (2 * mpmath.mpf(sigma) ** 2)
            found = mpmath.log(truth("rounded", sigma, j) / truth("rounded", sigma, k)) if law == "rounded" else t
            assert t * (1 - mpmath.mpf(2) ** -30) <= found <= t
            for at in (j, k):
                # The sum of a wide discrete Gaussian's weights: jtheta takes too long.
                right = (
                    truth(law, sigma, at)
                    if law == "rounded"
                    else mpmath.npdf(at, 0, mpmath.mpf(sigma))  # theta - 1 < exp(-5e9)
                )
                assert abs(mpmath.mpf(mass(sigma, at)) / right - 1) < mpmath.mpf(2) ** -330


def by_the_book(made, count, stream):
    """The sampler as its docstring says it, one value after the other, every height to 160 bits or undecided never."""
    main, rest, further = stream, stream.aside, stream.aside.aside
    width, values = 1 << made.place_bits, []
    upper = [int(word) for word in made.rest.upper]
    ties = set(upper)
    for _ in range(count):
        word = int(main.uint64(1)[0])
        slot = word >> (64 - made.slot_bits)
        if slot < made.filled:
            values.append(int(made.starts[slot]) + word % width)
            continue
        while True:
            first, second = (int(each) for each in rest.uint64(2))
            number = bisect_right(upper, first)
            assert first not in ties
            side, place, height = second >> 63, (second >> 32) % width, second % 2**32
            threshold = made.threshold(number, place + side)
            low, high = height << 128, (height + 1) << 128
            if low < threshold < high:
                a, b = (int(each) for each in further.uint64(2))
                low = low | a << 64 | b
            if low >= threshold:
                values.append(-1 - number * width - place if side else number * width + place)
                break
    return values


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("sigma", "slot_bits", "place_bits"), [(2.0**14 + 1, 6, 9), (2.0**20, 8, 17), (2.0**31, 7, 27)]
)
def test_many_at_once_are_what_the_docstring_says_one_by_one(law, sigma, slot_bits, place_bits):
    made = sized(law, sigma, slot_bits, place_bits)
    count = math.ceil(200 / (1 - made.filled / 2**slot_bits))  # some 200 of them are left over
    out = np.empty(count, np.int64)
    made.fill(out, NoiseStream.from_key(KEY).child("book"))
    assert out.tolist() == by_the_book(made, count, NoiseStream.from_key(KEY).child("book"))


def proposal(side, place, height):
    return side << 63 | place << 32 | height


def left_over(made, *proposals, further=()):
    """One value where no bin is, of these proposals, and whether all words were taken."""
    words = [word for each in proposals for word in each]
    rest = Words(*words, aside=Words(*further))
    value = np.empty(1, np.int64)
    made.fill(value, Words(2**64 - 1, aside=rest))
    assert rest.words == []
    assert rest.aside.words == []
    return int(value[0])


WIDTH = 1 << 13


@pytest.fixture(scope="module")
def made():
    return sized("discrete", 2.0**20, 15, 13)


def middle(made, number):
    """A first word that proposes this bin without a tie."""
    edges = [0, *(int(word) for word in made.rest.upper), 2**64]
    return (edges[number] + edges[number + 1]) // 2


@pytest.mark.slow
def test_a_height_at_the_threshold_is_decided_by_128_more_bits(made):
    for number, place, side in ((0, 7000, 0), (3, 0, 1), (90, 4000, 1), (700, WIDTH - 1, 0)):
        threshold = made.threshold(number, place + side)
        height, further = threshold >> 128, threshold % 2**128
        value = number * WIDTH + place
        value = -1 - value if side else value
        proposed = (middle(made, number), proposal(side, place, height))
        after = (middle(made, 5), proposal(0, 1, 2**32 - 1))
        exactly, below = divmod(further, 2**64), divmod(further - 1, 2**64)
        assert left_over(made, proposed, further=exactly) == value
        assert left_over(made, proposed, after, further=below) == 5 * WIDTH + 1


def test_heights_around_the_margin_need_no_more_bits_and_within_it_do(made):
    number, place = 60, 5000
    threshold = made.threshold(number, place) / 2**128
    margin = threshold * bins.MARGIN
    word, after = middle(made, number), (middle(made, 5), proposal(0, 1, 2**32 - 1))
    value = number * WIDTH + place
    assert margin > 4
    assert left_over(made, (word, proposal(0, place, math.ceil(threshold + margin) + 1))) == value
    assert left_over(made, (word, proposal(0, place, math.floor(threshold - margin) - 2)), after) == 5 * WIDTH + 1
    within = math.ceil(threshold + margin / 2)  # above, and too near to tell: more bits say the same
    assert left_over(made, (word, proposal(0, place, within)), further=(0, 0)) == value
    within = math.floor(threshold - margin / 2)
    assert left_over(made, (word, proposal(0, place, within)), after, further=(2**64 - 1,) * 2) == 5 * WIDTH + 1


def test_a_proposal_that_is_not_kept_is_made_anew(made):
    low = (middle(made, 100), proposal(1, WIDTH - 1, 0))
    assert left_over(made, low, low, low, (middle(made, 2), proposal(1, 3, 2**32 - 1))) == -1 - (2 * WIDTH + 3)


def test_the_side_below_zero_begins_at_minus_one(made):
    assert left_over(made, (0, proposal(0, 0, 0))) == 0  # the top of its bin is kept at any height
    assert left_over(made, (0, proposal(1, 0, 2**32 - 1))) == -1


def test_a_word_that_ties_in_the_table_is_decided_by_a_second(made):
    for index in (0, 40, 600):
        first, second = int(made.rest.upper[index]), int(made.rest.lower[index])
        kept = proposal(0, 9, 2**32 - 1)
        assert left_over(made, (first, kept), further=(second,)) == (index + 1) * WIDTH + 9
        assert left_over(made, (first, kept), further=(second - 1,)) == index * WIDTH + 9


def p_value(samples, sigma, cells=128):
    """Chi-square of samples over cells of about equal probability."""
    edges = np.rint(stats.norm.ppf(np.arange(1, cells) / cells) * sigma)
    probabilities = np.diff(stats.norm.cdf((edges - 0.5) / sigma), prepend=0, append=1)
    observed = np.bincount(np.searchsorted(edges, samples, side="right"), minlength=cells)
    return stats.chisquare(observed, probabilities * samples.size).pvalue


def within_bins(samples, width):
    """How far the mean place in a bin is below the middle, in parts of its width, and the deviation of that mean."""
    places = np.where(samples >= 0, samples, -1 - samples) % width
    return 0.5 - (places.mean() + 0.5) / width, 1 / math.sqrt(12 * samples.size)


COUNT = 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("sigma", [16384.5, 2.0**20, 2.0**31])
def test_samples_have_the_distribution_down_to_their_last_bits(law, sigma):
    """Power: one percent of sigma is rejected. The last six bits are uniform, both signs are as frequent."""
    samples = WIDE[law](sigma).sample((COUNT,), NoiseStream.from_key(KEY).child(law, int(sigma)))
    assert p_value(samples, sigma) > 1e-3
    assert p_value(samples, sigma / 1.01) < 1e-6
    assert p_value(samples, sigma * 1.01) < 1e-6
    assert stats.chisquare(np.bincount(samples & 63, minlength=64)).pvalue > 1e-3
    assert abs((samples < 0).sum() - COUNT / 2) < 4 * math.sqrt(COUNT) / 2
    assert abs(samples.mean()) < 4 * sigma / math.sqrt(COUNT)
    assert abs((samples / sigma).var() - 1) < 4 * math.sqrt(2 / COUNT)
    assert abs(((samples / sigma) ** 4).mean() - 3) < 4 * math.sqrt(96 / COUNT)


def test_proposals_that_are_all_kept_would_be_seen():
    """With four bins a standard deviation, where it matters: chi-square, and the mean place in a bin."""
    sigma, out = 2.0**20, np.empty(COUNT, np.int64)
    right = sized("discrete", sigma, 10, 18)
    right.fill(out, NoiseStream.from_key(KEY).child("right"))
    assert p_value(out, sigma) > 1e-3
    expected = np.mean(np.abs(out)) / sigma / 4 / 12  # to first order in the bin's width
    below, deviation = within_bins(out, 1 << 18)
    assert abs(below - expected) < 4 * deviation + 0.1 * expected
    replace(right, room=np.full_like(right.room, np.inf)).fill(out, NoiseStream.from_key(KEY).child("right"))
    assert p_value(out, sigma) < 1e-6
    below, deviation = within_bins(out, 1 << 18)
    assert below < expected - 8 * deviation


def test_a_slot_too_few_would_be_seen():
    """Ten of 1,024 slots are counted as without a bin."""
    sigma, out = 2.0**20, np.empty(COUNT, np.int64)
    made = sized("discrete", sigma, 10, 15)
    fewer = replace(made, filled=made.filled - 10)
    fewer.fill(out, NoiseStream.from_key(KEY).child("fewer"))
    assert p_value(out, sigma) < 1e-6


@pytest.mark.parametrize("law", LAWS)
def test_the_same_key_gives_the_same_values_however_many_are_asked_for_at_a_time(law, monkeypatch):
    noise = WIDE[law](2.0**20)
    whole = noise.sample((100_000,), NoiseStream.from_key(KEY))
    stream = NoiseStream.from_key(KEY)
    parts = [noise.sample((size,), stream) for size in (1, 0, 999, 30_000, 69_000)]
    assert np.array_equal(whole, np.concatenate(parts))
    monkeypatch.setattr(bins, "CHUNK", 1000)
    monkeypatch.setattr(bins, "_BATCH", 7001)
    assert np.array_equal(whole, noise.sample((100, 1000), NoiseStream.from_key(KEY)).reshape(-1))
    assert not np.array_equal(whole, noise.sample((100_000,), NoiseStream.from_key(bytes(32))))


def test_the_values_of_a_key_never_change_between_versions():
    drawn = {law: made(2.0**20).sample((200_000,), NoiseStream.from_key(KEY)) for law, made in WIDE.items()}
    for values in drawn.values():  # so wide, the two laws part at a decision in a billion
        assert values[[0, 1, 2, -1]].tolist() == [395693, -123086, -1695707, -1057564]
        assert int(values.sum()) == -336543709


def test_threads_with_streams_of_their_own_may_share_bins():
    noise = RoundedGaussian(2.0**20)
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda i: noise.sample((300_000,), NoiseStream.insecure(i)), [1, 1, 2, 2]))
    assert np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[2], drawn[3])


@pytest.mark.parametrize("law", LAWS)
def test_nothing_overflows_at_the_largest_sigma(law):
    sigma = bins.LARGEST_SIGMA
    made = LAWS[law]._sampler(sigma)
    last, width = len(made.boxes) - 1, 1 << made.place_bits
    assert 13.5 * sigma <= (last + 1) * width < 13.6 * sigma < 2**35
    assert -made.starts.min() < 5 * sigma
    assert (made.starts + width - 1).max() < 5 * sigma
    end = 2**64 - 1
    further = Words(*[end] * 10)
    for side, sign in ((0, 1), (1, -1)):
        words = np.array([end], np.uint64), np.array([proposal(side, width - 1, 2**32 - 1)], np.uint64)
        (value,) = made._kept(*words, further)
        assert sign * value == (last + 1) * width - 1 + side
    samples = WIDE[law](sigma).sample((10_000,), NoiseStream.from_key(KEY))
    assert samples.dtype == np.int64
    assert np.abs(samples).max() < 6 * sigma


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("sigma", [2.0**14 * (1 + 1e-12), 16384.5, 2.0**31])
def test_a_wide_law_is_nearer_than_a_table_and_needs_no_more(law, sigma):
    assert 0 < WIDE[law](sigma).total_variation < 2e-37 < WIDE[law](2.0**14).total_variation
    made = LAWS[law]._sampler(sigma)
    assert made.starts.nbytes == 2**18
    assert 64 <= sigma / 2**made.place_bits < 128
    assert made.filled / 2**made.slot_bits > 0.98


@pytest.mark.slow
def test_a_table_ends_where_bins_begin():
    assert isinstance(rounded_gaussian._sampler(2.0**14), tables.Table)
    assert isinstance(rounded_gaussian._sampler(math.nextafter(2.0**14, math.inf)), bins.Bins)


def test_memory_is_that_of_the_values_and_a_few_pieces():
    noise, stream = RoundedGaussian(2.0**20), NoiseStream.from_key(KEY)
    noise.sample((1,), stream)
    tracemalloc.start()
    noise.sample((4_000_000,), stream)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * 4_000_000 + 6 * 2**20
