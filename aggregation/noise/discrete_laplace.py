"""Discrete Laplace noise (Ghosh, Roughgarden & Sundararajan 2009): integers whose chances fall by one factor a step."""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from aggregation.noise.bins import EXACT
from aggregation.noise.stream import NoiseStream
from aggregation.noise.tables import CHUNK, Table, made_once, of_thresholds

SMALLEST_SCALE: Final = 2.0**-4
LARGEST_SCALE: Final = 2.0**48
_HIGH: Final = 6  # the high part counts in units of at least 2^-6 of the scale
_DIGIT: Final = 11  # bits of a low digit: its table stays in a core's cache
_TAIL: Final = 137  # the high part ends where less than 2^-137 is left


@dataclass(frozen=True, slots=True)
class DiscreteLaplace:
    """P(k) = (1 - q) / (1 + q) q^|k| on the integers, q = exp(-1 / scale), each drawn on its own.

    Added to integers of L1 sensitivity D, it is (D / scale)-differentially private, exactly: P(k) / P(k + j) is at most
    q^(-|j|), and over several coordinates the |j| add up to D. No double is rounded on the way, which is where a
    Laplace variable drawn in doubles leaks (Mironov 2012, "On Significance of the Least Significant Bits For
    Differential Privacy").

    **How it is drawn.** It is the difference of two independent geometric variables, P(G = n) = (1 - q) q^n:
    for k >= 0 the sum over n of (1 - q)^2 q^n q^(n + k) is q^k (1 - q)^2 / (1 - q^2). Write n in digits,
    n = d_0 + 2^(b_1) d_1 + ... + 2^m h with d_j < 2^(b_(j+1) - b_j). As q^n is the product of the q^(2^(b_j) d_j) and
    q^(2^m h), digits and h are independent: d_j is proportional to (q^(2^(b_j)))^d, and h geometric with q^(2^m). Each
    is drawn by one uniform word from a `Table`, thresholds to 128 bits.

    **Total variation**, given uniform words, of one sample: every threshold is off by at most 2^-128, and the high part
    ends where less than 2^-137 is left; of the parts of both geometric variables the distances add up.

    scale: grid units, from 1/16 to 2^48. The variance is 2 q / (1 - q)^2, about 2 scale^2.

    Raises `ConclaveError` for a scale out of this range.
    Source: Ghosh, Roughgarden & Sundararajan 2009, "Universally Utility-Maximizing Privacy Mechanisms"; drawing by
    digits is our own.
    """

    scale: float

    def __post_init__(self) -> None:
        if not SMALLEST_SCALE <= self.scale <= LARGEST_SCALE:
            raise ConclaveError(
                f"Laplace noise of scale {self.scale:g} grid units cannot be drawn: it must lie between "
                f"{SMALLEST_SCALE:g} and {LARGEST_SCALE:g}. Use a scale nearer to what it hides."
            )

    @property
    def variance(self) -> float:
        """Variance of a sample, grid units squared: 2 q / (1 - q)^2."""
        return 0.5 / math.sinh(0.5 / self.scale) ** 2

    @property
    def total_variation(self) -> float:
        """Upper bound of the distance between one sample and the discrete Laplace, given uniform words."""
        return 2 * sum(table.total_variation for _, table in _digits(self.scale)) * (1 + 1e-9)

    def sample(self, shape: tuple[int, ...], stream: NoiseStream) -> NDArray[np.int64]:
        """Independent samples of the given shape, grid units."""
        out = np.zeros(math.prod(shape), dtype=np.int64)
        digits = _digits(self.scale)
        drawn = np.empty(min(CHUNK, out.size), dtype=np.int64)
        for start in range(0, out.size, CHUNK):
            piece = out[start : start + CHUNK]
            digit = drawn[: piece.size]
            for add in (np.add, np.subtract):
                for place, table in digits:
                    table.read(stream.uint64(piece.size), digit, stream)
                    add(piece, digit << place, out=piece)
        return out.reshape(shape)


@made_once
def _digits(scale: float) -> tuple[tuple[int, Table], ...]:
    """The place of each digit's last bit, and its table; the high part last."""
    places = max(0, math.frexp(scale)[1] - _HIGH)
    found = []
    for place in range(0, places, _DIGIT):
        size = 1 << min(_DIGIT, places - place)
        found.append((place, _truncated(scale, place, size)))
    rate = EXACT.ldexp(1 / EXACT.mpf(scale), places)
    size = int(EXACT.ceil(_TAIL * EXACT.log(2) / rate))
    return (*found, (places, _truncated(scale, places, size, whole=True)))


def _truncated(scale: float, place: int, size: int, whole: bool = False) -> Table:
    """The table of 0 .. size - 1 with P(d) proportional to exp(-2^place d / scale); whole: of all d >= 0, what lies
    beyond counted as the last.
    """
    rate = EXACT.ldexp(1 / EXACT.mpf(scale), place)
    total = EXACT.mpf(1) if whole else -EXACT.expm1(-size * rate)
    thresholds = [
        min(int(EXACT.nint(EXACT.ldexp(-EXACT.expm1(-(d + 1) * rate) / total, 128))), (1 << 128) - 1)
        for d in range(size - 1)
    ]
    distance = size * 2.0**-128 + (2.0**-_TAIL if whole else 0.0)
    return of_thresholds(thresholds, 0, min(max(size.bit_length() + 2, 6), 14), distance)
