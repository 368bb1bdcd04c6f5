"""Skellam noise (Agarwal et al. 2021) in shares: the difference of two Poisson variables; sums are Skellam again."""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from aggregation.noise.stream import NoiseStream
from aggregation.noise.tables import CHUNK, FRACTION, Table, made_once, of_weights

SMALLEST_VARIANCE = 2.0**-4
LARGEST_TABLE = 2.0**28  # variance; its table has some 450,000 thresholds
MOST_PARTS = 16


@dataclass(frozen=True, slots=True)
class Skellam:
    """Skellam(variance) on the integers, P(k) = exp(-variance) I_k(variance), each drawn on its own.

    Independent Skellam variables add up to one whose variance is the sum of theirs, whatever the variances: `shares`
    shares `Skellam.share(mu, shares)` hold at least Skellam(mu) exactly, further shares and further variance being
    independent of everything. So a share needs no distance such as `RoundedGaussian.sum_distance`.

    A variance above 2^28 is drawn as a sum of equal parts, for the same reason exact. One sample is within
    `total_variation` of Skellam(variance), given uniform words (`aggregation.noise.tables`). Wider ones, as `Bins` draw
    of the other two laws, are not drawn: what `Bins` ask of a law is proven for those two alone.

    variance: grid units squared, from 1/16 to 2^32. For h honest parties and total variance mu it is mu / h.

    Raises `ConclaveError` for a variance out of this range.
    Source: Agarwal, Kairouz & Liu 2021, "The Skellam Mechanism for Differentially Private Federated Learning".
    """

    variance: float

    def __post_init__(self) -> None:
        if not SMALLEST_VARIANCE <= self.variance <= MOST_PARTS * LARGEST_TABLE:
            remedy = "fewer levels" if self.variance > 1 else "more levels, or count on fewer shares"
            raise ConclaveError(
                f"Skellam noise of variance {self.variance:g} a party cannot be drawn: in grid units squared it must "
                f"lie between {SMALLEST_VARIANCE:g} and {MOST_PARTS * LARGEST_TABLE:,.0f}. Use {remedy}."
            )

    @classmethod
    def share(cls, variance: float, shares: int) -> "Skellam":
        """One party's noise: `shares` of them together hold at least this variance, compared in fractions."""
        return cls(_part(variance, shares))

    @property
    def total_variation(self) -> float:
        """Upper bound of the distance between one sample and Skellam(variance), given uniform words."""
        parts, each = self._parts()
        return parts * _table(each).total_variation

    def sample(self, shape: tuple[int, ...], stream: NoiseStream) -> NDArray[np.int64]:
        """Independent samples of the given shape, grid units."""
        out = np.empty(math.prod(shape), dtype=np.int64)
        parts, each = self._parts()
        table = _table(each)
        more = np.empty(min(CHUNK, out.size), dtype=np.int64)
        for start in range(0, out.size, CHUNK):
            piece = out[start : start + CHUNK]
            table.fill(piece, stream)
            for _ in range(parts - 1):
                table.fill(more[: piece.size], stream)
                piece += more[: piece.size]
        return out.reshape(shape)

    def _parts(self) -> tuple[int, float]:
        """How many equal parts a sample is the sum of, and the variance of each."""
        parts = math.ceil(self.variance / LARGEST_TABLE)
        return parts, _part(self.variance, parts)


def _part(variance: float, parts: int) -> float:
    """The first float at or above the rounded quotient of which `parts` hold at least the variance."""
    part = variance / parts
    while math.isfinite(part) and Fraction(part) * parts < Fraction(variance):
        part = math.nextafter(part, math.inf)
    return part


@made_once
def _table(variance: float) -> Table:
    return of_weights(_weights(variance))


def _weights(variance: float) -> list[int]:
    """Integers proportional to I_k(variance), k = 0 .. n, with what lies beyond n below 2^-300 of the whole.

    I_(k-1) = I_(k+1) + (2k / variance) I_k, downwards from 0 at n + 1 (Miller's algorithm). Every term is positive, so
    that a step's rounding, below 2^-400 of its term, stays that small. Starting from 0 instead of I_(n+1) changes the
    ratios r_k = I_(k+1)/I_k: at n by less than 1, and as r_(k-1) = 1 / (2k/variance + r_k), each step down multiplies
    the change by r_(k-1) and by its changed value, so that at k about (P(n)/P(k))^2 is left of it. Summed over the
    ratios that lead from 0 to k, P(k) is off by less than n P(n) < 2^-280.
    """
    n = _beyond(variance, 300.0)
    exact = Fraction(variance)
    doubled, divisor = 2 * exact.denominator, exact.numerator
    above, here = 0, 1 << 2 * FRACTION
    weights = [here]
    for k in range(n, 0, -1):
        above, here = here, above + k * doubled * here // divisor
        weights.append(here)
    weights.reverse()
    return weights


def _beyond(variance: float, bits: float) -> int:
    """A k with P(X >= k) < 2^-bits: the Chernoff bound, exp(variance (cosh t - 1) - t k) at sinh t = k / variance."""
    low, high = 0, 1
    while not _chernoff(variance, high) < -bits:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _chernoff(variance, middle) < -bits else (middle, high)
    return high + 1


def _chernoff(variance: float, k: int) -> float:
    """log2 of the bound; cosh t - 1 = 2 sinh^2(t/2) loses no digits."""
    t = math.asinh(k / variance)
    return (2 * variance * math.sinh(t / 2) ** 2 - t * k) / math.log(2)
