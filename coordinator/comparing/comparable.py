"""The interface by which a system is compared: its methods, their data and metrics, and how the table shows them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from dp_accounting import ComposedDpEvent, DpEvent

from aggregation.mechanisms.mechanism import HEURISTIC
from aggregation.noise.stream import NoiseStream
from coordinator.comparing.simulated_run import Collecting
from coordinator.errors import PlanError
from coordinator.plan.plan import Plan
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.progress.progress import Progress
from coordinator.transport.launchers import Launcher
from protos.console.mistakes import SettingsError
from protos.console.settings import check_settings

PlanT = TypeVar("PlanT", bound=Plan)

Spread = tuple[float, float]
"""Mean and standard deviation over the seeds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A student, what it cost, and figures of how it was made.

    model: what `Comparable.metrics` measures. event: what the student cost, None without privacy. claimed: the epsilon
    that the paper's own formula gives for the same noise. notes: further figures, by name.
    """

    model: Any
    event: DpEvent | None
    claimed: float | None = None
    notes: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Method:
    """A row of the table: `name` for the command line, `label` for people.

    make: runs the method on a seed's data at an epsilon. private: whether it spends epsilon. plain: it is drawn as a
    reference line. leaks: its epsilon covers only a part of what it does, so it has no guarantee. heuristic: no proof
    covers what it releases, so that it spends no epsilon, and its row says so. Raises `ValueError` for one that spends
    epsilon.
    """

    name: str
    label: str
    make: Callable[[Any, float], Outcome]
    private: bool = True
    plain: bool = False
    leaks: bool = False
    heuristic: bool = False

    def __post_init__(self) -> None:
        if self.heuristic and self.private:
            raise ValueError(f"{self.name} is a heuristic, which spends no epsilon")

    @property
    def shown(self) -> str:
        """The label, with what stands in place of a guarantee."""
        return f"{self.label} ({HEURISTIC})" if self.heuristic else self.label


@dataclass(frozen=True, slots=True)
class View:
    """How a table and a picture show students.

    metric: the metric that the table lists at each epsilon and the picture draws. axis: the label of the picture's
    axis. columns: other metrics and their headings; metrics that are not named follow under their own names. best:
    picks the best of several means. shown: writes a cell from a mean, its spread (None for one seed) and the best mean
    without privacy. said: writes a value, None where it is not defined, in a line of progress. about: a sentence about
    the table, from a plan and its number of seeds. claims: whether the paper's own epsilon has a column. logarithmic:
    whether the axis is. worst: a student at this value or above is off the scale.
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
    """The data of one seed; a system adds its public data and its simulated parties. plan: the plan at this seed."""

    __slots__ = ()
    plan: Any

    @property
    def seed(self) -> int:
        """The plan's seed."""
        return int(self.plan.run.seed)

    @property
    def delta(self) -> float:
        """The delta at which events are priced; the rest of the plan's delta is for the noise sampler."""
        return float(self.plan.privacy.delta) * (1 - SAMPLER_SHARE)

    def stream(self, *labels: str | int) -> NoiseStream:
        """A noise stream for these labels alone; it derives from the seed only where the plan says so."""
        if self.plan.privacy.insecure_reproducible_noise:
            return NoiseStream.insecure(self.seed, *labels)
        return NoiseStream.from_system()


class Comparable(Protocol):
    """The methods that can be compared under one kind of plan, on its simulated data."""

    @property
    def plan(self) -> Plan: ...

    @property
    def methods(self) -> Mapping[str, Method]:
        """The methods that this plan allows, by name, in the order of the table."""
        ...

    @property
    def view(self) -> View: ...

    def data(self, seed: int, folder: Path) -> Any:
        """Make the data of one seed, a `SeedData`; working files go below `folder`. Raises `ConclaveError`."""
        ...

    def metrics(self, data: Any, model: Any) -> dict[str, Any]:
        """Measure a student on public text: metrics by name, `view.metric` among them."""
        ...


@dataclass(frozen=True, slots=True)
class ComparisonRequest:
    """A plan whose methods are to be compared, and its simulated parties.

    base: the folder against which the plan's paths are resolved. recipe: makes a system's recipe from the system's
    name, a plan and its public data, so that one system's comparison can have a row for another system; it raises
    `PlanError` where no system of that name is installed.
    """

    plan: Any
    launcher: Launcher
    parties: dict[str, dict[str, Any]]
    base: Path
    cache: Path
    progress: Progress
    recipe: Callable[[str, Any, Any], Collecting[Any]]


def composed(events: list[DpEvent]) -> DpEvent:
    """Compose several events into one."""
    return events[0] if len(events) == 1 else ComposedDpEvent(events)


def changed(
    plan: PlanT,
    tables: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    epsilon: float | None = None,
    seed: int | None = None,
) -> PlanT:
    """Copy a plan with another epsilon or seed, or with other settings in some tables, and check the copy.

    tables: settings by the name of their table. Raises `PlanError` where the changed plan is not valid, and for an
    epsilon of a plan without a guarantee.
    """
    found = plan.model_dump()
    for name, settings in (tables or {}).items():
        found[name] |= settings
    if epsilon is not None:
        if not plan.privacy.guarantee:
            raise PlanError("[privacy] guarantee = false: this plan promises nothing, at any epsilon.")
        found["privacy"] |= {"epsilon": epsilon, "noise_multiplier": None}
        plan.divide_again(found, epsilon / plan.privacy.epsilon)
    if seed is not None:
        found["run"]["seed"] = seed
    try:
        return check_settings(found, type(plan), "the plan")
    except SettingsError as error:
        raise PlanError(str(error)) from None
