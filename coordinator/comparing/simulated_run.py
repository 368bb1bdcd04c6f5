"""Runs a recipe over simulated parties in this process, by its own `collect` and `learn`."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Generic, Protocol, TypeVar

from coordinator.errors import RunError
from coordinator.federation.federation import Federation
from coordinator.federation.in_clear import InClear
from coordinator.plan.plan import Plan
from coordinator.pricing.priced_plan import Priceable, price_plan
from coordinator.pricing.release import PricedPlan
from coordinator.progress.progress import Progress, Silent
from coordinator.store.store import RunStore, holds_run
from coordinator.transport.launchers import Simulation
from coordinator.transport.link import PartyLink
from protos.digest import plan_hash

PlanT_co = TypeVar("PlanT_co", bound=Plan, covariant=True)
Value = TypeVar("Value")

RUN: Final = "simulated"


class _Folders:
    """Folders of what is computed one after another, and has no folder of its own."""

    def __init__(self, place: Path):
        self._place = place
        self._next = 0

    def next(self, same: Callable[[Path], bool]) -> Path:
        """The next one. Unless `same` is true of it, it is emptied, and all that come after it are: what they hold can
        follow from what it held.
        """
        number, self._next = self._next, self._next + 1
        folder = self._place / str(number)
        if not same(folder):
            for each in self._place.glob("*"):
                if each.name.isdecimal() and int(each.name) >= number:
                    shutil.rmtree(each)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder


_KEPT: ContextVar[_Folders | None] = ContextVar("kept", default=None)
"""None where nothing is kept."""


class Collecting(Priceable[PlanT_co], Protocol[PlanT_co]):
    """The part of a recipe that a simulated run calls; see `coordinator.systems.system.Recipe`."""

    async def collect(
        self,
        priced: PricedPlan[Any],
        federation: Federation,
        store: RunStore,
        stage: Callable[[str], AbstractContextManager[dict[str, Any]]],
    ) -> dict[str, int]: ...

    def learn(self, priced: PricedPlan[Any], present: dict[str, int], store: RunStore, progress: Progress) -> bytes: ...


@dataclass(frozen=True, slots=True)
class SimulatedRun(Generic[PlanT_co]):
    """A run whose sums are stored. present: the result of `Recipe.collect`. content: the student's parameters."""

    priced: PricedPlan[PlanT_co]
    present: dict[str, int]
    store: RunStore
    content: bytes


@contextmanager
def kept_in(folder: Path) -> Iterator[None]:
    """Inside it, runs that are given no folder, and other trainings, are kept in this one: the first, the second and so
    on.

    So what drives the same runs in the same order, and was stopped, goes on after the sums that are stored. A run of
    another plan in its place is removed, and so is what came after it.
    """
    token = _KEPT.set(_Folders(folder))
    try:
        yield
    finally:
        _KEPT.reset(token)


def kept_folder(same: Callable[[Path], bool]) -> Path | None:
    """The folder of the next training inside of `kept_in`; None outside. same: whether what a folder holds, perhaps
    nothing, is of this training; else it is emptied.
    """
    kept = _KEPT.get()
    return None if kept is None else kept.next(same)


@contextmanager
def driven(
    recipe: Collecting[PlanT_co],
    simulation: Simulation,
    progress: Progress,
    base: Path | None = None,
    folder: Path | None = None,
    links: Sequence[PartyLink] | None = None,
    shown: Progress | None = None,
    learns: bool = True,
) -> Iterator[SimulatedRun[PlanT_co]]:
    """Price a recipe, collect from simulated parties, and learn. Its store is deleted when the context closes, unless
    it is in a folder of `kept_in`.

    base: the folder against which the plan's paths are resolved, for recipes that read files while they run. folder:
    where the store is kept instead, so that a run that was stopped goes on after what is stored there. links: what is
    asked in place of the simulation's own links, for whoever listens. shown: sees the sums arrive; nobody by default.
    learns: False for sums alone, without a student: content is then empty.
    Every release has the plan's own noise, in shares. Secure sums are added up without masks, which gives the same sum.
    Raises whatever the recipe, its pricing and the parties' tasks raise; `RunError` where the folder holds the run of
    another plan.
    """
    priced = price_plan(recipe)
    if folder is None:
        folder = kept_folder(lambda found: _same(found / "run", priced))
    with TemporaryDirectory(prefix="conclave-") if folder is None else nullcontext(folder) as place:
        store = _store(Path(place) / "run", priced)
        with closing(store):
            if base is not None:
                store.note(base=str(base))

            async def collect() -> dict[str, int]:
                federation = InClear(simulation.links() if links is None else links, priced.plan, shown or Silent())
                await federation.open(RUN, priced)
                return await recipe.collect(priced, federation, store, store.stage)

            present = _finished(collect)
            content = recipe.learn(priced, present, store, progress) if learns else b""
            yield SimulatedRun(priced, present, store, content)


def _same(folder: Path, priced: PricedPlan[Any]) -> bool:
    """Whether a folder holds the run of this plan: public data, or this software, can have changed."""
    if not holds_run(folder):
        return False
    with closing(RunStore(folder)) as store:
        return store.plan_hash == plan_hash(priced.binding)


def _store(folder: Path, priced: PricedPlan[Any]) -> RunStore:
    digest = plan_hash(priced.binding)
    if not holds_run(folder):
        return RunStore.create(folder, RUN, priced.plan.run.name, digest)
    store = RunStore(folder)
    if store.plan_hash != digest:
        store.close()
        raise RunError(f"{folder} holds the run of another plan. Remove it to begin this one.", code="C107")
    return store


def _finished(make: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
    """Run a coroutine to its result, also where an event loop runs already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(make())).result()
