"""How much of what a release let out is signal, measured on the noisy sums themselves: post-processing, which is free.

The noise of a sum is known, so that what its numbers have beyond it is the parties'.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from aggregation.mechanisms.joint import JointReleased
from aggregation.mechanisms.mechanism import Form, Released, Summed
from coordinator.pricing.release import PricedPlan
from coordinator.store.faults import sound
from coordinator.store.store import RunStore

FACT: Final = "heard"
_ERRORS: Final = 3.0
"""How many standard errors beyond the noise count as signal."""
_STEPS: Final = 50
"""After how many steps of a training what was heard is kept."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The numbers of a release, or of one part of it: their mean square, that of their noise, and how many there are.

    part: "" where the release has one kind of number.
    """

    release: str
    part: str
    square: float
    noise: float
    values: int

    @property
    def signal(self) -> float:
        """Mean square of what the parties had, in units of the noise's; 0 where it cannot be told from noise."""
        beyond = self.square - self.noise
        # The mean square of so many normals errs by sqrt(2 / values) of it.
        return beyond / self.noise if beyond > _ERRORS * self.noise * math.sqrt(2 / self.values) else 0.0

    @property
    def ratio(self) -> float:
        """Root mean square of the signal over that of the noise."""
        return math.sqrt(self.signal)

    @property
    def share(self) -> float:
        """The part of the numbers' energy that is signal, in 0..1."""
        return self.signal / (1 + self.signal)


def heard(priced: PricedPlan[Any], present: Mapping[str, int], store: RunStore) -> list[Heard]:
    """What is heard in every release whose sum is stored. present: how many parties are in each.

    Memory: one block. Steps of a training are added as they are made, by `hear_step`.
    """
    found = []
    for release in priced.releases:
        if release.form != Form.SUMMED or release.name not in present:
            continue
        mechanism: Summed = release.mechanism  # type: ignore[assignment]
        blocks = (mechanism.release(block, present[release.name]) for *_, block in store.blocks(release.name))
        found += _added((release.name, part, each) for made in blocks for part, each in _parts(made))
    return found


class Steps:
    """What is heard in the steps of a training, added up; it is kept now and then, since it is only for looking at."""

    def __init__(self, release: str, store: RunStore) -> None:
        self._store = store
        (self._sum,) = kept(store).get(release, [Heard(release, "", 0.0, 0.0, 0)])[:1]

    def add(self, made: Released, number: int) -> None:
        """Add the step of this number."""
        self._sum = _joined(self._sum, _measured(self._sum.release, "", made))
        if number % _STEPS == 0:
            self.keep()

    def keep(self) -> None:
        """Keep what was added up so far with the run."""
        if self._sum.values:
            keep([self._sum], self._store)


def keep(found: Iterable[Heard], store: RunStore) -> None:
    """Keep what was heard with the run; what it kept of other releases stays."""
    with sound(store.folder):
        kept = {(each["release"], each["part"]): each for each in store.fact(FACT) or []}
    kept |= {(each.release, each.part): asdict(each) for each in found}
    store.note(**{FACT: list(kept.values())})


def kept(store: RunStore) -> dict[str, list[Heard]]:
    """What was heard, by release. Raises `RunError` where it is damaged."""
    found: dict[str, list[Heard]] = {}
    with sound(store.folder):
        for each in store.fact(FACT) or []:
            one = Heard(str(each["release"]), str(each["part"]), float(each["square"]), float(each["noise"]),
                        int(each["values"]))  # fmt: skip
            if one.values > 0 and one.noise > 0 and math.isfinite(one.square):
                found.setdefault(one.release, []).append(one)
    return found


def _parts(made: Any) -> list[tuple[str, Released]]:
    if isinstance(made, JointReleased):
        parts = [("votes", made.votes), ("hidden", made.hidden)]
        return [(name, each) for name, each in parts if each is not None]
    return [("", made)] if isinstance(made, Released) else []


def _added(measured: Iterable[tuple[str, str, Released]]) -> list[Heard]:
    found: dict[str, Heard] = {}
    for release, part, each in measured:
        one = _measured(release, part, each)
        found[part] = one if part not in found else _joined(found[part], one)
    return [each for each in found.values() if each.noise > 0]


def _measured(release: str, part: str, made: Released) -> Heard:
    square = float(np.mean(np.square(made.values, dtype=np.float64))) if made.values.size else 0.0
    return Heard(release, part, square, made.sigma**2, int(made.values.size))


def _joined(one: Heard, other: Heard) -> Heard:
    """The same over the numbers of both."""
    values = one.values + other.values
    if not values:
        return other
    square = (one.square * one.values + other.square * other.values) / values
    noise = (one.noise * one.values + other.noise * other.values) / values
    return Heard(other.release, other.part, square, noise, values)
