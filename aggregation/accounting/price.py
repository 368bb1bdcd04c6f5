"""Prices a list of events, finds the noise that a budget needs, and enforces the cap for the life of a shard.

Everything is under add-or-remove of one unit. `dp_accounting` composes events; this module chooses among its
accountants. Samplers are priced as ideal, and graphs of secure sums as sound: first subtract every mechanism's `slack`
and `aggregation.secure_sum.graph.failing` from delta.
"""

import logging
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, lru_cache
from threading import Lock
from typing import cast

import numpy as np

from aggregation.accounting.divergences import divergences_of
from aggregation.accounting.events import RandomizedResponseDpEvent, leaves
from aggregation.accounting.library import (
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    PoissonSampledDpEvent,
    get_epsilon_gaussian,
    pld,
    rdp,
)
from aggregation.accounting.losses import losses_of
from aggregation.errors import BudgetExhausted, ConclaveError

# The accountant warns that a few fractional orders did not converge and leaves them out. The bound still holds.
logging.getLogger("absl").addFilter(lambda record: "failed to converge" not in str(record.msg))

LARGEST_PLD_EPSILON = 40.0  # above it PLD takes seconds and the difference matters to nobody
SMALLEST_PLD_DELTA = 1e-10  # below it the rounding of the transforms inside PLD could show
FINE_PLD, COARSE_PLD = 1e-4, 2e-3  # grids of privacy losses: for a price, and for an estimate in a tenth of its time
FEW_ORDERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 256)  # for an estimate
MOST_NOISE = 1e6
HIGHEST_ORDER = 10_000
_ROUNDED_UP, _FOUND_TO = 1 + 1e-9, 1e-12  # of an exact cost


@dataclass(frozen=True, slots=True)
class Guarantee:
    """(epsilon, delta) under add-or-remove of one unit.

    epsilon: the claim; infinite where there is no guarantee.
    accountant: which accountant's bound the claim is, "PLD" or "RDP".
    rdp_epsilon: the RDP accountant's bound, never under the claim by more than 1%.
    """

    epsilon: float
    delta: float
    accountant: str
    rdp_epsilon: float


def price(events: Sequence[DpEvent], delta: float) -> Guarantee:
    """The joint cost of a list of events at this delta; infinite where one of them has no guarantee.

    PLD where every event is a Gaussian, a Laplace or a Poisson-sampled Gaussian release, a randomised response, or a
    composition of these, and the result is of ordinary size (RDP epsilon up to 40, delta from 1e-10); else RDP. Of
    Gaussian releases alone the privacy losses are known exactly and rounded to no grid. One release under Skellam or
    discrete Gaussian noise (`aggregation.accounting.renyi`) puts the whole list in RDP.

    Valid for events whose parameters and number were fixed before any answer was seen: PLD is no filter. Where answers
    decide what is asked next, enforce `LifetimeFilter` and claim its cap.

    Raises `ConclaveError` for a delta outside (0, 1), for an event without an accountant, and where the two
    accountants disagree (PLD above RDP by more than 1%); `IntegrityError` for an event with an impossible parameter.
    Source: Renyi differential privacy (Mironov 2017); privacy loss distributions as in `dp_accounting`.
    """
    _check_delta(delta)
    parts = _joined_gaussians(_grouped(events))
    rdp_epsilon = _rdp_epsilon(parts, delta)
    if not _pld_speaks(parts, rdp_epsilon, delta):
        return Guarantee(rdp_epsilon, delta, "RDP", rdp_epsilon)
    exact = _gaussian_epsilon(parts, delta)
    if exact is not None:
        epsilon = max(exact * _ROUNDED_UP, exact + _FOUND_TO if exact else 0.0)
    else:
        with _PRICING:  # threads that price the same plan wait for the first
            epsilon = _pld_epsilon(tuple(parts), delta)
    if not epsilon <= rdp_epsilon * 1.01:
        raise ConclaveError(
            f"The accountants disagree: PLD says epsilon {epsilon:.6g}, RDP at most {rdp_epsilon:.6g}, at delta "
            f"{delta:g}. No guarantee is printed; please report the events of this plan."
        )
    return Guarantee(epsilon, delta, "PLD", rdp_epsilon)


def calibrate(make: Callable[[float], DpEvent], epsilon: float, delta: float, *, decimals: int = 3) -> float:
    """The smallest noise multiplier of that many decimals whose event costs at most epsilon at this delta.

    make: returns the event at a noise multiplier; its cost must not rise with the multiplier. If it did, the result
    would still cost at most epsilon (it was priced), and only be larger than needed.

    Raises `ConclaveError` for an epsilon that is not a number above 0, and `BudgetExhausted` if even a noise
    multiplier of 1e6 costs more.
    """
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConclaveError(f"epsilon is {epsilon}; it must be a number above 0.")
    _check_delta(delta)
    grid: int = 10**decimals
    most: int = int(MOST_NOISE) * grid

    @cache
    def cost(steps: int) -> float:
        return price([make(steps / grid)], delta).epsilon

    @cache
    def estimate(steps: int) -> float:
        return _estimate(make(steps / grid), delta)

    # Estimates are far quicker than prices. They find the place; the price there says by how much they are off, which
    # hardly changes nearby; and from the place that is left, prices alone decide.
    place = min(_turn(estimate, epsilon, grid, grid, most), most)
    if 0 < cost(place) < math.inf:
        place = min(_turn(estimate, epsilon * estimate(place) / cost(place), place, 1, most), most)
    found = _turn(cost, epsilon, place, 1, most)
    if found > most:
        raise BudgetExhausted(
            f"No noise multiplier up to {MOST_NOISE:g} brings this plan to epsilon {epsilon:g} at delta {delta:g}. "
            "Raise epsilon or delta, or release less."
        )
    return found / grid


def _turn(cost: Callable[[int], float], epsilon: float, start: int, step: int, most: int) -> int:
    """The number from 1 to `most` that costs at most epsilon while the number before it, if any, costs more.

    start, step: where to look first, and how far to move from there, doubled until the number lies between. Returns
    `most` + 1 where `most` costs more.
    """
    low, high, place = 0, most + 1, start
    while high - low > 1:
        if cost(place) <= epsilon:
            high = place
        else:
            low = place
        onwards, between = min(low + step, most), max((low + high) // 2, high - step if low == 0 else 0)
        place = onwards if high > most else between
        step *= 2
    return high


def _estimate(event: DpEvent, delta: float) -> float:
    """An estimate of `price`: where PLD applies, privacy losses are rounded to a coarser grid."""
    parts = _grouped([event])
    exact = _gaussian_epsilon(parts, delta)
    if exact is not None:
        return exact
    parts = _joined_gaussians(parts)
    for among in (FEW_ORDERS, ()):  # a few orders already tell whether PLD applies, where the answer is clear
        rdp_epsilon = _rdp_epsilon(parts, delta, among)
        if _pld_speaks(parts, rdp_epsilon, delta):
            with _PRICING:
                return min(rdp_epsilon, _pld_epsilon(tuple(parts), delta, COARSE_PLD))
    return rdp_epsilon


def _gaussian_epsilon(parts: Sequence[tuple[DpEvent, int]], delta: float) -> float | None:
    """Epsilon of Gaussian releases alone, exactly: together they are one Gaussian (Balle & Wang 2018, theorem 8).

    None when anything else is among them.
    """
    precision = 0.0
    for part, count in parts:
        if not isinstance(part, GaussianDpEvent):
            return None
        precision += count / part.noise_multiplier**2
    return float(get_epsilon_gaussian(1 / math.sqrt(precision), delta)) if precision else 0.0


@dataclass(frozen=True, slots=True)
class LifetimeFilter:
    """A cap on all releases ever made from one shard, each of which may be chosen after seeing the earlier ones.

    A Renyi filter: one order, fixed from (epsilon, delta) alone when the account is opened; an
    event is admitted only while the sum of the events' divergences at that order stays within `cap`. All admitted
    events together are then (epsilon, delta)-differentially private under add-or-remove of one unit. The claim is this
    cap, never what was spent so far. Each event must be fixed before it happens, may depend on earlier answers, and
    must be admitted and stored first. The claim is for ideal noise: the `slack` of each admitted release, at this
    epsilon, adds to delta.

    `cap` is the divergence that converts to (epsilon, delta) at `order`:
    cap = epsilon - ln(1 - 1/order) + (ln delta + ln order) / (order - 1). The order is the integer
    that admits most Gaussian releases, an integer because Skellam noise is priced at integers only.

    Raises `ConclaveError` for an epsilon not above 0, a delta outside (0, 1), or an epsilon too small for any order.
    Source: the filter is that of Feldman & Zrnic 2021, the conversion Canonne, Kamath & Steinke 2020, proposition 12.
    """

    epsilon: float
    delta: float
    order: int = field(init=False)
    cap: float = field(init=False)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ConclaveError(f"The lifetime epsilon is {self.epsilon}; it must be a number above 0.")
        _check_delta(self.delta)
        orders = np.arange(2, HIGHEST_ORDER + 1, dtype=np.float64)
        caps = self.epsilon - np.log1p(-1 / orders) + (math.log(self.delta) + np.log(orders)) / (orders - 1)
        best = int(np.argmax(caps / orders))
        if caps[best] <= 0:
            raise ConclaveError(
                f"A lifetime epsilon of {self.epsilon:g} at delta {self.delta:g} admits nothing. Raise either."
            )
        object.__setattr__(self, "order", int(orders[best]))
        object.__setattr__(self, "cap", float(caps[best]) * (1 - 1e-12))  # rounding stays on the safe side

    def spent(self, events: Sequence[DpEvent]) -> float:
        """Renyi divergence of the events at `order`, infinite where the accountant finds no finite one."""
        divergences, _ = divergences_of(_grouped(events), [self.order])
        return float(divergences[0])

    def admits(self, events: Sequence[DpEvent], new: DpEvent) -> bool:
        """Whether `new` may follow the events so far."""
        return self.spent([*events, new]) <= self.cap

    def left(self, events: Sequence[DpEvent]) -> float:
        """Epsilon, at this delta, of the largest single Gaussian release that is still admitted; for messages."""
        divergence = self.cap - self.spent(events)
        if not divergence > 0:
            return 0.0
        return float(get_epsilon_gaussian(math.sqrt(self.order / (2 * divergence)), self.delta))


@dataclass(frozen=True, slots=True)
class GaussianFilter:
    """A cap on Gaussian releases of one shard that are chosen adaptively: which, how noisy, and how many.

    A release, or anything computed from one, is admitted only while the sum over releases of (sensitivity/sigma)^2, its
    own included, stays within `cap`. All admitted releases together then cost no more than one Gaussian release of
    noise multiplier 1/sqrt(cap), under add-or-remove of one unit: the `event`. The claim is this cap, never what was
    spent so far.

    Why: take two neighbours. What tells
    them apart in a release of charge c is at most a normal of variance 1 whose mean is 0 for one and sqrt(c) for the
    other, and that can be read off a Brownian motion, without drift for one and of drift 1 for the other, over a piece
    of time of length c. Let each release read the next piece. Which length comes next uses only what was read before,
    and pieces that do not overlap are independent, so that every admitted release is computed from one motion watched
    for the time `cap`; of that its end point is a sufficient statistic, one Gaussian of multiplier 1/sqrt(cap). The
    argument is the Gaussian's own: filters on other trade-off curves are in general not valid, and other events are
    refused.

    Each release's parameters must be fixed before it happens, and may depend on earlier answers only through what was
    released. The claim is for ideal noise: the `slack` of each release adds to delta.

    cap: largest sum of (sensitivity/sigma)^2. Raises `ConclaveError` unless it is a number above 0.
    Source: Smith & Thakurta 2022, "Fully Adaptive Composition for Gaussian Differential Privacy"; Koskela, Tobaben &
    Honkela 2023, "Individual Privacy Accounting with Gaussian Differential Privacy".
    """

    cap: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.cap) and self.cap > 0):
            raise ConclaveError(f"The cap on Gaussian releases is {self.cap}; it must be a number above 0.")

    @classmethod
    def within(cls, epsilon: float, delta: float) -> "GaussianFilter":
        """The filter whose claim costs at most epsilon at this delta, to a thousandth of the noise multiplier."""
        return cls(1 / calibrate(GaussianDpEvent, epsilon, delta) ** 2 * (1 - 1e-12))

    def spent(self, events: Sequence[DpEvent]) -> Fraction:
        """Sum of (sensitivity/sigma)^2 of the events, exact.

        Raises `ConclaveError` for an event that is not a Gaussian release.
        """
        total = Fraction(0)
        for part, count in _grouped(events):
            if not isinstance(part, GaussianDpEvent):
                raise ConclaveError(f"A filter of Gaussian releases admits no {type(part).__name__}.")
            total += count / Fraction(part.noise_multiplier) ** 2
        return total

    def admits(self, spent: Fraction, charge: Fraction) -> bool:
        """Whether a release of this (sensitivity/sigma)^2 may follow releases that spent this much."""
        return spent + charge <= Fraction(self.cap)

    def event(self) -> DpEvent:
        """All releases that can ever be admitted, as one Gaussian release; its multiplier is rounded towards less
        noise.
        """
        multiplier = 1 / math.sqrt(self.cap)
        while Fraction(multiplier) ** 2 * Fraction(self.cap) > 1:
            multiplier = math.nextafter(multiplier, 0.0)
        return GaussianDpEvent(multiplier)


def _check_delta(delta: float) -> None:
    if not 0 < delta < 1:
        raise ConclaveError(f"delta is {delta}; it must lie between 0 and 1, well below one over the number of units.")


def _grouped(events: Sequence[DpEvent]) -> list[tuple[DpEvent, int]]:
    """The parts of all events, equal ones together."""
    counts: dict[Hashable, int] = {}
    others: list[tuple[DpEvent, int]] = []
    for event in events:
        for part, count in leaves(event):
            try:
                counts[part] = counts.get(part, 0) + count
            except TypeError:  # holds a list
                others.append((part, count))
    return [*cast(dict[DpEvent, int], counts).items(), *others]


_PRICING = Lock()


@lru_cache(maxsize=256)
def _pld_epsilon(parts: tuple[tuple[DpEvent, int], ...], delta: float, interval: float = FINE_PLD) -> float:
    """Epsilon of the composition by PLD; cached, because plans with one budget ask for the same ones.

    interval: the grid that privacy losses are rounded to, so that the result is no smaller than without one.
    """
    accountant, ours = pld.PLDAccountant(value_discretization_interval=interval), []
    for part, count in parts:
        losses = losses_of(part, interval)
        if losses is None:
            accountant.compose(part, count)
        else:
            ours.append(losses.self_compose(count))
    if not ours:
        return float(accountant.get_epsilon(delta))
    if len(ours) < len(parts):
        ours.append(accountant._pld)
    total = ours[0]
    for losses in ours[1:]:
        total = total.compose(losses)
    return float(total.get_epsilon_for_delta(delta))


def _rdp_epsilon(parts: Sequence[tuple[DpEvent, int]], delta: float, among: Sequence[int] = ()) -> float:
    """Epsilon of the composition by RDP. among: the orders; the accountant's own where it is empty."""
    known = tuple(parts)
    try:
        hash(known)
    except TypeError:  # an event that holds a list
        return _composed_rdp(known, delta, tuple(among))
    return _cached_rdp(known, delta, tuple(among))


def _composed_rdp(parts: tuple[tuple[DpEvent, int], ...], delta: float, among: tuple[int, ...]) -> float:
    divergences, orders = divergences_of(parts, among)
    usable = np.isfinite(divergences)
    if not usable.any():
        return math.inf
    return float(rdp.compute_epsilon(orders[usable], divergences[usable], delta)[0])


_cached_rdp = lru_cache(maxsize=1024)(_composed_rdp)
"""Cached as `_pld_epsilon` is: a plan is priced when its noise is chosen, when it is bound and when it is verified."""


def _pld_speaks(parts: Sequence[tuple[DpEvent, int]], rdp_epsilon: float, delta: float) -> bool:
    """Whether a claim is PLD's; see `price`."""
    plain = all(_has_pld(part) for part, _ in parts)
    return plain and rdp_epsilon <= LARGEST_PLD_EPSILON and delta >= SMALLEST_PLD_DELTA


def _joined_gaussians(parts: Sequence[tuple[DpEvent, int]]) -> list[tuple[DpEvent, int]]:
    """The same cost with all Gaussian releases as one: of 1/z^2 the sum, exactly (Balle & Wang 2018, theorem 8).

    So thousands of queries are priced without the accumulated error of composing that many discretised losses. The
    multiplier is rounded towards less noise.
    """
    gaussian = [(part, count) for part, count in parts if isinstance(part, GaussianDpEvent)]
    if sum(count for _, count in gaussian) < 2:
        return list(parts)
    precision = sum((count / Fraction(part.noise_multiplier) ** 2 for part, count in gaussian), Fraction(0))
    if not 0 < precision < Fraction(10) ** 300:
        return list(parts)  # not a usable number; the accountants report it
    multiplier = 1 / math.sqrt(precision)
    while multiplier > 0 and Fraction(multiplier) ** 2 * precision > 1:
        multiplier = math.nextafter(multiplier, 0.0)
    others = [(part, count) for part, count in parts if not isinstance(part, GaussianDpEvent)]
    return [(GaussianDpEvent(multiplier), 1), *others]


def _has_pld(event: DpEvent) -> bool:
    if isinstance(event, PoissonSampledDpEvent):
        return isinstance(event.event, GaussianDpEvent)
    return isinstance(event, GaussianDpEvent | LaplaceDpEvent | RandomizedResponseDpEvent)
