"""What a comparison asks of a system: its methods, their data and measures, and how the table shows them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dp_accounting import ComposedDpEvent, DpEvent

from aggregation.noise.stream import NoiseStream
from coordinator.comparing.simulated_run import Collecting
from coordinator.errors import PlanError
from coordinator.plan.plan import Plan
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.progress.progress import Progress
from coordinator.transport.launchers import Launcher
from protos.console.settings import SettingsError, check_settings

PlanT = TypeVar("PlanT", bound=Plan)

Spread = tuple[float, float]
"""Mean and standard deviation over the seeds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A student, what it cost, and what is worth saying of how it came about.

    model: what `Comparable.metrics` measures. event: None where there is no privacy. claimed: the epsilon that the
    paper's own formula gives for the same noise.
    """

    model: Any
    event: DpEvent | None
    claimed: float | None = None
    notes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table: `name` for the command line, `label` for people.

    make: runs the method on a seed's data at an epsilon. plain: drawn as a reference line. leaks: its epsilon covers
    only a part of what it does, so it has no guarantee.
    """

    name: str
    label: str
    make: Callable[[Any, float], Outcome]
    private: bool = True
    plain: bool = False
    leaks: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """How students are shown.

    metric: what the table has at each epsilon and the picture draws; axis: what stands beside it. columns: other
    metrics, and what they are called; further ones follow under their own names. worst: from which a student is off the
    scale. best: of several means. shown: a mean, its spread (None of one seed) and the best mean without privacy, in a
    cell. said: a value, None where it is not defined, in a line of progress. about: what the table shows, of a plan and
    its number of seeds. claims: whether the paper's own epsilon has a column. logarithmic: the axis.
    """

    metric: str
    axis: str
    columns: tuple[tuple[str, str], ...]
    best: Callable[[list[float]], float]
    shown: Callable[[float, float | None, float | None], str]
    said: Callable[[float | None], str]
    about: Callable[[Any, int], str]
    claims: bool = False
    logarithmic: bool = False
    worst: float | None = None


class SeedData:
    """The data of one seed; a comparison's own adds public data and simulated parties. plan: at this seed."""

    __slots__ = ()
    plan: Any

    @property
    def seed(self) -> int:
        """The plan's seed."""
        return int(self.plan.run.seed)

    @property
    def delta(self) -> float:
        """The delta at which events are priced; the rest of the plan's covers the noise sampler's error."""
        return float(self.plan.privacy.delta) * (1 - SAMPLER_SHARE)

    def stream(self, *labels: str | int) -> NoiseStream:
        """A noise stream of its own for these labels; it derives from the seed only where the plan says so."""
        if self.plan.privacy.insecure_reproducible_noise:
            return NoiseStream.insecure(self.seed, *labels)
        return NoiseStream.from_system()


class Comparable(Protocol):
    """Methods that one kind of plan can be compared by, on its simulated data."""

    @property
    def plan(self) -> Plan: ...

    @property
    def methods(self) -> Mapping[str, Method]:
        """Those that go with the plan, in the order of the table."""
        ...

    @property
    def view(self) -> View: ...

    def data(self, seed: int, folder: Path) -> Any:
        """The data of one seed, `SeedData`; working files go below `folder`. Raises `ConclaveError`."""
        ...

    def metrics(self, data: Any, model: Any) -> dict[str, Any]:
        """How good a student is, by name, on public text; `view.metric` among them."""
        ...


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """A plan whose methods are to be compared, and its simulated parties.

    base: the folder against which the plan's paths are resolved. recipe: makes the recipe of a system, by the system's
    name, a plan and its public data, so that a row of one system's comparison can be another system; raises `PlanError`
    where none of that name is installed.
    """

    plan: Any
    launcher: Launcher
    parties: dict[str, dict[str, Any]]
    base: Path
    cache: Path
    progress: Progress
    recipe: Callable[[str, Any, Any], Collecting[Any]]


def composed(events: list[DpEvent]) -> DpEvent:
    """One event for all of them."""
    return events[0] if len(events) == 1 else ComposedDpEvent(events)


def changed(
    plan: PlanT,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    epsilon: float | None = None,
    seed: int | None = None,
) -> PlanT:
    """The plan at another epsilon or seed, and with other settings in some tables; checked again.

    Raises `PlanError` for a plan that cannot be.
    """
    found = plan.model_dump()
    for name, settings in (tables or {}).items():
        found[name] |= settings
    if epsilon is not None:
        found["privacy"] |= {"epsilon": epsilon, "noise_multiplier": None}
        plan.divide_again(found, epsilon / plan.privacy.epsilon)
    if seed is not None:
        found["run"]["seed"] = seed
    try:
        return check_settings(found, type(plan), "the plan")
    except SettingsError as error:
        raise PlanError(str(error)) from None
