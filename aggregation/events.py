"""What happened, as the ledger stores it: `DpEvent` values to JSON and back, and their plain parts."""

import math
from collections.abc import Iterator, Mapping
from numbers import Integral, Real

from dp_accounting import (
    ComposedDpEvent,
    DpEvent,
    GaussianDpEvent,
    LaplaceDpEvent,
    NoOpDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)

from aggregation.errors import IntegrityError

DEEPEST = 16

_FIELDS = {
    "no-op": set[str](),
    "gaussian": {"noise_multiplier"},
    "laplace": {"noise_multiplier"},
    "poisson-sampled": {"sampling_probability", "event"},
    "self-composed": {"event", "count"},
    "composed": {"events"},
}


def to_json(event: DpEvent) -> dict[str, object]:
    """An event as JSON values: its kind under "kind", its parameters by name; floats come back bit for bit.

    Raises `IntegrityError` for a kind that the ledger does not know and for a parameter out of range.
    """
    return _to_json(event, 0)


def from_json(value: object) -> DpEvent:
    """The event that `to_json` wrote.

    Raises `IntegrityError` for an unknown kind, a missing or odd key, and a value out of range.
    """
    return _from_json(value, 0)


def leaves(event: DpEvent) -> Iterator[tuple[DpEvent, int]]:
    """The parts of a composition, each with how often it happened; their composition costs what the event costs.

    An event of a kind not known here is a part as it is. Raises `IntegrityError` for a parameter of a known kind that
    is out of range, which an accountant might otherwise price at less than it cost (a negative count, NaN).
    """
    yield from _leaves(event, 1, 0)


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
        case "gaussian":
            return GaussianDpEvent(_noise(value["noise_multiplier"]))
        case "laplace":
            return LaplaceDpEvent(_noise(value["noise_multiplier"]))
        case "poisson-sampled":
            probability = _probability(value["sampling_probability"])
            return PoissonSampledDpEvent(probability, _from_json(value["event"], depth + 1))
        case "self-composed":
            return SelfComposedDpEvent(_from_json(value["event"], depth + 1), _count(value["count"]))
    parts = value["events"]
    if not isinstance(parts, list):
        raise IntegrityError("A stored composed event must hold a list of events.")
    return ComposedDpEvent([_from_json(part, depth + 1) for part in parts])


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


def _noise(value: object) -> float:
    number = _number(value, "noise_multiplier")
    if number <= 0:
        raise IntegrityError(f"The noise_multiplier of an event is {_shown(value)}; it must be above 0.")
    return number


def _probability(value: object) -> float:
    number = _number(value, "sampling_probability")
    if not 0 < number <= 1:
        raise IntegrityError(f"The sampling_probability of an event is {_shown(value)}; it must be above 0, at most 1.")
    return number


def _count(value: object) -> int:
    count = int(value) if isinstance(value, Integral) and not isinstance(value, bool) else 0
    if not 1 <= count < 1 << 53:
        raise IntegrityError(
            f"The count of a self-composed event is {_shown(value)}; it must be a whole number above 0."
        )
    return count


def _shown(value: object) -> str:
    """A value for a message: never long, and an enormous integer (whose text Python refuses to make) included."""
    try:
        return repr(value)[:80]
    except ValueError:
        return "an enormous number"
