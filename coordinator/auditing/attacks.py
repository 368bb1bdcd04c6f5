"""The interface by which a system is attacked: its canaries, and their scores in what a run released and published."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.auditing.canaries import Canary, Planted
from coordinator.auditing.source import grouped
from coordinator.auditing.watching import Watch
from coordinator.comparing.simulated_run import SimulatedRun
from coordinator.plan.plan import Plan
from coordinator.progress.progress import Progress
from coordinator.published.audit import Exposed
from coordinator.transport.launchers import Simulation
from learning.text.source import Document

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ran:
    """A simulated run, and its parties."""

    run: SimulatedRun[Any]
    parties: Simulation


@dataclass(frozen=True, slots=True)
class Seen:
    """What an attacker has: every release and the student, and all records but the canaries.

    ran: with the canaries that are in. without: the same plan with none of them, where the attacks ask for it: what is
    known of the others; nothing was learned from it. watch: what a store does not keep, where they ask for it. rows:
    the records that are in whatever the coins say.
    """

    planted: Planted
    ran: Ran
    without: Ran | None
    watch: Watch | None
    rows: Sequence[Document]
    progress: Progress

    def units(self, plan: Plan) -> list[tuple[Document, ...]]:
        """The records of all units: the canaries, whether they are in or not, and then the others."""
        return [canary.rows for canary in self.planted.canaries] + grouped(plan, self.rows)


@dataclass(frozen=True, slots=True)
class Scores:
    """One attack. attacked: the release, or "student". how: what the attacker does, as a sentence. values: the score of
    every canary [canaries], higher where it seems to be in.
    """

    attacked: str
    how: str
    values: Floats


class Attacks(Protocol):
    """The attacks on one plan of a system.

    compares: whether they need the same run without canaries (`Seen.without`). watches: whether they need what a store
    does not keep (`Seen.watch`). most: records of the source that are simulated where nobody says how many; None for
    all. Fewer hide a canary less, and a claim has to hold whatever the other records are.
    """

    @property
    def compares(self) -> bool: ...

    @property
    def watches(self) -> bool: ...

    @property
    def most(self) -> int | None: ...

    def worst(self, count: int, rows: Sequence[Document], rng: np.random.Generator) -> list[Document]:
        """So many records that the plan's mechanisms hide least, fewer where there are no more.

        rows: of the source; what is made has the columns of one of them. Each has to be one unit.
        """
        ...

    def scores(self, seen: Seen) -> Iterable[Scores]:
        """The scores of all canaries in every release, and in the student."""
        ...

    def losses(self, canaries: Sequence[Canary], ran: Ran) -> Floats | None:
        """The loss of every canary under the student of a run, [canaries]; None where there is no such loss."""
        ...

    def exposures(self, seen: Seen) -> Iterable[Exposed]:
        """How far numbers stand out under the student; nothing where it is no language model."""
        ...
