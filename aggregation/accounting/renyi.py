"""Renyi divergences (Mironov 2017) of Skellam and distributed discrete Gaussian releases, the cost of noise in a secure
sum; and of randomised responses.

Bounds that `dp_accounting` does not have, under add-or-remove of one unit, in both directions; those of noise at
integer orders.
"""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import special

from aggregation.accounting.events import (
    DistributedDiscreteGaussianDpEvent,
    RandomizedResponseDpEvent,
    SkellamDpEvent,
)
from aggregation.accounting.library import DpEvent, PoissonSampledDpEvent

FloatArray = NDArray[np.float64]
_SAFE = 1 + 1e-9  # floating-point rounding stays on the safe side


def l1_of(l2_squared: int, dimension: int) -> int:
    """The largest L1 norm of an integer vector `[dimension]` of this squared L2 norm or less.

    min(l2_squared, sqrt(dimension) l2), rounded down, as it is an integer: |k| <= k^2 on the integers, and Cauchy &
    Schwarz.
    """
    return min(l2_squared, math.isqrt(dimension * l2_squared))


def prices(event: DpEvent) -> bool:
    """Whether `divergences` has a bound for the event: a randomised response, or one of the two noisy releases, which
    may be Poisson-sampled.
    """
    if isinstance(event, RandomizedResponseDpEvent):
        return True
    if isinstance(event, PoissonSampledDpEvent):
        event = event.event
    return isinstance(event, SkellamDpEvent | DistributedDiscreteGaussianDpEvent)


def divergences(event: DpEvent, orders: FloatArray) -> FloatArray:
    """Upper bounds `[orders]` of the event's Renyi divergences, infinite where they overflow; orders above 1.

    Between integers the bound is the straight line of (a - 1) D_a, which is convex in the order a, and 0 at a = 1.

    event: one that `prices`, its parameters in range (`aggregation.accounting.events.leaves` checks them).
    Source: Mironov 2017 (Renyi divergence as a price); Agarwal, Kairouz & Liu 2021, corollary 3.6 (Skellam); Kairouz,
    Liu & Steinke 2021, proposition 14 (discrete Gaussian); Zhu & Wang 2019, theorem 5 (sampling).
    """
    if isinstance(event, RandomizedResponseDpEvent):
        return _randomized_response(event, orders)
    low = np.maximum(np.floor(orders), 1.0)
    known = np.unique(np.concatenate([low, low + 1.0]))
    known = known[known >= 2]
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = np.append(0.0, (known - 1) * _at_integers(event, known))  # of (1, then known)
        places = np.append(1.0, known)
        left = scaled[np.searchsorted(places, low)]
        right = scaled[np.searchsorted(places, low + 1)]
        share = orders - low
        line = np.where(share == 0, left, left + share * (right - left))
        return np.where(np.isfinite(line), line / (orders - 1), np.inf) * _SAFE


def _randomized_response(event: RandomizedResponseDpEvent, orders: FloatArray) -> FloatArray:
    """ln(p^a q^(1-a) + q^a p^(1-a) + (k - 2) q) / (a - 1), exact at every order a above 1.

    p is the probability of the true one of k values, q that of each other; two neighbours have them exchanged for two
    of the values.
    """
    p = -float(np.logaddexp(0.0, math.log(event.options - 1) - event.epsilon))
    q = p - event.epsilon
    logs = [orders * p + (1 - orders) * q, orders * q + (1 - orders) * p]
    if event.options > 2:
        logs.append(np.full_like(orders, math.log(event.options - 2) + q))
    found = special.logsumexp(logs, axis=0) / (orders - 1) * _SAFE
    return np.asarray(np.clip(found, 0.0, event.epsilon), np.float64)


def _at_integers(event: DpEvent, orders: FloatArray) -> FloatArray:
    if isinstance(event, PoissonSampledDpEvent):
        return _poisson_sampled(event.event, event.sampling_probability, orders)
    return _skellam(event, orders) if isinstance(event, SkellamDpEvent) else _discrete_gaussian(event, orders)


def _skellam(event: SkellamDpEvent, orders: FloatArray) -> FloatArray:
    """a d2^2/(2 v) + min(((2a - 1) d2^2 + 6 d1)/(4 v^2), 3 d1/(2 v)) with variance v, at integers a >= 2.

    Agarwal, Kairouz & Liu 2021, "The Skellam Mechanism for Differentially Private Federated Learning", corollary 3.6.
    """
    variance, square = event.variance, float(event.l2_squared)
    l1 = float(min(event.l1, event.l2_squared))
    surplus = np.minimum(((2 * orders - 1) * square + 6 * l1) / (4 * variance) / variance, 3 * l1 / (2 * variance))
    return np.asarray(orders * square / (2 * variance) + surplus, dtype=np.float64)


def _discrete_gaussian(event: DistributedDiscreteGaussianDpEvent, orders: FloatArray) -> FloatArray:
    """min(a d2^2/(2 s^2) + tau d, a/2 (d2/s + tau sqrt d)^2), s = sqrt(h) sigma, for h shares in d dimensions.

    tau = 10 sum_(k=1)^(h-1) exp(-2 pi^2 sigma^2 k/(k+1)). Kairouz, Liu & Steinke 2021, "The Distributed Discrete
    Gaussian Mechanism for Federated Learning with Secure Aggregation", proposition 14.
    """
    tau, dimension = alias(event.sigma, event.shares), float(event.dimension)
    ratio = event.l2_squared / (event.shares * event.sigma * event.sigma)  # d2^2 / s^2
    apart = orders / 2 * ratio + tau * dimension
    together = orders / 2 * (math.sqrt(ratio) + tau * math.sqrt(dimension)) ** 2
    return np.asarray(np.minimum(apart, together), dtype=np.float64)


def alias(sigma: float, shares: int) -> float:
    """tau of `_discrete_gaussian`: how far a sum of shares deviates from a discrete Gaussian.

    From the hundredth share on, each term is charged as if k/(k+1) were 0.99.
    Source: Kairouz, Liu & Steinke 2021, proposition 14.
    """
    k = np.arange(1, min(shares, 100), dtype=np.float64)
    rate = 2 * math.pi**2 * sigma * sigma
    terms = np.exp(-rate * (k / (k + 1)))
    rest = max(0, shares - 100) * math.exp(-rate * 0.99)
    return 10 * (float(terms.sum()) + rest)


def _poisson_sampled(event: DpEvent, probability: float, orders: FloatArray) -> FloatArray:
    """The general bound, no more than the price without sampling; for sampling probability g and integers a >= 2:

        (a - 1) D_a <= ln{ (1-g)^(a-1) (a g - g + 1) + C(a,2) g^2 (1-g)^(a-2) e^D(2)
                           + 3 sum_(l=3)^a C(a,l) (1-g)^(a-l) g^l e^((l-1) D(l)) }

    Zhu & Wang 2019, "Poisson Subsampled Renyi Differential Privacy", theorem 5. The factor 3 falls away only under a
    condition that neither Skellam nor discrete Gaussian noise is known to meet. The binomial weights of l = 0 .. a add
    up to 1, so that the braces hold 1 + the sum over l >= 2 of each weight times what its factor exceeds 1 by: written
    like this, small costs keep their digits.
    """
    plain = _at_integers(event, np.arange(2.0, orders.max() + 1))  # D(2), D(3), ...
    whole = _at_integers(event, orders)
    if probability >= 1:
        return whole
    bounds = []
    for a, unsampled in zip(orders, whole, strict=True):
        sizes = np.arange(2.0, a + 1)
        costs = plain[: sizes.size]
        weights = (
            special.gammaln(a + 1)
            - special.gammaln(sizes + 1)
            - special.gammaln(a - sizes + 1)
            + (a - sizes) * math.log1p(-probability)
            + sizes * math.log(probability)
        )
        grown = (sizes - 1) * costs  # ln of the moments
        excess = grown + np.log(np.where(sizes == 2, -np.expm1(-grown), 3 - np.exp(-grown)))
        bound = np.logaddexp(0.0, special.logsumexp(weights + excess)) / (a - 1)
        bounds.append(min(float(bound), float(unsampled)) if not math.isnan(bound) else float(unsampled))
    return np.array(bounds)
