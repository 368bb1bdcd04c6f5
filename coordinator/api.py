"""Conclave from Python: the `coordinator` command as blocking functions, which also work in a notebook.

from coordinator import api
result = api.run("plan.toml")
result.student, result.epsilon, result.metrics
"""

import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

from aggregation.errors import ConclaveError
from coordinator.comparing import comparison, table
from coordinator.comparing.comparable import Comparable, ComparisonRequest
from coordinator.comparing.comparison import Comparison
from coordinator.errors import ComparisonStopped, PlanError, RunError
from coordinator.forecasting import kinship
from coordinator.forecasting.devices import on_device
from coordinator.forecasting.expected import expected, keep
from coordinator.forecasting.forecast import Forecast
from coordinator.identity.identity import own_identity
from coordinator.plan.audit import AuditTable
from coordinator.plan.plan import Plan
from coordinator.pricing.priced_plan import price_plan
from coordinator.progress.events import Observer, Unobserved
from coordinator.progress.progress import Progress, Silent
from coordinator.publishing import audited as audits
from coordinator.publishing.publish import try_place
from coordinator.publishing.report import statement_of
from coordinator.run.audited import audited, check_auditable
from coordinator.run.before.beginning import Beginning
from coordinator.run.before.checking import check as look_over
from coordinator.run.before.computing import computing, device_here
from coordinator.run.before.disk import check_disk
from coordinator.run.before.given import PlanLike, check_compared, plan_given
from coordinator.run.before.previewing import Preview
from coordinator.run.before.previewing import preview as preview_of
from coordinator.run.cancelling import cancelled
from coordinator.run.connecting import launcher_of
from coordinator.run.driver import Drive
from coordinator.run.handing_out import publish as publish
from coordinator.run.handing_out import track as track
from coordinator.run.mending import mended
from coordinator.run.page import page_of
from coordinator.run.party_files import party_tables
from coordinator.run.result import Audited as Audited
from coordinator.run.result import Result as Result
from coordinator.run.result import driven
from coordinator.run.resuming import check_open, facts_of, place_again, plan_again, plan_kept
from coordinator.store.faults import sound
from coordinator.store.following import watch as watch
from coordinator.store.index import RunEntry, RunIndex, new_id
from coordinator.store.output import STUDENT, left_aside
from coordinator.store.preparing import announced
from coordinator.store.private_files import home
from coordinator.store.store import FAILED, FINISHED, RunStore, check_unused
from coordinator.systems.first_plan import init as init
from coordinator.systems.registry import prepared, read_plan, recipe_of, system
from coordinator.systems.system import Alone, TrainedAlone
from coordinator.transport.launchers import Launcher
from coordinator.verifying import verify as verifying
from coordinator.verifying.check import Trust
from coordinator.verifying.verify import Verdict
from learning.text.documentation import parsing
from protos.console.checklist import Line
from protos.digest import plan_hash


def run(
    plan: PlanLike,
    *,
    output: Path | str | None = None,
    replace: bool = False,
    ray_address: str | None = None,
    files: Path | str | None = None,
    spare: int | None = None,
    progress: Progress | None = None,
    observer: Observer | None = None,
) -> Result | TrainedAlone:
    """Run a plan from start to the published student, and wait for it.

    plan: its file, or its tables as a dictionary, whose paths start at the current folder. output: a folder for all
    files of the run, with the student in `student` inside it, whatever the plan says of publishing; by default the
    run's files go below `$CONCLAVE_HOME` and the student where the plan says. The folder is new, empty, or holds a run
    and nothing else. replace: replace the run that `output` holds: it is renamed aside, and its own files are removed
    once the new run has begun and every party has joined. ray_address: of the Ray cluster that the parties are put on,
    "auto" or "HOST:PORT", whatever the plan says. files: the folder that the plan's paths start at, by default its
    file's. spare: bytes that the disk must have beyond what the run is expected to write; by default that is not looked
    at.

    A plan whose system asks nothing of parties makes no run: it trains in clear and leaves only its student. Raises
    `PlanError` before any party is contacted, `PartyRefused`, `PartyLost`, `RunError`, `DataError`, and `RunStopped`
    where it was interrupted; `resume` continues a run that can go on.
    """
    asked = plan_given(plan)
    path, base = asked.path, asked.base if files is None else Path(files).absolute()
    plan = asked.plan.on_cluster(ray_address)
    if plan.audit is not None:
        check_auditable(plan)
    progress = progress or Silent()
    launcher = launcher_of(plan)
    folder = _output(output)
    student_folder = base / plan.student.publish if folder is None else folder / STUDENT
    alone = system(plan.run.recipe).alone
    if folder is None or alone is not None:
        try_place(student_folder)
    else:
        check_unused(folder, replace=replace)
    if alone is not None:
        with computing(plan):
            return alone(Alone(plan, launcher, party_tables(plan), base, home() / "cache", student_folder, progress))
    seen, run_id = observer or Unobserved(), new_id(plan.run.name)
    beginning, cache = Beginning(run_id, seen), home() / "cache"
    with ExitStack() as stack:
        with announced(run_id, folder):
            progress.say(f"run {run_id}")
            with beginning.stage("prepare"):
                computed = stack.enter_context(computing(plan))
                stack.enter_context(_begun(launcher, plan))
                stack.enter_context(parsing(_sources(plan)))
                own, recipe = own_identity(plan, base), prepared(plan, base, cache)
            with beginning.stage("price"):
                priced = price_plan(recipe)
            if spare is not None:
                check_disk(system(plan.run.recipe).needs(recipe, priced, base, cache), spare, folder or home())
            index = RunIndex()
            for aside in [] if folder is None else left_aside(folder):
                progress.say(f"  {aside} holds a run that made way for another in {folder}, and is there still")
            digest = plan_hash(priced.binding)
            foreseen = expected(digest, index, cache)
            before = [
                entry.id for entry in index.entries() if entry.plan_hash == digest.hex() and entry.epsilon is not None
            ]
            store = index.add(plan.run.name, digest, folder, replace=replace, run_id=run_id)
        with closing(store):
            facts = facts_of(plan, priced.binding.document, path, base, student_folder, ray_address)
            store.note(**facts, expected=dataclasses.asdict(foreseen))
            progress.expect(foreseen.stages, foreseen.whole)
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
                return driven(
                    Drive(priced, recipe, own, launcher, base, store, progress, seen, computed, beginning.done)
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
    files: Path | str | None = None,
    progress: Progress | None = None,
    observer: Observer | None = None,
) -> Result:
    """Resume a run after its last stored block or stage, and wait for it. Nothing that was answered is asked again.

    plan: where the plan's file is now; by default where it was. Its addresses, deadlines and paths may have changed.
    Anything else may have where nothing was spent under the earlier plan, as the store and every party's ledger say:
    the run then goes on under the new plan, which parties join as they join a new run. ray_address, files: as of `run`;
    the first by default as the run was started with. Raises `RunError` for a run that is finished, cancelled or driven
    by another process; `PlanError` or `RunError` naming the keys that differ and what was spent; and whatever `run`
    raises.
    """
    progress = progress or Silent()
    with closing(RunIndex().find(str(run))) as store:
        check_open(store)
        wanted, start, path = plan_again(store, None if plan is None else Path(plan))
        base = start if files is None else Path(files).absolute()
        with sound(store.folder):
            wanted = wanted.on_cluster(ray_address or store.fact("ray_address"))
        own, launcher, seen = own_identity(wanted, base), launcher_of(wanted), observer or Unobserved()
        begun = nullcontext() if store.finished("attest") else _begun(launcher, wanted)
        beginning = Beginning(store.id, seen)
        with ExitStack() as stack:
            progress.say(f"run {store.id}, resumed")
            with beginning.stage("prepare"):
                computed = stack.enter_context(computing(wanted))
                stack.enter_context(begun)
                recipe = prepared(wanted, base, home() / "cache")
            with beginning.stage("price"):
                priced = price_plan(recipe)
            place_again(store, wanted, base)
            at, student = ray_address or store.fact("ray_address"), Path(store.fact("student"))
            facts = facts_of(wanted, priced.binding.document, path, base, student, at)
            new = mended(store, priced, facts)
            store.note(resumed=(store.fact("resumed") or 0) + 1)
            done = beginning.done
            return driven(Drive(priced, recipe, own, launcher, base, store, progress, seen, computed, done, new))


def cancel(run: str | Path) -> str:
    """End a run for good: its driver stops and its parties forget it. What was charged stays charged.

    Returns one sentence on what was done. Raises `RunError` for a run that is finished.
    """
    with closing(RunIndex().find(str(run))) as store:
        check_open(store)
        plan, base = plan_kept(store)
        return cancelled(store, launcher_of(plan), own_identity(plan, base))


def check(
    plan: PlanLike,
    *,
    ray_address: str | None = None,
    output: Path | str | None = None,
    say: Callable[[str], None] | None = None,
) -> list[Line]:
    """Check everything that a run of the plan needs, here and at its parties, one line each; nothing is spent.

    plan, ray_address, output: as of `run`. say: is told who is waited for; by default nobody is. A mistake in the plan
    is a line, too.
    """
    return look_over(plan, ray_address, say or Silent().say, _output(output))


def preview(plan: PlanLike, *, rows: int | None = None) -> Preview:
    """Look at what a run of the plan would use of each simulated party's text; nothing is started, sent or spent.

    plan: as of `run`. rows: of the source that are read; None reads all. Raises `PlanError` for parties that run
    elsewhere, whose text is their own, and for columns that no row has; `DataError` for a source that cannot be read.
    """
    return preview_of(plan, rows)


def forecast(plan: PlanLike) -> Forecast:
    """Forecast what a run of the plan would cost and show, from the plan and public data alone; nothing is asked or
    spent.

    plan: as of `run`. Raises `PlanError` and `DataError` as the run would.
    """
    asked = plan_given(plan)
    plan, base = asked.plan, asked.base
    begun, cache = time.monotonic(), home() / "cache"
    with computing(plan) as computed:
        recipe = prepared(plan, base, cache)
        seconds = time.monotonic() - begun
        priced = price_plan(recipe)
        found = system(plan.run.recipe).forecast(recipe, priced, base, cache, seconds)
        found = on_device(found, computed, device_here(plan))
        keep(plan_hash(priced.binding), found.seconds, cache)
    return dataclasses.replace(found, warnings=(*kinship.doubts(plan), *found.warnings))


def compare(
    plan: PlanLike,
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
    their own, an unknown method or an invalid epsilon; `ComparisonStopped` where it was interrupted, with the table of
    the cells that are there, which is in `output`, too.
    """
    recipes, epsilons, seeds = check_compared(recipes, epsilons, seeds)
    asked = plan_given(plan)
    plan, base = asked.plan, asked.base
    progress = progress or Silent()
    folder = _output(output)
    assert folder is not None
    try:
        with computing(plan):
            given = comparable_of(plan, base, progress)
            found = comparison.compare(
                given, folder, methods=recipes, epsilons=epsilons, seeds=seeds, progress=progress
            )
    except ComparisonStopped as stopped:
        if stopped.so_far is not None:
            table.keep(stopped.so_far)
        raise
    table.keep(found)
    return found


def audit(
    run: str | Path,
    *,
    canaries: int | None = None,
    records: int | None = None,
    texts: int | None = None,
    shadows: int | None = None,
    seed: int | None = None,
    output: Path | str = "audit",
    progress: Progress | None = None,
) -> Audited:
    """Attack a simulation of a finished run, found by its id or folder, or of a plan file; no budget is spent.

    canaries: of each kind; records: of the source; texts: that a simulated teacher writes at the most; shadows: models
    for membership inference; by default as the plan says. seed: for an audit that can be repeated. output: for the
    audit of a plan; a run keeps its own. Raises `PlanError` for a plan that cannot be audited, as one of real parties;
    `RunError` for a run that is not finished.
    """
    wanted = {"canaries": canaries, "records": records, "texts": texts, "shadows": shadows}
    wanted = {name: each for name, each in wanted.items() if each is not None}
    if seed is not None and seed < 0:
        raise PlanError(f"seed = {seed}: a seed is 0 or more.")

    def found(plan: Plan, base: Path, folder: Path, store: RunStore | None) -> Audited:
        settings = AuditTable.checked((plan.audit or AuditTable()).model_dump() | wanted)
        check_auditable(plan)
        with computing(plan):
            made = audited(plan, launcher_of(plan), base, settings, progress or Silent(), run=store, seed=seed)
        audits.keep(made, folder)
        return Audited(made, folder.absolute())

    path, folder = Path(str(run)), _output(output)
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


def page(run: str | Path, *, file: Path | str | None = None, beside: Path | str | None = None) -> str:
    """The page of a run, found as by `report`, in whatever state it is: one HTML file that loads nothing from outside.

    file: where to write it, too. beside: a comparison's folder, whose rows without privacy the page shows. Raises
    `RunError`; then nothing is written.
    """
    return page_of(run, None if file is None else Path(file), None if beside is None else Path(beside))


def comparable_of(plan: Plan, base: Path, progress: Progress) -> Comparable:
    """The methods and data that `compare` uses for a plan. base: the folder against which its sources are resolved.

    Raises `PlanError` for parties that no launcher can start.
    """
    given = ComparisonRequest(plan, launcher_of(plan), party_tables(plan), base, home() / "cache", progress, recipe_of)
    return system(plan.run.recipe).comparison(given)


def _begun(launcher: Launcher, plan: Plan) -> AbstractContextManager[None]:
    """Begin to launch parties on this machine while the run is prepared; those of a cluster are launched when it is."""
    recipe, given = plan.run.recipe if plan.MODELS else "", plan.federation
    return nullcontext() if given.cluster else launcher.begun(given.names, recipe, given.parties_per_actor)


def _sources(plan: Plan) -> list[str]:
    """Where the texts of a plan are that are read on this machine."""
    shards = plan.federation.shards
    return [table.source for table in plan.public_tables().values()] + ([] if shards is None else [shards.source])


def _output(output: Path | str | None) -> Path | None:
    """The requested folder as an absolute path. Raises `PlanError` for an empty name, which would mean the current
    folder.
    """
    if output is None:
        return None
    if not str(output):
        raise PlanError("output is empty. Name a folder for everything of the run, or leave it out.")
    return Path(output).absolute()
