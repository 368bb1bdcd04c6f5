"""What a recipe has to say at each station of a run; one recipe a system."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dp_accounting import DpEvent

from coordinator.errors import PlanError
from coordinator.forecasting.needs import Room
from coordinator.plan.plan import Plan
from coordinator.pricing.release import Bound, Release
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from protos.conclave.v1 import plan_pb2

if TYPE_CHECKING:
    from coordinator.federation.federation import Federation
    from coordinator.forecasting.forecast import Forecast
    from coordinator.publishing.report import Statement

PlanT_contra = TypeVar("PlanT_contra", bound=Plan, contravariant=True)
PublicT = TypeVar("PublicT")

Stage = Callable[[str], AbstractContextManager[dict[str, Any]]]
"""Opens a stage of a run by its name; what is put into the dictionary is kept as its result."""


class Student(Protocol):
    """What was learned, measured and ready to be published.

    metrics: what was measured on public data, JSON values. neighbours: of embeddings, the nearest words of a few.
    """

    @property
    def metrics(self) -> dict[str, Any]: ...

    @property
    def neighbours(self) -> dict[str, list[str]]: ...

    def write(self, folder: Path) -> None:
        """Write the model into a folder that is made for it, as other libraries read it. Raises OSError."""

    def card(self, statement: "Statement") -> str:
        """The model card, Markdown with its front matter: what it is, how to use it, and the promise in full."""
        ...


class Recipe(Protocol[PlanT_contra, PublicT]):
    """A system among parties: what is public, what is released under which noise, what is learned of it.

    fewer_cells, finer_grid: what to change in a plan that releases too much for its delta, or on too coarse a grid.
    """

    fewer_cells: str
    finer_grid: str

    def prepare(self, plan: PlanT_contra, base: Path, cache: Path) -> PublicT:
        """Read everything public that the run uses, so that a mistake in it costs nothing.

        Raises `PlanError`, and `ConclaveError` of whatever could not be read.
        """
        ...

    def room(self, bound: Bound[PlanT_contra], public: PublicT, base: Path, cache: Path) -> Room:
        """What the run is expected to need of memory and disk."""
        ...

    def forecast(self, plan: PlanT_contra, base: Path, cache: Path) -> "Forecast":
        """What a run would cost and show, from the plan and public data alone. Raises as `prepare`."""
        ...

    def whole(self, plan: PlanT_contra, multiplier: float, public: PublicT | None) -> DpEvent:
        """An event that costs no less than all releases at this noise multiplier, if their noise is Gaussian."""
        ...

    def releases(self, plan: PlanT_contra, multiplier: float, public: PublicT | None) -> tuple[Release, ...]:
        """What is released where all of it together has this noise multiplier. Raises `PlanError`."""
        ...

    def labelled(self, plan: PlanT_contra) -> plan_pb2.LabelledText | None:
        """What is read from parties' rows where they have labels."""
        ...

    async def collect(
        self, bound: Bound[PlanT_contra], public: PublicT, federation: "Federation", store: RunStore, stage: Stage
    ) -> dict[str, int]:
        """The private half: how many parties are in the sum of each release that has rows, once all are stored.

        Run again after it was stopped, it asks for nothing that is stored.
        """
        ...

    def parties_of(self, bound: Bound[PlanT_contra], store: RunStore) -> dict[str, tuple[str, ...]]:
        """Whose contributions are in each release."""
        ...

    def made_once(self, plan: PlanT_contra) -> bool:
        """Whether the sums cannot be made again without a party that was lost after them."""
        ...

    def learn(
        self, bound: Bound[PlanT_contra], public: PublicT, present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        """The student's parameters, safetensors, from what is stored. Post-processing throughout."""
        ...

    def student(
        self, content: bytes, bound: Bound[PlanT_contra], public: PublicT, present: dict[str, int], store: RunStore
    ) -> Student:
        """The student of these parameters, measured on public data."""
        ...


def recipe_of(plan: Plan) -> Recipe[Any, Any]:
    """The recipe that a plan names. Raises `PlanError` for one that asks nothing of parties."""
    if plan.run.recipe == "fine_tune":
        raise PlanError(
            '[run] recipe = "fine_tune" has no privacy, and so nothing to forecast, check or resume: it trains in '
            "clear. Run it, or compare with it."
        )
    if plan.run.recipe == "dped":
        from coordinator.systems.dped.recipe import Dped

        return Dped()
    if plan.run.recipe == "pate":
        from coordinator.systems.pate.recipe import Pate

        return Pate()
    if plan.run.recipe == "privdistil":
        from coordinator.systems.privdistil.recipe import PrivDistil

        return PrivDistil()
    from coordinator.systems.dp_sgd.recipe import DpSgd

    return DpSgd()
