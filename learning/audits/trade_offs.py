"""Trade-off functions: what any test can do to tell two neighbours apart, as a whole curve and not as one epsilon.

A mechanism's claim says more than its epsilon at one delta. For every event of probability p under one neighbour it
says how probable the event is at least under the other. An audit against that curve uses all of it.
Source: Dong, Roth & Su 2022, "Gaussian Differential Privacy".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from aggregation.accounting.divergences import profile
from aggregation.accounting.events import leaves
from aggregation.accounting.library import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
    get_epsilon_gaussian,
    pld,
)
from aggregation.errors import ConclaveError

LARGEST_EPSILON: Final = 40.0
POINTS: Final = 400
"""Epsilons at which a profile is known."""
INTERVAL: Final = 1e-3
"""Grid of privacy losses, rounded so that a profile is never below the exact one."""
_NEAR: Final = 1e-6
"""How near the best attacker's guesses are found."""


Form = Literal["gaussian", "sampled", "renyi"]


class TradeOff(Protocol):
    """What a mechanism's claim says of any event, symmetric in the two neighbours."""

    def least(self, probability: float) -> float:
        """The least probability, under one neighbour, of an event that has this one under the other."""
        ...


@dataclass(frozen=True, slots=True)
class Gaussian:
    """The trade-off of mu-Gaussian differential privacy: N(0, 1) against N(mu, 1).

    Raises `ConclaveError` for a mu that is not a number from 0. Source: Dong, Roth & Su 2022.
    """

    mu: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.mu) and self.mu >= 0):
            raise ConclaveError(f"A mu of {self.mu:g} makes no sense. Use a number from 0.")

    def least(self, probability: float) -> float:
        """Phi(Phi^-1(p) - mu)."""
        return float(ndtr(ndtri(probability) - self.mu))

    def epsilon(self, delta: float) -> float:
        """The epsilon at a delta in (0, 1), exact (Balle & Wang 2018, theorem 8)."""
        return float(get_epsilon_gaussian(1 / self.mu, delta)) if self.mu else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """The trade-off that (epsilon, delta(epsilon)) give together, for all of some epsilons from 0.

    epsilons, deltas: float64 [points]. What lies between the points is not claimed, so that a refuted profile is a
    refuted claim. Source: Dong, Roth & Su 2022, on the dual of a trade-off.
    """

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    def least(self, probability: float) -> float:
        """max over epsilon of (p - delta) e^-epsilon and 1 - delta - e^epsilon (1 - p), and 0."""
        factors = np.exp(self.epsilons)
        first = ((probability - self.deltas) / factors).max()
        second = (1 - self.deltas - factors * (1 - probability)).max()
        return float(max(0.0, first, second))


@dataclass(frozen=True, slots=True)
class Together:
    """What a trade-off for one unit says of several units that come and go together.

    Raises `ConclaveError` for fewer than one unit. Source: Dong, Roth & Su 2022, theorem 2.14 (group privacy).
    """

    one: TradeOff
    units: int

    def __post_init__(self) -> None:
        if self.units < 1:
            raise ConclaveError(f"{self.units} units are no group. Use one or more.")

    def least(self, probability: float) -> float:
        """The trade-off, as often as there are units: each lets the event lose so much."""
        for _ in range(self.units):
            probability = self.one.least(probability)
        return probability


def right(curve: TradeOff) -> float:
    """The largest share of guesses that can be right, where a fair coin decided between the two neighbours.

    (1 + max over p of p - least(p)) / 2: with probability p the attacker says one neighbour where it is that one, and
    with least(p) where it is the other. p - least(p) is concave, because a trade-off is convex; the result is at most
    1e-6 above the largest, never below it. Source: Dong, Roth & Su 2022, equation 3 (total variation).
    """
    if isinstance(curve, Gaussian):
        return float(ndtr(curve.mu / 2))
    low, high = 0.0, 1.0
    while high - low > 2 * _NEAR:
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if first - curve.least(first) < second - curve.least(second):
            low = first
        else:
            high = second
    # From any point of what is left, p grows by no more than its width, and least(p) never falls.
    return min(1.0, (1 + low - curve.least(low) + (high - low)) / 2)


def right_by_claim(epsilon: float, delta: float) -> float:
    """The same where no more is known than an (epsilon, delta): (e^epsilon + delta) / (e^epsilon + 1).

    An event of probability a under one neighbour, and 1 - a under the other, must keep a <= e^epsilon (1 - a) + delta.
    Source: Kairouz, Oh & Viswanath 2015, "The Composition Theorem for Differential Privacy".
    """
    return min(1.0, (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon)))


def trade_off(events: Sequence[DpEvent]) -> TradeOff | None:
    """The trade-off that a list of events claims under add-or-remove of one unit; None where none is known.

    Gaussian events alone give one Gaussian, exactly, and so do samples that take every unit. Other Poisson-sampled
    Gaussians give a profile from privacy loss distributions. Skellam and discrete Gaussian releases are priced by Renyi
    divergences, which give no curve.
    """
    parts = [(_whole(part), count) for event in events for part, count in leaves(event)]
    if all(isinstance(part, GaussianDpEvent) for part, _ in parts):
        return Gaussian(math.sqrt(sum(count / part.noise_multiplier**2 for part, count in parts)))
    if not all(_sampled(part) for part, _ in parts):
        return None
    accountant = pld.PLDAccountant(value_discretization_interval=INTERVAL)
    for part, count in parts:
        accountant.compose(part, count)
    epsilons = _epsilons()
    return Profile(epsilons, np.asarray(accountant.get_delta(epsilons), np.float64))


def claimed(events: Sequence[DpEvent], epsilon: float, delta: float) -> tuple[Form, TradeOff]:
    """The most that is known of a list of events under add-or-remove of one unit, and in which form: as `trade_off`;
    where that knows none, (epsilon, delta) and what their Renyi divergences say beside it.

    epsilon, delta: the price of the events. Whoever refutes what is returned has refuted that the events are what
    happened, and so the price. Raises `ConclaveError` for an event without an accountant.
    """
    gaussian = all(isinstance(_whole(part), GaussianDpEvent) for event in events for part, _ in leaves(event))
    found = trade_off(events) if gaussian or epsilon <= LARGEST_EPSILON else None  # with less noise PLD takes minutes
    if found is not None:
        return ("gaussian" if gaussian else "sampled"), found
    epsilons = _epsilons()
    deltas = profile(events, epsilons)
    return "renyi", Profile(np.append(epsilons, epsilon), np.append(deltas, delta))


def louder(events: Sequence[DpEvent], factor: float) -> list[DpEvent]:
    """The same events with 1/factor of their noise. Raises `ConclaveError` for an event that is not as `trade_off`."""
    made: list[DpEvent] = []
    for event in events:
        for part, count in leaves(event):
            if isinstance(part, GaussianDpEvent):
                less: DpEvent = GaussianDpEvent(part.noise_multiplier / factor)
            elif _sampled(part):
                inner = GaussianDpEvent(part.event.noise_multiplier / factor)
                less = PoissonSampledDpEvent(part.sampling_probability, inner)
            else:
                raise ConclaveError(f"The noise of a {type(part).__name__} cannot be scaled. Audit its epsilon alone.")
            made.append(SelfComposedDpEvent(less, count))
    return made


def _epsilons() -> NDArray[np.float64]:
    return np.append(0.0, np.geomspace(1e-3, LARGEST_EPSILON, POINTS - 1))


def _whole(event: DpEvent) -> DpEvent:
    """The event without a sampling that takes every unit."""
    return event.event if isinstance(event, PoissonSampledDpEvent) and event.sampling_probability == 1 else event


def _sampled(event: DpEvent) -> bool:
    return isinstance(event, GaussianDpEvent) or (
        isinstance(event, PoissonSampledDpEvent) and isinstance(event.event, GaussianDpEvent)
    )
