"""Privacy events as the ledger stores them: `DpEvent` values to JSON and back, and the parts of a composition."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real

from aggregation.accounting.library import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NonPrivateDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from aggregation.errors import IntegrityError

DEEPEST = 16
MOST_OPTIONS = 1024
SMALLEST_LOCAL_SIGMA = 2.0

_FIELDS = {
    "no-op": set[str](),
    "non-private": set[str](),
    "gaussian": {"noise_multiplier"},
    "laplace": {"noise_multiplier"},
    "poisson-sampled": {"sampling_probability", "event"},
    "self-composed": {"event", "count"},
    "composed": {"events"},
    "skellam": {"variance", "l1", "l2_squared"},
    "distributed-discrete-gaussian": {"sigma", "shares", "l2_squared", "dimension"},
    "randomized-response": {"epsilon", "options"},
}


@dataclass(frozen=True)
class SkellamDpEvent(DpEvent):  # type: ignore[misc]
    """An integer vector released once under independent Skellam noise: P(k) = exp(-v) I_k(v), v = variance.

    variance: of the noise on each coordinate, grid units squared, counting only shares unknown to the attacker:
    (parties - dropouts - colluders) times the variance of a share.
    l1, l2_squared: bounds of the L1 norm and of the squared L2 norm of the change when one unit is added or removed,
    grid units; whole numbers, as such a change is a vector of integers. Its L1 norm is never above its squared L2 norm,
    so l2_squared will do for l1 (`aggregation.accounting.renyi.l1_of`).
    Source: Agarwal, Kairouz & Liu 2021, "The Skellam Mechanism for Differentially Private Federated Learning"; priced
    by corollary 3.6.
    """

    variance: float
    l1: int
    l2_squared: int


@dataclass(frozen=True)
class DistributedDiscreteGaussianDpEvent(DpEvent):  # type: ignore[misc]
    """An integer vector released once under the sum of independent discrete Gaussians on each coordinate.

    sigma: of each share, P(k) proportional to exp(-k^2 / (2 sigma^2)), grid units, at least 2.
    shares: how many are unknown to the attacker: parties - dropouts - colluders.
    l2_squared: bound of the squared L2 norm of the change when one unit is added or removed, grid units squared.
    dimension: the number of coordinates in which that change may be nonzero.
    Source: Kairouz, Liu & Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
    Aggregation"; priced by proposition 14.
    """

    sigma: float
    shares: int
    l2_squared: int
    dimension: int


@dataclass(frozen=True)
class RandomizedResponseDpEvent(DpEvent):  # type: ignore[misc]
    """One of `options` values released once by randomised response: as it is with probability
    e^epsilon / (e^epsilon + options - 1), otherwise any of the others with the same probability.

    It costs (epsilon, 0) whatever value stands in the place of another. A value drawn evenly from all is a mixture of
    these distributions, so that its place may be taken by any value, and any value's by it, at no more.

    options: from 2 to 1,024. Source: Warner 1965; Kairouz, Bonawitz & Ramage 2016, "Discrete Distribution Estimation
    under Local Privacy", section 3.
    """

    epsilon: float
    options: int


def to_json(event: DpEvent) -> dict[str, object]:
    """An event as JSON values: its kind under "kind", its parameters by name; floats are restored bit for bit.

    Raises `IntegrityError` for a kind that the ledger does not know and for a parameter out of range.
    """
    return _to_json(event, 0)


def from_json(value: object) -> DpEvent:
    """The event that `to_json` wrote.

    Raises `IntegrityError` for an unknown kind, a missing or unknown key, and a value out of range.
    """
    return _from_json(value, 0)


def leaves(event: DpEvent) -> Iterator[tuple[DpEvent, int]]:
    """The parts of a composition, each with its number of occurrences; composing them costs what the event costs.

    An event of an unknown kind is a single part. Raises `IntegrityError` for a parameter of a known kind that is out of
    range (a negative count, NaN), which an accountant might otherwise price at less than it costs.
    """
    yield from _leaves(event, 1, 0)


def noise_multiplier_of(event: DpEvent) -> float:
    """The smallest noise multiplier in an event, which a party's `minimum_noise` is compared with; infinite where it
    releases nothing.

    It is the noise multiplier of the releases that the event is made of: standard deviation of the noise in
    the whole sum over that sum's L2 sensitivity, both as the accountant is told them. That is, for
      - counts and moments: `noise_multiplier`, of all cells together;
      - teachers' answers: that of votes and hidden states of one query as one Gaussian,
        1/z^2 = 1/z_votes^2 + 1/z_hidden^2;
      - votes under a threshold: 1/sqrt(cap), that of all queries and tests together;
      - private training: `noise_multiplier` of one step, without amplification by sampling;
      - free answers: nothing, because the training was checked;
      - a heuristic, which has no guarantee: 0;
      - labels under randomised response: nothing, because no noise is added to them; caps bound what they cost.
    Where an aggregator is trusted it sees each party's contribution under that party's own share of the noise, and
    `minimum_noise` is compared with that share's multiplier: this one over the square root of the shares that the
    release counts on. Votes without noise are the exception: `clear_votes` lets the aggregator see them, and what is
    compared is the noise that it draws. The number of times an event is charged plays no part: `maximum_queries` and
    the caps bound that. Skellam and discrete Gaussian releases are compared by the same ratio. The noise of any other
    kind of event cannot be compared: 0.
    """
    multipliers = []  # of the parts of one event, which are released together
    for part, _ in leaves(event):
        match part:
            case GaussianDpEvent():
                multipliers.append(part.noise_multiplier)
            case SkellamDpEvent():
                multipliers.append(math.sqrt(part.variance / part.l2_squared))
            case DistributedDiscreteGaussianDpEvent():
                multipliers.append(part.sigma * math.sqrt(part.shares / part.l2_squared))
            case PoissonSampledDpEvent():
                multipliers.append(noise_multiplier_of(part.event))
            case RandomizedResponseDpEvent():
                continue
            case _:
                return 0.0
    if len(multipliers) < 2:
        return multipliers[0] if multipliers else math.inf
    return 0.0 if 0.0 in multipliers else 1 / math.sqrt(sum(each**-2 for each in multipliers))


def _leaves(event: DpEvent, count: int, depth: int) -> Iterator[tuple[DpEvent, int]]:
    _check_depth(depth)
    match event:
        case NoOpDpEvent():
            return
        case SelfComposedDpEvent():
            yield from _leaves(event.event, count * _count(event.count), depth + 1)
        case ComposedDpEvent():
            for part in event.events:
                yield from _leaves(part, count, depth + 1)
        case GaussianDpEvent() | LaplaceDpEvent():
            yield type(event)(_noise(event.noise_multiplier)), count
        case SkellamDpEvent() | DistributedDiscreteGaussianDpEvent() | RandomizedResponseDpEvent():
            yield _checked(event), count
        case PoissonSampledDpEvent():
            for _ in _leaves(event.event, 1, depth + 1):  # checks every parameter inside
                pass
            yield PoissonSampledDpEvent(_probability(event.sampling_probability), event.event), count
        case _:
            yield event, count


def _to_json(event: DpEvent, depth: int) -> dict[str, object]:
    _check_depth(depth)
    match event:
        case NoOpDpEvent():
            return {"kind": "no-op"}
        case NonPrivateDpEvent():
            return {"kind": "non-private"}
        case GaussianDpEvent():
            return {"kind": "gaussian", "noise_multiplier": _noise(event.noise_multiplier)}
        case LaplaceDpEvent():
            return {"kind": "laplace", "noise_multiplier": _noise(event.noise_multiplier)}
        case PoissonSampledDpEvent():
            return {
                "kind": "poisson-sampled",
                "sampling_probability": _probability(event.sampling_probability),
                "event": _to_json(event.event, depth + 1),
            }
        case SelfComposedDpEvent():
            return {"kind": "self-composed", "event": _to_json(event.event, depth + 1), "count": _count(event.count)}
        case ComposedDpEvent():
            return {"kind": "composed", "events": [_to_json(part, depth + 1) for part in event.events]}
        case SkellamDpEvent():
            return {"kind": "skellam", **vars(_checked(event))}
        case DistributedDiscreteGaussianDpEvent():
            return {"kind": "distributed-discrete-gaussian", **vars(_checked(event))}
        case RandomizedResponseDpEvent():
            return {"kind": "randomized-response", **vars(_checked(event))}
    raise IntegrityError(f"The ledger cannot store a {type(event).__name__}. It knows: {', '.join(_FIELDS)}.")


def _from_json(value: object, depth: int) -> DpEvent:
    _check_depth(depth)
    if not isinstance(value, Mapping):
        raise IntegrityError(f"A stored event must be a JSON object, this one is {_shown(value)}.")
    kind = value.get("kind")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise IntegrityError(f"A stored event is of the unknown kind {_shown(kind)}. Known are: {', '.join(_FIELDS)}.")
    if set(value) != _FIELDS[kind] | {"kind"}:
        wanted = ", ".join(sorted(_FIELDS[kind])) or "nothing else"
        raise IntegrityError(
            f"A stored {kind} event must hold kind and {wanted}; this one holds {_shown(list(value))}."
        )
    match kind:
        case "no-op":
            return NoOpDpEvent()
        case "non-private":
            return NonPrivateDpEvent()
        case "gaussian":
            return GaussianDpEvent(_noise(value["noise_multiplier"]))
        case "laplace":
            return LaplaceDpEvent(_noise(value["noise_multiplier"]))
        case "poisson-sampled":
            probability = _probability(value["sampling_probability"])
            return PoissonSampledDpEvent(probability, _from_json(value["event"], depth + 1))
        case "self-composed":
            return SelfComposedDpEvent(_from_json(value["event"], depth + 1), _count(value["count"]))
        case "skellam":
            return _checked(SkellamDpEvent(value["variance"], value["l1"], value["l2_squared"]))
        case "distributed-discrete-gaussian":
            sigma, shares = value["sigma"], value["shares"]
            return _checked(DistributedDiscreteGaussianDpEvent(sigma, shares, value["l2_squared"], value["dimension"]))
        case "randomized-response":
            return _checked(RandomizedResponseDpEvent(value["epsilon"], value["options"]))
    parts = value["events"]
    if not isinstance(parts, list):
        raise IntegrityError("A stored composed event must hold a list of events.")
    return ComposedDpEvent([_from_json(part, depth + 1) for part in parts])


def _checked(event: DpEvent) -> DpEvent:
    """A release under Skellam or discrete Gaussian noise, or by randomised response, with plain numbers in it, all in
    range.
    """
    if isinstance(event, RandomizedResponseDpEvent):
        options = _count(event.options, "options")
        if not 2 <= options <= MOST_OPTIONS:
            raise IntegrityError(f"A randomised response has {options:,} options; it must have 2 to {MOST_OPTIONS:,}.")
        return RandomizedResponseDpEvent(_noise(event.epsilon, "epsilon"), options)
    if isinstance(event, SkellamDpEvent):
        return SkellamDpEvent(
            _noise(event.variance, "variance"), _count(event.l1, "l1"), _count(event.l2_squared, "l2_squared")
        )
    sigma = _noise(event.sigma, "sigma")
    if sigma < SMALLEST_LOCAL_SIGMA:
        raise IntegrityError(
            f"The sigma of a share is {sigma:g}; it must be at least {SMALLEST_LOCAL_SIGMA:g} grid units."
        )
    return DistributedDiscreteGaussianDpEvent(
        sigma,
        _count(event.shares, "shares"),
        _count(event.l2_squared, "l2_squared"),
        _count(event.dimension, "dimension"),
    )


def _check_depth(depth: int) -> None:
    if depth > DEEPEST:
        raise IntegrityError(f"An event is nested more than {DEEPEST} deep. List its parts side by side.")


def _number(value: object, name: str) -> float:
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise IntegrityError(f"The {name} of an event is {_shown(value)}; it must be a finite number.")
    return number


def _noise(value: object, name: str = "noise_multiplier") -> float:
    number = _number(value, name)
    if number <= 0:
        raise IntegrityError(f"The {name} of an event is {_shown(value)}; it must be above 0.")
    return number


def _probability(value: object) -> float:
    number = _number(value, "sampling_probability")
    if not 0 < number <= 1:
        raise IntegrityError(f"The sampling_probability of an event is {_shown(value)}; it must be above 0, at most 1.")
    return number


def _count(value: object, name: str = "count") -> int:
    count = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else 0
    if not 1 <= count < 1 << 53:
        raise IntegrityError(
            f"The {name} of an event is {_shown(value)}; it must be a whole number above 0, below 2^53."
        )
    return count


def _shown(value: object) -> str:
    """A value for a message: never long, and what Python refuses to write (very long numbers, deep lists) included."""
    try:
        return repr(value)[:80]
    except ValueError:
        return "an enormous number"
    except RecursionError:
        return "a value that is nested very deep"
