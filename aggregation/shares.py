"""Noise by shares: what each party adds, so that the sum holds what is charged, and what the sampling adds to delta."""

import math
from fractions import Fraction
from typing import cast

import numpy as np

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanism import FloatArray, IntArray, Released
from aggregation.noise import RoundedGaussian

MOST_LEVELS = 1 << 20


def check_levels(levels: int) -> None:
    """Raises `ConclaveError` unless levels is a whole number from 1 to 2^20."""
    if isinstance(levels, bool) or not isinstance(levels, int) or not 1 <= levels <= MOST_LEVELS:
        raise ConclaveError(f"levels is {levels}; it must be a whole number from 1 to {MOST_LEVELS:,}.")


def check_shares(shares: int) -> None:
    """Raises `ConclaveError` unless shares is a whole number of at least 1."""
    if isinstance(shares, bool) or not isinstance(shares, int) or shares < 1:
        raise ConclaveError(f"shares is {shares}; it must be a whole number of parties, at least 1.")


def share_of(noise_multiplier: float, sensitivity_squared: int, shares: int) -> RoundedGaussian:
    """One party's noise: `shares` of them together hold at least the variance that is charged.

    noise_multiplier: the one that the mechanism's event charges. sensitivity_squared: square of the L2 sensitivity,
    grid units squared, exact. The comparison is made in fractions, so that no rounding leaves too little noise; the
    sigma returned is the first float at or above the rounded quotient for which it holds.

    Raises `ConclaveError` where such a share cannot be drawn (`RoundedGaussian`).
    """
    charged = Fraction(noise_multiplier) ** 2 * sensitivity_squared
    sigma = noise_multiplier * math.sqrt(sensitivity_squared) / math.sqrt(shares)
    while math.isfinite(sigma) and Fraction(sigma) ** 2 * shares < charged:
        sigma = math.nextafter(sigma, math.inf)
    return RoundedGaussian(sigma)


def released(total: IntArray, present: int, share: RoundedGaussian, shares: int, granularity: float) -> Released:
    """The noisy sum of `present` parties in the signal's units; sigma counts the noise of all of them.

    granularity: one grid unit, in the signal's units.

    Raises `IntegrityError` when fewer shares are present than were charged, or the total is not integers.
    """
    if present < shares:
        raise IntegrityError(
            f"The sum holds the noise of {present} parties and the guarantee needs {shares}: it must not be "
            "released. Wait for the missing parties, or run again with a plan for fewer."
        )
    if not np.issubdtype(total.dtype, np.integer):
        raise IntegrityError(f"A noisy sum is made of integers; this one holds {total.dtype}.")
    sigma = math.sqrt(present * share.variance) * granularity
    return Released(values=cast(FloatArray, total * granularity), sigma=sigma)


def distance_of(share: RoundedGaussian, shares: int) -> float:
    """Upper bound, per value, of the total-variation distance between the sum of `shares` sampled shares and
    post-processing of the Gaussian that is charged (proof in `RoundedGaussian`).

    More parties than `shares` add nothing: their noise is independent of the data.
    """
    return shares * share.total_variation + share.sum_distance(shares)


def delta_of(distance: float, epsilon: float) -> float:
    """Delta to add for a release at this total-variation distance from what was charged: (1 + e^epsilon) distance."""
    if distance == 0:
        return 0.0
    exponent = min(epsilon, 700.0)  # beyond it the bound below is 1 anyway
    return min(1.0, (1.0 + math.exp(exponent)) * distance * (1.0 + 1e-9))
