"""Noise in shares: what each party adds so that the sum holds the charged noise, and what sampling adds to delta."""

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Final, TypeAlias

from aggregation.errors import ConclaveError
from aggregation.noise.discrete_gaussian import DiscreteGaussian
from aggregation.noise.rounded_gaussian import RoundedGaussian
from aggregation.noise.skellam import Skellam

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Share: TypeAlias = RoundedGaussian | Skellam | DiscreteGaussian
"""What one party draws its noise from, grid units."""

GAUSSIAN: Final = "gaussian"
SKELLAM: Final = "skellam"
DISCRETE_GAUSSIAN: Final = "discrete-gaussian"
DISTRIBUTIONS: Final = (GAUSSIAN, SKELLAM, DISCRETE_GAUSSIAN)
"""The distributions of noise shares: rounded normals, whose sum is post-processing of a Gaussian and priced as that;
Skellam variables, whose sum is Skellam again; discrete Gaussians, priced by the distance of their sum from a discrete
Gaussian. Rounded normals need the least noise, because the tightest accountant prices them; Skellam variables need no
bound on the distance of a sum.
"""

MOST_LEVELS = 1 << 20


def check_distribution(distribution: str) -> None:
    """Raises `ConclaveError` for a distribution of noise that is not among `DISTRIBUTIONS`."""
    if distribution not in DISTRIBUTIONS:
        shown = repr(distribution)[:40]
        raise ConclaveError(f"the noise is {shown}; it must be one of {', '.join(DISTRIBUTIONS)}.")


def check_levels(levels: int) -> None:
    """Raises `ConclaveError` unless levels is a whole number from 1 to 2^20."""
    if isinstance(levels, bool) or not isinstance(levels, int) or not 1 <= levels <= MOST_LEVELS:
        raise ConclaveError(f"levels is {levels}; it must be a whole number from 1 to {MOST_LEVELS:,}.")


def check_shares(shares: int) -> None:
    """Raises `ConclaveError` unless shares is a whole number of at least 1."""
    if isinstance(shares, bool) or not isinstance(shares, int) or shares < 1:
        raise ConclaveError(f"shares is {shares}; it must be a whole number of parties, at least 1.")


def gaussian_share(noise_multiplier: float, sensitivity_squared: int, shares: int) -> RoundedGaussian:
    """One party's rounded Gaussian: `shares` of them together have at least the charged variance.

    noise_multiplier: that of the mechanism's event. sensitivity_squared: square of the L2 sensitivity, grid units
    squared, exact. The comparison is made in fractions, so that no rounding leaves too little noise; the sigma returned
    is the first float at or above the rounded quotient for which it holds.

    Raises `ConclaveError` where such a share cannot be drawn (`RoundedGaussian`).
    """
    return RoundedGaussian(_sigma(noise_multiplier, sensitivity_squared, shares))


def share_of(distribution: str, noise_multiplier: float, sensitivity_squared: int, shares: int) -> Share:
    """One party's noise of this distribution: `shares` of them together have the noise that `event_of` charges.

    As `gaussian_share`. Raises `ConclaveError` where such a share cannot be drawn.
    """
    if distribution == SKELLAM:
        return Skellam.share(_variance(noise_multiplier, sensitivity_squared), shares)
    sigma = _sigma(noise_multiplier, sensitivity_squared, shares)
    return DiscreteGaussian(sigma) if distribution == DISCRETE_GAUSSIAN else RoundedGaussian(sigma)


def event_of(distribution: str, noise_multiplier: float, l1: int, l2_squared: int, shares: int) -> "DpEvent":
    """The cost of one release under `share_of`, under add-or-remove of one unit.

    l1, l2_squared: bounds of the L1 norm and the squared L2 norm, grid units, of the sum's change when one unit is
    added or removed, in integers; no more coordinates than l1 change, for each changes by at least 1. `shares` shares
    are counted, unknown to the attacker.
    """
    # Imported here: the import takes a second, and a party's training process never prices.
    from dp_accounting import GaussianDpEvent

    from aggregation.accounting.events import DistributedDiscreteGaussianDpEvent, SkellamDpEvent

    if distribution == SKELLAM:
        return SkellamDpEvent(_variance(noise_multiplier, l2_squared), l1, l2_squared)
    if distribution == DISCRETE_GAUSSIAN:
        sigma = _sigma(noise_multiplier, l2_squared, shares)
        return DistributedDiscreteGaussianDpEvent(sigma, shares, l2_squared, l1)
    return GaussianDpEvent(noise_multiplier)


def _variance(noise_multiplier: float, l2_squared: int) -> float:
    """The total variance, drawn and charged, grid units squared."""
    return noise_multiplier * noise_multiplier * l2_squared


def _sigma(noise_multiplier: float, l2_squared: int, shares: int) -> float:
    """Sigma of one share, such that all of them together have at least the variance that the multiplier gives."""
    charged = Fraction(noise_multiplier) ** 2 * l2_squared
    sigma = noise_multiplier * math.sqrt(l2_squared) / math.sqrt(shares)
    while math.isfinite(sigma) and Fraction(sigma) ** 2 * shares < charged:
        sigma = math.nextafter(sigma, math.inf)
    return sigma


def distance_of(share: Share, shares: int) -> float:
    """Upper bound, per value, of the total-variation distance between the sum of `shares` sampled shares and the
    charged noise.

    For rounded Gaussians the charged noise is post-processing of the Gaussian (proof in `RoundedGaussian`). A sum of
    Skellam or discrete Gaussian shares is charged exactly: only the sampler deviates. More parties than `shares` add
    nothing: their noise is independent of the data.
    """
    sampled = shares * share.total_variation
    return sampled + share.sum_distance(shares) if isinstance(share, RoundedGaussian) else sampled


def delta_of(distance: float, epsilon: float) -> float:
    """Delta to add for a release at this total-variation distance from the charged noise: (1 + e^epsilon) distance."""
    if distance == 0:
        return 0.0
    exponent = min(epsilon, 700.0)  # beyond it the bound below is 1 anyway
    return min(1.0, (1.0 + math.exp(exponent)) * distance * (1.0 + 1e-9))
