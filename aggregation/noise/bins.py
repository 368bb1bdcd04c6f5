"""Laws on the integers of a normal's shape, however wide, at one word a value: bins, and what they leave over."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import mpmath  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from aggregation.noise.stream import NoiseStream
from aggregation.noise.tables import CHUNK, Table, of_thresholds

Number: TypeAlias = Any  # of EXACT; mpmath has no types
Mass: TypeAlias = Callable[[int], Number]

LARGEST_TABLE: Final = 2.0**14
"""Standard deviation, grid units, up to which a law is drawn from a `Table` of all its thresholds."""
LARGEST_SIGMA: Final = 2.0**31
"""Up to which bins draw it: a word has bits enough, and a sum of such values is far from the end of 64 bits."""
SLOT_BITS: Final = 15  # 2^15 slots of 8 bytes stay in a core's cache
_FEWEST: Final = 64  # bins a standard deviation; at most twice as many
_REACH: Final = 13.5  # standard deviations
_HEIGHT: Final = 32  # bits of a proposal's height in its first words
_FURTHER: Final = 128  # bits of height that are drawn where those leave it open
_POINT: Final = 320  # bits after the point of a bin's probability
_BATCH: Final = 1 << 20  # values whose places without a bin are filled together
MARGIN: Final = 2.0**-28

EXACT: Final = mpmath.mp.clone()
"""Arithmetic of 384 bits, of this module alone: mpmath's own precision belongs to whichever thread set it last."""
EXACT.prec = 384


@dataclass(frozen=True, slots=True)
class Bins:
    """Samples of a law f on the integers, f(k) = f(-k), close to a normal's of standard deviation sigma.

    Asked of f: for k >= j >= 0,

        f(k) / f(j) = exp(-(1 - c) (k^2 - j^2) / (2 sigma^2))   with some 0 <= c <= 2^-30.              (1)

    **Bins.** w = 2^place_bits. Bin p = 0, 1, ... has two sides: the integers w p + r, and -1 - (w p + r), for
    r = 0 .. w - 1. So every integer is on one side of one bin, 0 included, and none twice. By (1) f falls with |k|:
    on both sides of bin p it is at most F_p = f(w p) and at least f(w (p + 1)).

    **What bins hold.** Let n = slot_bits and c_p be a whole number of at most 2^n w f(w (p + 1)). Write
    g(k) = c_p / (2^n w) for k on a side of bin p; then 0 <= g <= f, and g has the mass 2 sum_p c_p / 2^n. The first n
    bits of a uniform word say one of 2^n slots. Each side of bin p has c_p slots, and the last place_bits bits of the
    word are r: that is k with probability exactly c_p / 2^n / w = g(k). The bits between are not used.

    **What they leave over.** The slots without a bin are as many, of 2^n, as the mass of f - g. A value there is a
    sample of (f - g) / mass, by rejection, from words of `NoiseStream.aside`: bin p with probability proportional to
    F_p - g_p (a `Table`, 128 bits), and of one more word the first bit for the side, place_bits bits for r, and the
    last 32 bits for a height v, uniform in [0, 1). k is kept if v >= (F_p - f(k)) / (F_p - g_p), so with probability
    (f(k) - g(k)) / (F_p - g_p), and else proposed anew. Kept proposals go in their order to the places that wait, so
    that values do not depend on how many are asked for at a time.

    **When v is compared.** With j = w p and t = (k^2 - j^2) / (2 sigma^2), 1 - e^(-t) is computed in double precision.
    By (1), F_p - f(k) = F_p (1 - e^(-(1-c) t)), and (1 - c)(1 - e^(-t)) <= 1 - e^(-(1-c) t) <= 1 - e^(-t), because
    1 - e^(-t) is concave and 0 at 0. The quotient of double precision is off by less than 2^-44 of itself (five
    roundings and `expm1`, allowed 2^-45), with c by less than 2^-29 of itself. The first 32 bits of v decide unless
    they are within a unit and `MARGIN` = 2^-28 of the threshold; one proposal in 2^26 or fewer gets 128 more bits, and
    its threshold in 384-bit arithmetic, rounded to 160 bits. The quotients (F_p - f) / (F_p - g_p) lose fewer than 100
    of the 384. So every decision, on every machine, is that of 160 bits of v.

    **Total variation**, given uniform words, of one sample from f. Every value has words of its own, so that samples
    are independent and their distances add up:
      - beyond bin P - 1, w P >= 13.5 sigma, nothing is drawn: the tail's mass (`_tail`), once, for leaving it out;
      - of a proposal, the bin is off by at most P 2^-128 (P thresholds, each off by less than 2^-128), the decision by
        2^-160: together d. A is the probability that a proposal is kept, and B any set of values: where they are mu(B)
        and nu(B) with probability of being kept, |mu(B) - nu(B)| <= d, the kept ones differ by
        |mu(B)/A - nu(B)/A'| <= |mu(B) - nu(B)|/A + nu(B)/A' |A' - A|/A <= 2 d/A;
      - that counts for the mass of f - g alone, and this mass over A is the whole height of the boxes that proposals
        fill, sum_p 2 w (F_p - g_p) =: M, up to the tail's share.
    The sum is tail + 2 d M, M about 0.02 at 2^15 slots.

    Source: a mixture of uniform parts and what is left over (Marsaglia, MacLaren & Bray 1964, "A Fast Procedure for
    Generating Normal Random Variables"). The form on integers, without rounding, and its distance are our own.

    place_bits: at most 31. starts: the first integer of each slot's side of a bin `[2^n]`, the first `filled` of them
    used. boxes: the c_p `[P]`. rest: the table of the bins of f - g. room: (F_p - g_p) / F_p `[P]`. mass: f, in the
    numbers of `EXACT`.
    """

    sigma: float
    slot_bits: int
    place_bits: int
    starts: NDArray[np.int64]
    filled: int
    boxes: tuple[int, ...]
    rest: Table
    room: NDArray[np.float64]
    mass: Mass
    total_variation: float

    def fill(self, out: NDArray[np.int64], stream: NoiseStream) -> None:
        """Independent samples into out `[n]`, contiguous. Memory: some pieces of the cache's size."""
        for start in range(0, out.size, _BATCH):
            self._fill(out[start : start + _BATCH], stream)

    def _fill(self, out: NDArray[np.int64], stream: NoiseStream) -> None:
        words, size = out.view(np.uint64), min(CHUNK, out.size)
        slots, first, empty = np.empty(size, np.uint64), np.empty(size, np.int64), np.empty(size, np.bool_)
        shift, within = np.uint64(64 - self.slot_bits), np.uint64((1 << self.place_bits) - 1)
        waiting = []
        for start in range(0, out.size, size):
            word = words[start : start + size]
            slot, begin, without = slots[: word.size], first[: word.size], empty[: word.size]
            stream.fill(word)
            np.right_shift(word, shift, out=slot)
            np.bitwise_and(word, within, out=word)
            np.take(self.starts, slot.view(np.int64), out=begin, mode="clip")  # unlike "raise", writes without a copy
            out[start : start + size] += begin
            np.greater_equal(slot, self.filled, out=without)
            waiting.append(np.flatnonzero(without) + start)
        places = np.concatenate(waiting)
        out[places] = self._left_over(places.size, stream.aside)

    def _left_over(self, count: int, stream: NoiseStream) -> NDArray[np.int64]:
        """Samples of (f - g) / mass `[count]`. A round proposes as many as are wanting, so that none is left over."""
        made, done = np.empty(count, np.int64), 0
        while done < count:
            words = stream.uint64(2 * (count - done)).reshape(-1, 2)
            kept = self._kept(np.ascontiguousarray(words[:, 0]), words[:, 1], stream.aside)
            made[done : done + kept.size] = kept
            done += kept.size
        return made

    def _kept(self, first: NDArray[np.uint64], second: NDArray[np.uint64], further: NoiseStream) -> NDArray[np.int64]:
        """What is kept of the proposals of two words each; further: for those that need more."""
        bins = np.empty(first.size, np.int64)
        self.rest.read(first, bins, further)
        begin = bins << self.place_bits
        side = (second >> np.uint64(63)).view(np.int64)
        place = ((second >> np.uint64(_HEIGHT)) & np.uint64((1 << self.place_bits) - 1)).view(np.int64)
        height = (second & np.uint64((1 << _HEIGHT) - 1)).astype(np.float64)
        threshold = self.nearly(bins, place + side) * 2.0**_HEIGHT
        keep = height >= threshold * (1.0 + MARGIN)
        for at in np.flatnonzero(~keep & (height + 1.0 > threshold * (1.0 - MARGIN))):
            number, beyond = int(bins[at]), int(place[at] + side[at])
            keep[at] = self._decided(number, beyond, int(height[at]), further)
        values: NDArray[np.int64] = ((begin + place) ^ -side)[keep]  # x ^ -1 is -1 - x
        return values

    def _decided(self, number: int, beyond: int, height: int, further: NoiseStream) -> bool:
        """Whether a proposal is kept, by the first bits of its height and 128 more."""
        high, low = (int(word) for word in further.uint64(2))
        return (height << _FURTHER | high << 64 | low) >= self.threshold(number, beyond)

    def nearly(self, number: NDArray[np.int64], beyond: NDArray[np.int64]) -> NDArray[np.float64]:
        """(F_p - f(k)) / (F_p - g_p) at p = number and |k| = w p + beyond, off by less than 2^-29 of itself."""
        past = beyond.astype(np.float64)
        t = past * (2.0 * (number << self.place_bits) + past) / (2.0 * self.sigma * self.sigma)
        threshold: NDArray[np.float64] = -np.expm1(-t) / self.room[number]
        return threshold

    def threshold(self, number: int, beyond: int) -> int:
        """The same times 2^160, rounded."""
        begin = number << self.place_bits
        top, held = self.mass(begin), EXACT.ldexp(EXACT.mpf(self.boxes[number]), -self.slot_bits - self.place_bits)
        part = (top - self.mass(begin + beyond)) / (top - held)
        return int(EXACT.nint(EXACT.ldexp(part, _HEIGHT + _FURTHER)))


def of_mass(sigma: float, mass: Mass) -> Bins:
    """The bins of a law that has (1) of `Bins`. sigma: above 2^14, to 2^31. mass: f to within 2^-330 of itself."""
    place_bits = math.frexp(sigma / _FEWEST)[1] - 1
    return of_size(sigma, mass, SLOT_BITS, place_bits)


def of_size(sigma: float, mass: Mass, slot_bits: int, place_bits: int) -> Bins:
    """The same with 2^slot_bits slots and bins of 2^place_bits integers."""
    width = 1 << place_bits
    bins = math.ceil(_REACH * sigma / width)
    tops = [int(EXACT.nint(EXACT.ldexp(mass(p * width), _POINT + place_bits))) for p in range(bins + 1)]
    # One unit less, so that no rounding makes a box stand out above f.
    boxes = tuple((max(top - 1, 0) << slot_bits) >> _POINT for top in tops[1:])
    weights = [top - (count << (_POINT - slot_bits)) for top, count in zip(tops[:-1], boxes, strict=True)]
    total, running, thresholds = sum(weights), 0, []
    for weight in weights[:-1]:
        running += weight
        rounded = ((running << 129) + total) // (2 * total)
        thresholds.append(min(rounded, (1 << 128) - 1))  # 2^128 itself has no two words
    proposal = bins * 2.0**-128
    rest = of_thresholds(thresholds, 0, _guide_bits(bins), proposal)

    sides = np.repeat(np.arange(bins, dtype=np.int64) * width, boxes)
    filled = 2 * sides.size
    starts = np.zeros(1 << slot_bits, np.int64)
    starts[: filled // 2], starts[filled // 2 : filled] = sides, -sides - width
    room = np.array([weight / top for weight, top in zip(weights, tops, strict=False)])
    for array in (starts, room):
        array.flags.writeable = False
    height = 2 * total / (1 << _POINT)  # M
    distance = _tail(bins * width, sigma) + 2 * (proposal + 2.0**-159) * height
    return Bins(
        sigma, slot_bits, place_bits, starts, filled, boxes, rest, room, mass, math.nextafter(distance, 1) * (1 + 1e-9)
    )


def _guide_bits(bins: int) -> int:
    """Few, since the guide of what is seldom drawn would push the slots out of the cache."""
    return min(max(bins.bit_length() + 1, 6), 12)


def _tail(end: int, sigma: float) -> float:
    """Upper bound of the mass of |k| >= end, of a rounded normal and of a discrete Gaussian.

    Of the latter, exp(-k^2/(2 sigma^2)) is at most its integral from k - 1 to k, and the sum of all is at least
    sigma sqrt(2 pi) (Poisson summation), so that both lie below a normal's mass beyond end - 1.
    """
    return math.erfc((end - 1) / (sigma * math.sqrt(2.0))) * (1 + 1e-9)
