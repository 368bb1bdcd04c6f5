"""Calibration of each party's noise, so that what is left after drop-outs and colluders keeps within a budget."""

import math

from aggregation.accounting.events import SMALLEST_LOCAL_SIGMA, DistributedDiscreteGaussianDpEvent, SkellamDpEvent
from aggregation.accounting.library import DpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from aggregation.accounting.price import calibrate
from aggregation.errors import ConclaveError


def honest_shares(parties: int, dropouts: int, colluders: int) -> int:
    """h = parties - dropouts - colluders: noise shares that are certain to be in the sum and unknown to the attacker.

    Colluders subtract their own shares. It holds only if nothing is unmasked with fewer than parties - dropouts
    survivors, which each party checks. Raises `ConclaveError` unless at least one is left.
    """
    for name, value in (("parties", parties), ("dropouts", dropouts), ("colluders", colluders)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConclaveError(f"{name} is {value}; it must be a whole number, not below 0.")
    if parties - dropouts - colluders < 1:
        raise ConclaveError(
            f"Of {parties} parties, {dropouts} may be lost and {colluders} collude: no noise is left that hides "
            "anything. Use more parties, or count on fewer drop-outs or colluders."
        )
    return parties - dropouts - colluders


def calibrate_skellam(
    epsilon: float,
    delta: float,
    l1: int,
    l2_squared: int,
    *,
    count: int = 1,
    sampling_probability: float = 1.0,
    decimals: int = 3,
) -> float:
    """The total variance mu, grid units squared, at which `count` releases cost at most epsilon at this delta.

    Each of h = `honest_shares` parties then adds `Skellam.share(mu, h)`. Returns the smallest mu for which sqrt(mu)
    over the L2 sensitivity has the given number of decimals. l1, l2_squared, mu: as in `SkellamDpEvent`.

    The guarantee is under add-or-remove of one unit; subtract every mechanism's slack from delta before. Raises as
    `aggregation.accounting.price.calibrate` does.
    Source: the bound of Agarwal, Kairouz & Liu 2021, "The Skellam Mechanism for Differentially Private Federated
    Learning", corollary 3.6.
    """

    def variance(multiplier: float) -> float:
        return multiplier * multiplier * l2_squared

    def make(multiplier: float) -> DpEvent:
        return _repeated(SkellamDpEvent(variance(multiplier), l1, l2_squared), count, sampling_probability)

    return variance(calibrate(make, epsilon, delta, decimals=decimals))


def calibrate_discrete_gaussian(
    epsilon: float,
    delta: float,
    l2_squared: int,
    dimension: int,
    shares: int,
    *,
    count: int = 1,
    sampling_probability: float = 1.0,
    decimals: int = 3,
) -> float:
    """The sigma of each party's `DiscreteGaussian`, grid units, at which `count` releases cost at most epsilon.

    shares: `honest_shares`. Sigma is at least 2, whatever the budget; otherwise it is the smallest for which
    sqrt(shares) sigma over the L2 sensitivity has the given number of decimals. l2_squared, dimension: as in
    `DistributedDiscreteGaussianDpEvent`.

    The guarantee is under add-or-remove of one unit; subtract every mechanism's slack from delta before. Raises as
    `aggregation.accounting.price.calibrate` does.
    Source: the bound of Kairouz, Liu & Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated
    Learning with Secure Aggregation", proposition 14.
    """

    def sigma(multiplier: float) -> float:
        return max(SMALLEST_LOCAL_SIGMA, multiplier * math.sqrt(l2_squared / shares))

    def make(multiplier: float) -> DpEvent:
        event = DistributedDiscreteGaussianDpEvent(sigma(multiplier), shares, l2_squared, dimension)
        return _repeated(event, count, sampling_probability)

    return sigma(calibrate(make, epsilon, delta, decimals=decimals))


def _repeated(event: DpEvent, count: int, sampling_probability: float) -> DpEvent:
    if sampling_probability != 1:
        event = PoissonSampledDpEvent(sampling_probability, event)
    return SelfComposedDpEvent(event, count)
