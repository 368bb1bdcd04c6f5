"""Privacy loss distributions that the library's accountant does not make, or that are made here in less of its time.

Of a sampled Gaussian release `dp_accounting` looks for the place of every privacy loss on its grid one by one, in
Python: 50,000 and more of them for a price. Here all places are found at once. Nothing else differs, and a test
compares the two.
"""

import math
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregation.accounting.events import RandomizedResponseDpEvent
from aggregation.accounting.library import DpEvent, GaussianDpEvent, PoissonSampledDpEvent


def losses_of(event: DpEvent, interval: float) -> Any | None:
    """The distribution of one event's losses, rounded up to the grid; None where it is the accountant's to make.

    The accountant composes responses only where one unit takes another's place. Their losses are the same where one
    is added or removed: what is in the place of a value is a value, or a mixture of values.
    """
    if isinstance(event, RandomizedResponseDpEvent):
        return _response(event, interval)
    if isinstance(event, PoissonSampledDpEvent) and isinstance(event.event, GaussianDpEvent):
        q, multiplier = event.sampling_probability, event.event.noise_multiplier
        if 0 < q < 1 and multiplier > 0:
            return sampled_gaussian(multiplier, q, interval)
    return None


def _response(event: RandomizedResponseDpEvent, interval: float) -> Any:
    """The distribution of the losses of one randomised response, rounded up to the grid."""
    from dp_accounting.pld import privacy_loss_distribution

    noise = event.options / (math.exp(event.epsilon) + event.options - 1)
    return privacy_loss_distribution.from_randomized_response(
        noise, event.options, value_discretization_interval=interval
    )


def sampled_gaussian(noise_multiplier: float, sampling: float, interval: float) -> Any:
    """The library's distribution of the privacy losses of one Gaussian release of a Poisson sample.

    noise_multiplier: sigma over sensitivity, above 0. sampling: the probability with which a unit is in the sample,
    above 0 and below 1. interval: the grid that losses are rounded to, always so that the result is no smaller.

    Neighbouring relation: a unit is added or removed. Source: Doroshenko et al. 2022, "Connect the Dots", algorithm 1,
    as `dp_accounting.pld.privacy_loss_distribution.from_gaussian_mechanism` applies it.
    """
    from dp_accounting.pld import privacy_loss_distribution, privacy_loss_mechanism

    kinds = privacy_loss_mechanism.AdjacencyType
    return privacy_loss_distribution.PrivacyLossDistribution(
        *(_rounded(noise_multiplier, sampling, interval, kind) for kind in (kinds.REMOVE, kinds.ADD))
    )


def _rounded(noise_multiplier: float, sampling: float, interval: float, kind: Any) -> Any:
    """One direction's losses, on the grid."""
    from dp_accounting.pld import pld_pmf

    losses = _losses()(noise_multiplier, sampling_prob=sampling, adjacency_type=kind)
    bounds = losses.connect_dots_bounds()
    lower, upper = int(np.floor(bounds.epsilon_lower / interval)), int(np.ceil(bounds.epsilon_upper / interval))
    deltas = losses.get_delta_for_epsilon(np.arange(lower, upper + 1) * interval)
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, lower, upper, deltas)


@cache
def _losses() -> type[Any]:
    """The library's losses of a Gaussian, with many places found at once; made when first asked for."""
    from dp_accounting.pld import privacy_loss_mechanism

    kinds = privacy_loss_mechanism.AdjacencyType

    class Losses(privacy_loss_mechanism.GaussianPrivacyLoss):  # type: ignore[misc]
        def get_delta_for_epsilon(self, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
            """The divergence of the two distributions at each epsilon; shapes are equal."""
            most = -np.log1p(-self.sampling_prob)  # of adding a unit no loss is above it, of removing none below -most
            if self.adjacency_type == kinds.ADD:
                deltas, within = np.zeros_like(epsilons), epsilons < most
                places = -self._places(-epsilons[within])
            else:
                deltas, within = -np.expm1(np.minimum(epsilons, 0.0)), epsilons > -most
                places = self._places(epsilons[within])
            lower = np.exp(epsilons[within] + self.mu_lower_log_cdf(places))
            deltas[within] = self.mu_upper_cdf(places) - lower
            clipped: NDArray[np.float64] = np.clip(deltas, 0, 1)
            return clipped

        def _places(self, losses: NDArray[np.float64]) -> NDArray[np.float64]:
            """Where the loss of removing a unit is this much: `inverse_privacy_loss` of many."""
            q = self.sampling_prob
            scaled = losses - np.log(q)
            with np.errstate(divide="ignore"):  # ln(1 + (e^loss - 1) / q); minus infinity where the loss is the lowest
                unsampled = scaled + np.log1p(-np.exp(np.minimum(np.log1p(-q) - np.log(q) - scaled, 0.0)))
            moved = unsampled * self._standard_deviation**2 / self.sensitivity
            places: NDArray[np.float64] = -0.5 * self.sensitivity - moved
            return places

    return Losses
