"""Discrete Gaussian noise (Canonne, Kamath & Steinke 2020) in shares: integers weighted by the normal density."""

import math
from dataclasses import dataclass

import mpmath  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from aggregation.noise.bins import EXACT, LARGEST_SIGMA, LARGEST_TABLE, Bins, Number, of_mass
from aggregation.noise.stream import NoiseStream
from aggregation.noise.tables import FRACTION, Table, made_once, of_weights

SMALLEST_SIGMA = 2.0
_END = 21.0  # standard deviations: beyond them lies less than 2^-300


@dataclass(frozen=True, slots=True)
class DiscreteGaussian:
    """P(k) proportional to exp(-k^2 / (2 sigma^2)) on the integers: one party's noise share, each drawn on its own.

    A sum of such shares is not discrete Gaussian, only close to it: what h of them cost together is a
    `DistributedDiscreteGaussianDpEvent`. One sample is within `total_variation` of its law, given uniform words. Up to
    sigma 16,384 it comes from a table of all thresholds (`aggregation.noise.tables`), above from `Bins`.

    sigma: grid units, from 2 (below, sums stray from a discrete Gaussian) to 2^31.
    The standard deviation is sigma less terms of exp(-2 pi^2 sigma^2).

    Raises `ConclaveError` for a sigma out of this range.
    Source: Canonne, Kamath & Steinke 2020; sums of shares: Kairouz, Liu & Steinke 2021, "The Distributed Discrete
    Gaussian Mechanism for Federated Learning with Secure Aggregation".
    """

    sigma: float

    def __post_init__(self) -> None:
        if not SMALLEST_SIGMA <= self.sigma <= LARGEST_SIGMA:
            remedy = "fewer levels" if self.sigma > LARGEST_SIGMA else "more levels, or count on fewer shares"
            raise ConclaveError(
                f"Discrete Gaussian noise of {self.sigma:g} grid units a party cannot be drawn: it must lie between "
                f"{SMALLEST_SIGMA:g} and {LARGEST_SIGMA:,.0f}. Use {remedy}."
            )

    @property
    def variance(self) -> float:
        """Variance of a sample, grid units squared: sigma^2 less terms of exp(-2 pi^2 sigma^2)."""
        return self.sigma**2

    @property
    def total_variation(self) -> float:
        """Upper bound of the distance between one sample and the discrete Gaussian, given uniform words."""
        return _sampler(self.sigma).total_variation

    def sample(self, shape: tuple[int, ...], stream: NoiseStream) -> NDArray[np.int64]:
        """Independent samples of the given shape, grid units."""
        out = np.empty(math.prod(shape), dtype=np.int64)
        _sampler(self.sigma).fill(out, stream)
        return out.reshape(shape)


def _sampler(sigma: float) -> Table | Bins:
    return _table(sigma) if sigma <= LARGEST_TABLE else _bins(sigma)


@made_once
def _bins(sigma: float) -> Bins:
    return of_mass(sigma, lambda k: _mass(sigma, k))


def _mass(sigma: float, k: int) -> Number:
    """P(k) to within 2^-370 of itself. Sum of all exp(-k^2/(2 sigma^2)): sigma sqrt(2 pi) theta, where theta - 1 is
    2 sum_m exp(-2 pi^2 sigma^2 m^2) by Poisson summation; from m = 4 on less than 2^-1000.
    """
    square = EXACT.mpf(sigma) ** 2
    theta = 1 + 2 * sum(EXACT.exp(-2 * EXACT.pi**2 * square * m * m) for m in (1, 2, 3))
    return EXACT.exp(-(EXACT.mpf(k) ** 2) / (2 * square)) / (sigma * EXACT.sqrt(2 * EXACT.pi) * theta)


@made_once
def _table(sigma: float) -> Table:
    return of_weights(_weights(sigma))


def _weights(sigma: float) -> list[int]:
    """exp(-k^2 / (2 sigma^2)) times 2^(2 FRACTION), k = 0 .. 21 sigma.

    From k to k + 1 by two multiplications, each off by at most one unit of the last place, so at k by at most (k + 1)^2
    units: below 2^-470 of the first.
    """
    places = 2 * FRACTION
    with mpmath.workprec(places + 64):
        s = mpmath.mpf(sigma)
        ratio, step = (int(mpmath.nint(mpmath.ldexp(mpmath.exp(-1 / (x * s * s)), places))) for x in (2, 1))
    weights = []
    bell = 1 << places
    for _ in range(math.ceil(_END * sigma) + 1):
        weights.append(bell)
        bell, ratio = (bell * ratio) >> places, (ratio * step) >> places
    return weights
