"""What a run was computed with, in sentences, where that was not the processor in single precision everywhere."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from protos.computed import Computed

COORDINATOR: Final = "the coordinator"
NOT_PROTECTED: Final = "on what kind of device each party trained, and in which precision"


def differing(parties: Mapping[str, Computed]) -> str | None:
    """A sentence where parties compute with different things; None where they do not. Most of them are "the others"."""
    groups = _groups({name: [each] for name, each in parties.items()})
    if len(groups) < 2:
        return None
    *some, (most, others) = sorted(groups.items(), key=lambda group: (len(group[1]), group[1]))
    rest = f"the others on {most}" if len(others) > 1 else f"{others[0]} on {most}"
    first, *more = [
        f"{_listed(names)} {'computes' if len(names) == 1 else 'compute'} on {what}"
        if not at
        else f"{_listed(names)} on {what}"
        for at, (what, names) in enumerate(some)
    ]
    return f"{', '.join([first, *more])}, {rest}: a second run is not bit for bit the same"


def stated(parties: Mapping[str, Sequence[Computed]], here: Sequence[Computed], names: Iterable[str]) -> dict[str, Any]:
    """What is added to `privacy.json`; nothing where the processor computed everything in single precision.

    parties, here: all that each party, and the coordinator, computed with in the run: more than one where it was
    resumed on something else. names: of the parties whose work is in the result.
    """
    found = {name: list(parties.get(name, (Computed(),))) for name in sorted(names)} | {COORDINATOR: list(here)}
    if all(each.usual for several in found.values() for each in several):
        return {}
    groups = _groups(found)
    said = "; ".join(f"{_listed(who)} on {what}" for what, who in sorted(groups.items()))
    return {
        "coordinator": _both(found.pop(COORDINATOR)),
        "parties": {name: _both(several) for name, several in found.items()},
        "says": [
            f"Computed by {said}.",
            "With the same noise the same student comes out bit for bit only on these devices in these precisions, "
            "with the same versions of libraries; elsewhere it is the same up to rounding. The guarantee depends on "
            "neither: bounds are enforced and noise is added on integers.",
        ],
    }


def _groups(found: Mapping[str, Sequence[Computed]]) -> dict[str, list[str]]:
    """The names that computed with the same, by what it was."""
    groups: dict[str, list[str]] = {}
    for name, several in found.items():
        groups.setdefault(_both(several), []).append(name)
    return groups


def _both(several: Sequence[Computed]) -> str:
    return " and ".join(str(each) for each in several)


def _listed(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last
