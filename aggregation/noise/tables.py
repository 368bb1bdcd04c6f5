"""Integer tables: a distribution on the integers drawn from uniform words, exact to 128 bits.

A 128-bit uniform word is compared with the cumulative distribution rounded to 128 bits; the second 64 bits are drawn
only when the first 64 tie, which changes nothing in distribution. The time of a draw depends a little on its value; do
not let an attacker time single draws.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from threading import Lock
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from aggregation.noise.stream import NoiseStream

CHUNK = 1 << 15  # words and table stay in a core's cache
FRACTION = 256  # bits after the point while a table is computed
_TAIL = 137  # a table made of weights ends where less than 2^-137 of them is left on either side
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Table:
    """Thresholds T_0 <= ... <= T_(2r-1), T_i = round(2^128 P(X <= i - r)), as two words each; a guide by leading bits.

    A word's sample is (number of thresholds not above it) - r.

    total_variation: upper bound of the distance between one sample and X, given uniform words.
    """

    reach: int
    upper: NDArray[np.uint64]
    lower: NDArray[np.uint64]
    guide: NDArray[
        np.int32
    ]  # the number of thresholds below words with these leading bits, -1 where one lies among them
    shift: np.uint64
    total_variation: float

    def fill(self, out: NDArray[np.int64], stream: NoiseStream) -> None:
        """Independent samples into `out` `[n]`, in pieces that stay in the cache."""
        for start in range(0, out.size, CHUNK):
            piece = out[start : start + CHUNK]
            self.read(stream.uint64(piece.size), piece, stream)
            piece -= self.reach

    def read(self, words: NDArray[np.uint64], out: NDArray[np.int64], further: NoiseStream) -> None:
        """How many thresholds are not above each word, into `out` `[n]`. further: second words for those that tie."""
        out[:] = self.guide[(words >> self.shift).view(np.int64)]
        unclear = np.flatnonzero(out < 0)
        if unclear.size:
            asked = words[unclear]
            below = np.searchsorted(self.upper, asked, side="right")
            out[unclear] = below
            for tied in np.flatnonzero(self.upper[below - 1] == asked):
                first = int(np.searchsorted(self.upper, asked[tied], side="left"))
                second_words = self.lower[first : below[tied]]
                out[unclear[tied]] = first + int(np.searchsorted(second_words, further.uint64(1)[0], side="right"))


def made_once(make: Callable[[float], Made]) -> Callable[[float], Made]:
    """`make` with a cache of its last 32 tables. Threads that want the same table wait for the one that makes it."""
    kept, lock = lru_cache(maxsize=32)(make), Lock()

    @wraps(make)
    def table(parameter: float) -> Made:
        with lock:
            return kept(parameter)

    return table


def of_masses(tail: int, masses: Sequence[int]) -> Table:
    """The table of a symmetric distribution.

    tail: P(X > reach) times 2^FRACTION. masses: P(X = k) for k = 0 .. reach, times 2^FRACTION, each and their sum to
    well under 2^-140.
    """
    reach = len(masses) - 1
    left = []  # 2^FRACTION P(X <= k) for k = -reach .. -1
    running = tail
    for mass in reversed(masses[1:]):
        running += mass
        left.append(running)
    one = 1 << FRACTION
    if abs(2 * running + masses[0] - one) > one >> 140:
        raise AssertionError(f"probabilities of a table of reach {reach} do not sum to one")
    drop = FRACTION - 128
    rounded = [(value + (1 << (drop - 1))) >> drop for value in left]
    thresholds = rounded + [(1 << 128) - max(value, 1) for value in reversed(rounded)]  # 2^128 itself has no two words
    bits = min(max(len(thresholds).bit_length() + 5, 12), 20)
    return of_thresholds(thresholds, reach, bits, total_variation(reach, tail))


def total_variation(reach: int, tail: int) -> float:
    """Upper bound of the distance between a sample of the table of `of_masses` and its distribution: of its thresholds,
    and of what lies beyond it.
    """
    distance = 2 * reach * 2.0**-128 + 2.0 * math.ldexp(float(tail >> (FRACTION - 200)) + 1.0, -200)
    return distance * (1.0 + 1e-9)


def of_thresholds(thresholds: Sequence[int], reach: int, bits: int, total_variation: float) -> Table:
    """The table of thresholds that do not fall, each below 2^128, its guide by so many leading bits."""
    word = (1 << 64) - 1
    upper = np.array([value >> 64 for value in thresholds], dtype=np.uint64)
    lower = np.array([value & word for value in thresholds], dtype=np.uint64)
    shift = np.uint64(64 - bits)
    buckets = (upper >> shift).astype(np.int64)
    counts = np.bincount(buckets, minlength=1 << bits)
    guide = np.where(counts > 0, -1, np.cumsum(counts)).astype(np.int32)
    for array in (upper, lower, guide):
        array.flags.writeable = False
    return Table(reach, upper, lower, guide, shift, total_variation)


def of_weights(weights: Sequence[int]) -> Table:
    """The table of a symmetric distribution that is proportional to weights.

    weights: of k = 0 .. n, none negative, the first of at least 2 FRACTION bits; each off by less than 2^-200 of their
    sum, and those beyond n, left out, less than 2^-200 of it together. The table ends where less than 2^-137 is left on
    either side.
    """
    total = 2 * sum(weights) - weights[0]
    bits = total.bit_length() + FRACTION
    inverse = (1 << bits + FRACTION) // total
    end, rest = len(weights) - 1, 0
    while end > 0 and (rest + weights[end]) << _TAIL <= total:
        rest += weights[end]
        end -= 1
    return of_masses((rest * inverse) >> bits, [(weight * inverse) >> bits for weight in weights[: end + 1]])
