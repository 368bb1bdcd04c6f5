"""What a system is to everything around it: one value, and the recipe that it makes of a plan."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from coordinator.comparing.comparable import Comparable, Family
from coordinator.federation.federation import Federation
from coordinator.forecasting.forecast import Forecast
from coordinator.forecasting.needs import Needs
from coordinator.plan.plan import Plan
from coordinator.pricing.priced_plan import Priceable
from coordinator.pricing.release import PricedPlan
from coordinator.progress.progress import Progress
from coordinator.publishing.student import Student
from coordinator.store.store import RunStore
from coordinator.systems.example import Example
from coordinator.transport.launchers import Launcher

PlanT_co = TypeVar("PlanT_co", bound=Plan, covariant=True)

Stage = Callable[[str], AbstractContextManager[dict[str, Any]]]
"""Opens a stage of a run by its name; what is put into the dictionary is kept as its result."""


class Recipe(Priceable[PlanT_co], Protocol[PlanT_co]):
    """A plan and what is public of it, and what a system has to say of them at each station of a run.

    What is released under which noise is in `Priceable`: `coordinator.pricing.priced_plan.price_plan` prices a recipe,
    and hands it the outcome at every later station.
    """

    def doubts(self) -> list[str]:
        """A sentence for each reason to doubt that the public text itself is like the parties'."""
        ...

    async def collect(
        self, priced: PricedPlan[Any], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        """The private half: how many parties are in the sum of each release that has rows, once all are stored.

        Run again after it was stopped, it asks for nothing that is stored.
        """
        ...

    def learn(self, priced: PricedPlan[Any], present: dict[str, int], store: RunStore, progress: Progress) -> bytes:
        """The student's parameters, safetensors, from what is stored. Post-processing throughout.

        present: what `collect` gave.
        """
        ...

    def student(self, content: bytes, priced: PricedPlan[Any], present: dict[str, int], store: RunStore) -> Student:
        """The student of these parameters, measured on public data."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """What training without parties needs: a plan, and who reads its simulated text. folder: the student's place."""

    plan: Any
    launcher: Launcher
    parties: dict[str, dict[str, Any]]
    base: Path
    cache: Path
    folder: Path
    progress: Progress


@dataclass(frozen=True, slots=True)
class TrainedAlone:
    """A finished training without parties. student: its folder, absolute. metrics: of public test text. warning: that
    nothing is promised. epsilon, delta: none.
    """

    student: Path
    metrics: dict[str, Any]
    warning: str
    epsilon: None = None
    delta: None = None


@dataclass(frozen=True, slots=True)
class System:
    """A system, found by its name: the entry points of the group `conclave.systems` name values of this class.

    plan: the tables of its plans. prepare: reads everything public that a run uses, so that a mistake in it costs
    nothing; raises `PlanError`, and `ConclaveError` of whatever could not be read. recipe: of a plan and of what
    `prepare` gave, None where nothing was read. needs: what a recipe, priced, is expected to need of memory and
    disk; `base` and `cache` as `prepare` takes them. forecast: what it would cost and show; and how many seconds
    `prepare` took. comparison: its rows and its measures. example: the commented plan that
    `coordinator init` writes, None for a system that has none of its own. alone: trains without parties, on simulated
    text, what promises nothing; such a system has no recipe, and its `prepare` says so.
    """

    name: str
    plan: type[Plan]
    prepare: Callable[[Any, Path, Path], Any]
    recipe: Callable[[Any, Any], Recipe[Any]]
    needs: Callable[[Any, PricedPlan[Any], Path, Path], Needs]
    forecast: Callable[[Any, PricedPlan[Any], Path, Path, float], Forecast]
    comparison: Callable[[Comparable], Family]
    example: Example | None = None
    alone: Callable[[Alone], TrainedAlone] | None = None

    def prepared(self, plan: Plan, base: Path, cache: Path) -> Recipe[Any]:
        """The recipe of a plan, everything public read. base: the folder that the plan's paths start at."""
        return self.recipe(plan, self.prepare(plan, base, cache))
