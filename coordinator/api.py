"""Conclave from Python: the same as the `coordinator` command, blocking, and fit for a notebook.

from coordinator import api
result = api.run("plan.toml")
result.student, result.epsilon, result.metrics
"""

import asyncio
import shutil
import threading
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from aggregation.errors import ConclaveError
from coordinator import chart, comparison
from coordinator.comparison import Comparison
from coordinator.errors import PlanError, RunError
from coordinator.federation import Federation
from coordinator.forecast import Forecast
from coordinator.forecast import forecast as foreseen
from coordinator.launchers import (
    Launcher,
    LaunchRequest,
    PartyAddress,
    Simulation,
    SimulationRequest,
    find_launcher,
)
from coordinator.measure import measured
from coordinator.methods import METHODS
from coordinator.plan import Plan, read_plan
from coordinator.progress import Progress, Silent
from coordinator.public import Public, prepare
from coordinator.publish import check_free, publish
from coordinator.recipes import dped
from coordinator.report import Statement, state, statement_of
from coordinator.store import RunEntry, RunIndex, RunStore, home, write_whole
from coordinator.terms import Bound, bind
from protos.digest import plan_hash

Value = TypeVar("Value")

LEAVE_SECONDS = 5.0
"How long parties are given to take note that a run is over."


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run.

    epsilon, delta: None where nothing is guaranteed. student: the published folder, absolute.
    neighbours: the nearest words of a few common ones.
    """

    run: str
    student: Path
    epsilon: float | None
    delta: float | None
    statement: Statement
    neighbours: dict[str, list[str]]

    @property
    def metrics(self) -> dict[str, Any]:
        """What was measured on public text."""
        return self.statement.metrics


def run(
    plan: Plan | Path | str,
    *,
    output: Path | str | None = None,
    replace: bool = False,
    progress: Progress | None = None,
) -> Result:
    """Run a plan from the first word to the published student, and wait for it.

    output: a folder for everything of the run, the student in `student` inside it; by default the run's files go
    below `$CONCLAVE_HOME` and the student where the plan says. replace: remove the run that `output` holds first.
    Raises `PlanError` before anything is contacted, `PartyRefused`, `PartyLost`, `RunError`, `DataError`.
    """
    base = Path.cwd() if isinstance(plan, Plan) else Path(plan).absolute().parent
    plan = plan if isinstance(plan, Plan) else read_plan(Path(plan))
    progress = progress or Silent()
    launcher = _Connect(plan) if plan.federation.shards is None else find_launcher(plan.federation.launch)
    public = prepare(plan, base, home() / "cache")
    bound = bind(plan, public)
    index = RunIndex()
    folder = None if output is None else Path(output).absolute()
    if folder is not None and replace:
        _remove_run(folder)
    student_folder = (base / plan.student.publish) if folder is None else folder / "student"
    check_free(student_folder)
    digest = plan_hash(bound.binding)
    before = [entry.id for entry in index.entries() if entry.plan_hash == digest.hex() and entry.epsilon is not None]
    store = index.add(plan.run.name, digest, folder)
    run_id = store.id
    progress.say(f"run {run_id}")
    if before:
        progress.say(f"  this plan ran before ({', '.join(before[:3])}): running it again pays again at every party")
    try:
        present, sums = _collect(launcher, bound, public, store, base, progress)
        signals = dped.signals_of(bound, public, sums, store)
        with store.stage("distil"):
            model = dped.learn(plan, public, signals, progress)
        with store.stage("evaluate") as result:
            student = measured(model, plan, public, signals)
            result |= {"metrics": student.metrics, "neighbours": student.neighbours}
        statement = state(bound, present, digest.hex(), student.metrics)
        with store.stage("publish"):
            publish(student, statement, student_folder)
        store.note(
            status="finished",
            student=str(student_folder),
            epsilon=statement.epsilon,
            privacy=statement.privacy,
            metrics=statement.metrics,
        )
    except ConclaveError as error:
        store.note(status="failed", error=str(error))
        raise
    except KeyboardInterrupt:
        store.note(status="interrupted", error="stopped by its user")
        raise
    finally:
        store.close()
    delta = None if statement.epsilon is None else plan.privacy.delta
    return Result(run_id, student_folder, statement.epsilon, delta, statement, student.neighbours)


def forecast(plan: Plan | Path | str) -> Forecast:
    """What a run of the plan would cost and show, from the plan and public data alone; nothing is asked or spent.

    Raises `PlanError` and `DataError` as the run would.
    """
    base = Path.cwd() if isinstance(plan, Plan) else Path(plan).absolute().parent
    plan = plan if isinstance(plan, Plan) else read_plan(Path(plan))
    return foreseen(plan, base, home() / "cache")


def compare(
    plan: Plan | Path | str,
    *,
    recipes: Sequence[str] = (),
    epsilons: Sequence[float] = (1.0, 2.0, 4.0),
    seeds: int = 3,
    output: Path | str = "comparison",
    progress: Progress | None = None,
) -> Comparison:
    """Compare methods on a plan's simulated data; the table and the picture are in `output` when this returns.

    recipes: names of `coordinator.methods.METHODS`, all by default. Cells that `output` holds are not made again.
    Raises `PlanError` for a plan whose parties have text of their own, an unknown method or an odd epsilon.
    """
    base = Path.cwd() if isinstance(plan, Plan) else Path(plan).absolute().parent
    plan = plan if isinstance(plan, Plan) else read_plan(Path(plan))
    launcher = _Connect(plan) if plan.federation.shards is None else find_launcher(plan.federation.launch)
    folder = Path(output).absolute()
    found = comparison.compare(
        plan,
        launcher,
        party_tables(plan),
        base,
        home() / "cache",
        folder,
        methods=list(recipes) or list(METHODS),
        epsilons=epsilons,
        seeds=seeds,
        progress=progress or Silent(),
    )
    write_whole(folder / "table.md", chart.markdown(found).encode())
    chart.draw(found, folder)
    return found


def runs() -> list[RunEntry]:
    """All runs of this user on this machine, newest first."""
    return RunIndex().entries()


def report(run: str | Path) -> dict[str, Any]:
    """Everything that is kept of a run, by its id, the beginning of its id, or its folder. Raises `RunError`."""
    store = RunIndex().find(str(run))
    try:
        return statement_of(store)
    finally:
        store.close()


def _collect(
    launcher: Launcher, bound: Bound, public: Public, store: RunStore, base: Path, progress: Progress
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Launch the parties, ask them, and let them go; returns who stayed, and how many are in each release's sum."""
    for name in bound.plan.federation.names:
        progress.party(name, "starting" if bound.plan.federation.shards is not None else "connecting")
    request = LaunchRequest(party_tables(bound.plan), store.folder / "parties", base)
    with launcher.launch(request) as addresses:
        return _wait(lambda: _ask(bound, public, store, addresses, progress))


async def _ask(
    bound: Bound, public: Public, store: RunStore, addresses: tuple[PartyAddress, ...], progress: Progress
) -> tuple[tuple[str, ...], dict[str, int]]:
    federation = Federation.at(addresses, bound, progress)
    try:
        with store.stage("join"):
            await federation.open(store.id, bound)
        sums = await dped.collect(bound, public, federation, store)
        return federation.present, sums
    finally:
        # However it ended, parties need not keep their bounded sums any longer.
        with suppress(TimeoutError):
            await asyncio.wait_for(federation.leave(), LEAVE_SECONDS)
        await federation.close()


class _Connect:
    """The launcher that starts nothing: parties run elsewhere, at the addresses that the plan names."""

    def __init__(self, plan: Plan) -> None:
        self._addresses = tuple(PartyAddress(party.name, party.address) for party in plan.federation.parties)

    def launch(self, request: LaunchRequest) -> AbstractContextManager[tuple[PartyAddress, ...]]:
        return nullcontext(self._addresses)

    def simulate(self, request: SimulationRequest) -> Simulation:
        raise PlanError(
            '[federation] launch = "connect": comparing shows rows without privacy, and these parties\' text is their '
            "own. Compare on a simulation: [federation.shards] with text that is nobody's secret."
        )


def party_tables(plan: Plan) -> dict[str, dict[str, Any]]:
    """The party files of a plan that divides one source itself: each party's part, and a policy just wide enough.

    Empty for a plan whose parties run elsewhere: they have files of their own.
    """
    shards = plan.federation.shards
    if shards is None:
        return {}
    split = shards.split.model_dump(exclude_none=True)
    parts = {"parts": split.pop("parties"), "seed": plan.run.seed} | split
    source = shards.model_dump(exclude_none=True, exclude={"split"})
    policy = {
        # Room for one run under a lifetime cap, which counts a release for more than the run's own accountant does.
        "epsilon": 2 * plan.privacy.epsilon,
        "delta": plan.privacy.delta,
        "recipes": [plan.run.recipe],
        "simulation": True,
        "clear_votes": True,
    }
    return {
        name: {"name": name, "shard": source | {"part": parts | {"part": number}}, "policy": dict(policy)}
        for number, name in enumerate(plan.federation.names)
    }


def _remove_run(folder: Path) -> None:
    """Remove the run a folder holds; refuses a folder with anything that is no run's."""
    if not folder.exists():
        return
    if not (folder / "run.sqlite").exists() and any(folder.iterdir()):
        raise RunError(f"{folder} holds something that is not a run; it was left alone. Choose another --output.")
    shutil.rmtree(folder)


def _wait(make: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
    """Run a coroutine to its end in a thread of its own, so that it also works where a loop runs already.

    An interrupt of the waiting thread cancels the coroutine, waits until it has cleaned up, and is raised again.
    """
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    outcome: list[Value] = []
    failure: list[BaseException] = []

    async def main() -> Value:
        task = asyncio.current_task()
        assert task is not None
        loops.append((asyncio.get_running_loop(), task))
        return await make()

    def target() -> None:
        try:
            outcome.append(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            failure.append(error)

    thread = threading.Thread(target=target, name="run")
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.2)
    except BaseException:
        for loop, task in loops:
            loop.call_soon_threadsafe(task.cancel)
        thread.join()
        raise
    if failure:
        raise failure[0]
    return outcome[0]
