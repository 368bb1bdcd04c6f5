"""Conclave from Python: the `coordinator` command as blocking functions, which also work in a notebook.

from coordinator import api
result = api.run("plan.toml")
result.student, result.epsilon, result.metrics
"""

import dataclasses
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggregation.errors import ConclaveError
from coordinator.comparing import comparison, table
from coordinator.comparing.comparable import Comparable, ComparisonRequest
from coordinator.comparing.comparison import Comparison
from coordinator.errors import PlanError, RunError
from coordinator.forecasting import kinship
from coordinator.forecasting.devices import on_device
from coordinator.forecasting.forecast import Forecast
from coordinator.identity.identity import own_identity
from coordinator.identity.provisioning import CA
from coordinator.plan.audit import AuditTable
from coordinator.plan.plan import Plan
from coordinator.pricing.priced_plan import price_plan
from coordinator.progress.events import Observer, Unobserved
from coordinator.progress.progress import Progress, Silent
from coordinator.published.audit import Audit
from coordinator.publishing import audited as audits
from coordinator.publishing.publish import try_place
from coordinator.publishing.report import Statement, statement_of
from coordinator.run.audited import audited, check_auditable
from coordinator.run.cancelling import cancelled
from coordinator.run.computing import computing, device_here
from coordinator.run.connecting import Connecting
from coordinator.run.driver import Drive
from coordinator.run.party_files import party_tables
from coordinator.run.resuming import check_open, check_same, place_again, plan_again, plan_kept
from coordinator.store.faults import sound
from coordinator.store.index import RunEntry, RunIndex
from coordinator.store.output import STUDENT, left_aside
from coordinator.store.private_files import close_to_others, home, write_whole
from coordinator.store.store import FAILED, FINISHED, RunStore, check_unused
from coordinator.systems.registry import prepared, read_plan, recipe_of, system
from coordinator.systems.system import Alone, TrainedAlone
from coordinator.transport.launchers import Launcher, find_launcher
from coordinator.verifying import verify as verifying
from coordinator.verifying.check import Trust
from coordinator.verifying.verify import Verdict
from protos.digest import plan_hash


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run.

    epsilon, delta: None where there is no guarantee. student: the published folder, an absolute path. neighbours: the
    nearest words of a few common ones. verdict: what `verify` found of the folder, trusting `authority`. authority: the
    certificate that a verifier needs; None where nobody vouches for the parties.
    """

    run: str
    student: Path
    epsilon: float | None
    delta: float | None
    statement: Statement
    neighbours: dict[str, list[str]]
    verdict: Verdict
    authority: Path | None

    @property
    def metrics(self) -> dict[str, Any]:
        """Measurements on public text."""
        return self.statement.metrics


@dataclass(frozen=True, slots=True)
class Audited:
    """A finished audit. folder: holds `audit.json` and its picture, an absolute path."""

    audit: Audit
    folder: Path


def run(
    plan: Plan | Path | str,
    *,
    output: Path | str | None = None,
    replace: bool = False,
    ray_address: str | None = None,
    progress: Progress | None = None,
    observer: Observer | None = None,
) -> Result | TrainedAlone:
    """Run a plan from start to the published student, and wait for it.

    output: a folder for all files of the run, with the student in `student` inside it, whatever the plan says of
    publishing; by default the run's files go below `$CONCLAVE_HOME` and the student where the plan says. The folder is
    new, empty, or holds a run and nothing else. replace: replace the run that `output` holds: it is renamed aside, and
    its own files are removed once the new run has begun and every party has joined. ray_address: of the Ray cluster
    that the parties are put on, "auto" or "HOST:PORT", whatever the plan says.

    A plan whose system asks nothing of parties makes no run: it trains in clear and leaves only its student. Raises
    `PlanError` before any party is contacted, `PartyRefused`, `PartyLost`, `RunError`, `DataError`, and `RunStopped`
    where it was interrupted; `resume` continues a run that can go on.
    """
    path = None if isinstance(plan, Plan) else Path(plan).absolute()
    base = Path.cwd() if path is None else path.parent
    plan = (plan if isinstance(plan, Plan) else read_plan(Path(plan))).on_cluster(ray_address)
    if plan.audit is not None:
        check_auditable(plan)
    progress = progress or Silent()
    launcher = _launcher(plan)
    folder = _output(output)
    student_folder = base / plan.student.publish if folder is None else folder / STUDENT
    alone = system(plan.run.recipe).alone
    if folder is None or alone is not None:
        try_place(student_folder)
    else:
        check_unused(folder, replace=replace)
    with computing(plan) as computed, nullcontext() if alone is not None else _begun(launcher, plan):
        if alone is not None:
            return alone(Alone(plan, launcher, party_tables(plan), base, home() / "cache", student_folder, progress))
        own = own_identity(plan, base)
        recipe = prepared(plan, base, home() / "cache")
        priced = price_plan(recipe)
        index = RunIndex()
        for aside in [] if folder is None else left_aside(folder):
            progress.say(f"  {aside} holds a run that made way for another in {folder}, and is there still")
        digest = plan_hash(priced.binding)
        before = [
            entry.id for entry in index.entries() if entry.plan_hash == digest.hex() and entry.epsilon is not None
        ]
        with closing(index.add(plan.run.name, digest, folder, replace=replace)) as store:
            store.note(
                plan=plan.model_dump(mode="json"),
                document=priced.binding.document,
                path=None if path is None else str(path),
                base=str(base),
                student=str(student_folder),
                ray_address=ray_address,
            )
            progress.say(f"run {store.id}")
            if folder is not None and "publish" in plan.student.model_fields_set:
                progress.say(f"  --output: the student goes to {student_folder}, not to {plan.student.publish}")
            for doubt in (*kinship.doubts(plan), *recipe.doubts()):
                progress.say(f"  warning: {doubt}")
            if before:
                progress.say(
                    f"  this plan ran before ({', '.join(before[:3])}): running it again pays again at every party"
                )
            replaced = store.fact("replaced")
            if replaced:
                progress.say(f"  the run that {folder} held is kept in {replaced[0]} until this one has begun")
            try:
                return _driven(
                    Drive(priced, recipe, own, launcher, base, store, progress, observer or Unobserved(), computed)
                )
            except ConclaveError:
                back = store.fact("replaced") if store.status() == FAILED else None
                if not back or folder is None:
                    raise
                store.close()
                try:
                    index.put_back(Path(back[0]), folder)
                    progress.say(f"  this run never began: {folder} holds again the run that it held before")
                except RunError as error:  # the reason why the run failed must come last
                    progress.say(f"  {error}")
                raise


def resume(
    run: str | Path,
    *,
    plan: Path | str | None = None,
    ray_address: str | None = None,
    progress: Progress | None = None,
    observer: Observer | None = None,
) -> Result:
    """Resume a run after its last stored block or stage, and wait for it. Nothing that was answered is asked again.

    plan: where the plan's file is now; by default where it was. Its addresses, deadlines and paths may have changed,
    nothing else. ray_address: as of `run`; by default the one the run was started with. Raises `RunError` for a run
    that is finished, cancelled or driven by another process; `PlanError` naming the keys that differ; and whatever
    `run` raises.
    """
    progress = progress or Silent()
    with closing(RunIndex().find(str(run))) as store:
        check_open(store)
        wanted, base = plan_again(store, None if plan is None else Path(plan))
        with sound(store.folder):
            wanted = wanted.on_cluster(ray_address or store.fact("ray_address"))
        own, launcher, seen = own_identity(wanted, base), _launcher(wanted), observer or Unobserved()
        begun = nullcontext() if store.finished("attest") else _begun(launcher, wanted)
        with computing(wanted) as computed, begun:
            recipe = prepared(wanted, base, home() / "cache")
            priced = price_plan(recipe)
            check_same(store, priced)
            place_again(store, wanted, base)
            progress.say(f"run {store.id}, resumed")
            store.note(resumed=(store.fact("resumed") or 0) + 1)
            return _driven(Drive(priced, recipe, own, launcher, base, store, progress, seen, computed))


def cancel(run: str | Path) -> str:
    """End a run for good: its driver stops and its parties forget it. What was charged stays charged.

    Returns one sentence on what was done. Raises `RunError` for a run that is finished.
    """
    with closing(RunIndex().find(str(run))) as store:
        check_open(store)
        plan, base = plan_kept(store)
        return cancelled(store, _launcher(plan), own_identity(plan, base))


def forecast(plan: Plan | Path | str) -> Forecast:
    """Forecast what a run of the plan would cost and show, from the plan and public data alone; nothing is asked or
    spent.

    Raises `PlanError` and `DataError` as the run would.
    """
    base = Path.cwd() if isinstance(plan, Plan) else Path(plan).absolute().parent
    plan = plan if isinstance(plan, Plan) else read_plan(Path(plan))
    begun, cache = time.monotonic(), home() / "cache"
    with computing(plan) as computed:
        recipe = prepared(plan, base, cache)
        seconds = time.monotonic() - begun
        found = system(plan.run.recipe).forecast(recipe, price_plan(recipe), base, cache, seconds)
        found = on_device(found, computed, device_here(plan))
    return dataclasses.replace(found, warnings=(*kinship.doubts(plan), *found.warnings))


def compare(
    plan: Plan | Path | str,
    *,
    recipes: Sequence[str] = (),
    epsilons: Sequence[float] = (1.0, 2.0, 4.0),
    seeds: int = 3,
    output: Path | str = "comparison",
    progress: Progress | None = None,
) -> Comparison:
    """Compare methods on a plan's simulated data; the table and the chart are in `output` when this returns.

    recipes: names of methods, as the plan's system lists them (`Comparable.methods`); by default all that fit the plan.
    Cells that `output` already holds are not computed again. Raises `PlanError` for a plan whose parties have text of
    their own, an unknown method or an invalid epsilon.
    """
    base = Path.cwd() if isinstance(plan, Plan) else Path(plan).absolute().parent
    plan = plan if isinstance(plan, Plan) else read_plan(Path(plan))
    progress = progress or Silent()
    folder = _output(output)
    assert folder is not None
    with computing(plan):
        given = comparable_of(plan, base, progress)
        found = comparison.compare(given, folder, methods=recipes, epsilons=epsilons, seeds=seeds, progress=progress)
    write_whole(folder / "table.md", table.markdown(found).encode())
    table.draw(found, folder)
    close_to_others(folder)
    return found


def audit(
    run: str | Path,
    *,
    canaries: int | None = None,
    records: int | None = None,
    shadows: int | None = None,
    seed: int | None = None,
    output: Path | str = "audit",
    progress: Progress | None = None,
) -> Audited:
    """Attack a simulation of a finished run, found by its id or folder, or of a plan file; no budget is spent.

    canaries: of each kind; records: of the source; shadows: models for membership inference; by default as the plan
    says. seed: for an audit that can be repeated. output: for the audit of a plan; a run keeps its own. Raises
    `PlanError` for a plan that cannot be audited, as one of real parties; `RunError` for a run that is not finished.
    """
    wanted = {"canaries": canaries, "records": records, "shadows": shadows}
    wanted = {name: each for name, each in wanted.items() if each is not None}
    if seed is not None and seed < 0:
        raise PlanError(f"seed = {seed}: a seed is 0 or more.")

    def found(plan: Plan, base: Path, folder: Path, store: RunStore | None) -> Audited:
        settings = AuditTable.checked((plan.audit or AuditTable()).model_dump() | wanted)
        check_auditable(plan)
        with computing(plan):
            made = audited(plan, _launcher(plan), base, settings, progress or Silent(), run=store, seed=seed)
        audits.keep(made, folder)
        return Audited(made, folder.absolute())

    path, folder = Path(run), _output(output)
    assert folder is not None
    if path.suffix == ".toml" or path.is_file():
        return found(read_plan(path), path.absolute().parent, folder, None)
    with closing(RunIndex().find(str(run))) as store:
        if store.status() != FINISHED:
            raise RunError(f"run {store.id} is {store.status()}; a run is audited when it is finished, or its plan is.")
        return found(*plan_kept(store), store.folder, store)


def verify(folder: Path | str, *, trust: Path | str | None = None, revoked: Path | str | None = None) -> Verdict:
    """Check a published folder: every file, who signed it, what its parties attest, and the guarantee that follows.

    trust: the authority's ca.pem, from someone you trust; without it only accidental damage is found. revoked: the
    authority's list of revoked certificates. Raises `RunError` for files of another kind, `IntegrityError` where there
    is no folder.
    """
    known = None if trust is None else Trust.read(Path(trust), None if revoked is None else Path(revoked))
    return verifying.verify(Path(folder), known)


def runs() -> list[RunEntry]:
    """All runs of this user on this machine, newest first."""
    return RunIndex().entries()


def report(run: str | Path) -> dict[str, Any]:
    """Everything that is stored of a run, found by its id, a prefix of its id, or its folder. Raises `RunError`."""
    store = RunIndex().find(str(run))
    with closing(store), sound(store.folder):
        return statement_of(store)


def _driven(drive: Drive) -> Result:
    statement, neighbours = drive.to_the_end()
    delta = None if statement.epsilon is None else drive.priced.plan.privacy.delta
    own, folder = drive.own, drive.student_folder
    trust = None if own.authority is None else Trust(own.authority, own.identity.revoked)
    authority = None if trust is None else own.folder / CA
    return Result(
        drive.store.id,
        folder,
        statement.epsilon,
        delta,
        statement,
        neighbours,
        verifying.verify(folder, trust),
        authority,
    )


def comparable_of(plan: Plan, base: Path, progress: Progress) -> Comparable:
    """The methods and data that `compare` uses for a plan. base: the folder against which its sources are resolved.

    Raises `PlanError` for parties that no launcher can start.
    """
    given = ComparisonRequest(plan, _launcher(plan), party_tables(plan), base, home() / "cache", progress, recipe_of)
    return system(plan.run.recipe).comparison(given)


def _launcher(plan: Plan) -> Launcher:
    return Connecting(plan) if plan.federation.shards is None else find_launcher(plan.federation.launch)


def _begun(launcher: Launcher, plan: Plan) -> AbstractContextManager[None]:
    """Begin to launch parties on this machine while the run is prepared; those of a cluster are launched when it is."""
    recipe, given = plan.run.recipe if plan.MODELS else "", plan.federation
    return nullcontext() if given.cluster else launcher.begun(given.names, recipe, given.parties_per_actor)


def _output(output: Path | str | None) -> Path | None:
    """The requested folder as an absolute path. Raises `PlanError` for an empty name, which would mean the current
    folder.
    """
    if output is None:
        return None
    if not str(output):
        raise PlanError("output is empty. Name a folder for everything of the run, or leave it out.")
    return Path(output).absolute()
