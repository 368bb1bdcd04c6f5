"""The interface of a system: one value, and the recipe that it makes from a plan."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from coordinator.auditing.attacks import Attacks
from coordinator.comparing.comparable import Comparable, ComparisonRequest
from coordinator.federation.federation import Federation
from coordinator.forecasting.forecast import Forecast
from coordinator.forecasting.needs import Needs
from coordinator.page.exhibits import Exhibits
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
"""Opens a stage of a run by its name; the values that are put into the dictionary are kept as its result."""


class Recipe(Priceable[PlanT_co], Protocol[PlanT_co]):
    """A plan with its public data, and the system's part in each stage of a run.

    `Priceable` gives its releases and their noise: `coordinator.pricing.priced_plan.price_plan` prices a recipe, and
    every later stage is given the priced plan.
    """

    def doubts(self) -> list[str]:
        """A sentence for each reason to doubt that the public text itself is like the parties'."""
        ...

    async def collect(
        self, priced: PricedPlan[Any], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        """The private half: have all releases made and stored. Returns how many parties are in the sum of each release
        with rows.

        When it is run again after a stop, it asks for nothing that is already stored.
        """
        ...

    def learn(self, priced: PricedPlan[Any], present: dict[str, int], store: RunStore, progress: Progress) -> bytes:
        """The student's parameters, as safetensors, from the stored releases, by post-processing alone.

        present: what `collect` returned.
        """
        ...

    def student(
        self, content: bytes, priced: PricedPlan[Any], present: dict[str, int], store: RunStore, progress: Progress
    ) -> Student:
        """The student with these parameters, measured on public data."""
        ...


@dataclass(frozen=True, slots=True)
class Alone:
    """What training without parties needs: a plan and a reader of its simulated text. folder: where the student
    goes.
    """

    plan: Any
    launcher: Launcher
    parties: dict[str, dict[str, Any]]
    base: Path
    cache: Path
    folder: Path
    progress: Progress


@dataclass(frozen=True, slots=True)
class TrainedAlone:
    """A finished training without parties. student: its folder, an absolute path. metrics: on public test text.
    warning: that there is no privacy guarantee. epsilon, delta: None.
    """

    student: Path
    metrics: dict[str, Any]
    warning: str
    epsilon: None = None
    delta: None = None

    def __repr__(self) -> str:
        return f"<training without parties: no guarantee, student in {self.student}>"


@dataclass(frozen=True, slots=True)
class System:
    """A system, found by its name among the entry points of the group `conclave.systems`.

    plan: the class of its plans. prepare: reads all public data that a run uses, so that a mistake in it costs nothing;
    raises `PlanError`, and `ConclaveError` for what could not be read. recipe: makes a recipe from a plan and the
    result of `prepare`, None where nothing was read. needs: the expected memory and disk of a priced recipe; `base` and
    `cache` as `prepare` takes them. forecast: what a run would cost and show, given how many seconds `prepare` took.
    comparison: its rows and measures in a comparison. example: the commented plan that `coordinator init` writes, None
    for a system without one. alone: trains without parties and without privacy, on simulated text; such a system has no
    recipe, and its `prepare` says so. first: whether its plan is the one to start from where no system is named,
    because it needs no files. audit: the attacks on a prepared recipe, None for a system that offers no audit.
    exhibits: what a run's page shows of its student beside what it shows of every run, None where that is all.
    about: what its student is, in words that stand after "the parties taught". words: the vocabulary of a prepared
    recipe, as bytes; None for a system that counts no words.
    """

    name: str
    plan: type[Plan]
    prepare: Callable[[Any, Path, Path], Any]
    recipe: Callable[[Any, Any], Recipe[Any]]
    needs: Callable[[Any, PricedPlan[Any], Path, Path], Needs]
    forecast: Callable[[Any, PricedPlan[Any], Path, Path, float], Forecast]
    comparison: Callable[[ComparisonRequest], Comparable]
    example: Example | None = None
    alone: Callable[[Alone], TrainedAlone] | None = None
    first: bool = False
    audit: Callable[[Any], Attacks] | None = None
    exhibits: Exhibits | None = None
    about: str | None = None
    words: Callable[[Any], bytes] | None = None

    def prepared(self, plan: Plan, base: Path, cache: Path) -> Recipe[Any]:
        """The recipe of a plan with its public data read. base: the folder against which the plan's paths are
        resolved.
        """
        return self.recipe(plan, self.prepare(plan, base, cache))
