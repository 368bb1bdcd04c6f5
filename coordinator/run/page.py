"""The page of a run: from its store, with what its system says of it and what `verify` finds of its student now."""

from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from aggregation.errors import ConclaveError, IntegrityError
from coordinator.errors import PlanError
from coordinator.page import run_page
from coordinator.page.account import Account, Beside, Checked, gathered
from coordinator.page.beside import beside as compared
from coordinator.page.file import write_page
from coordinator.run.resuming import plan_kept
from coordinator.store.index import RunIndex
from coordinator.store.store import FINISHED, RunStore
from coordinator.systems.registry import system
from coordinator.verifying.verify import verify


def page_of(run: str | Path, file: Path | None, beside: Path | None) -> str:
    """The page of a run, in whatever state it is. file, beside: as `coordinator.api.page`."""
    with closing(RunIndex().find(str(run))) as store:
        rows = () if beside is None else compared(beside, plan_kept(store)[0])
        made = run_page.page(_account(store, rows))
        if file is not None:
            student = store.fact("student")
            write_page(made, file, outside=[store.folder, *([Path(student)] if isinstance(student, str) else [])])
    return made


def in_notebook(run: Path) -> str | None:
    """The page of a run in this folder as a notebook shows it; None where the run can no longer be read."""
    try:
        with closing(RunIndex().find(str(run))) as store:
            return run_page.framed(_account(store))
    except ConclaveError:
        return None


def _account(store: RunStore, beside: Sequence[Beside] = ()) -> Account:
    about = None
    with suppress(PlanError):  # the system may have gone; the page is then without its words
        about = system(_recipe(store)).about
    return gathered(store, about=about, beside=beside, checked=_checked(store))


def _recipe(store: RunStore) -> str:
    plan = store.fact("plan")
    run = plan.get("run") if isinstance(plan, dict) else None
    return str(run.get("recipe")) if isinstance(run, dict) else ""


def _checked(store: RunStore) -> list[Checked]:
    student = store.fact("student")
    if store.status() != FINISHED or not isinstance(student, str):
        return []
    try:
        verdict = verify(Path(student))
    except IntegrityError:
        return [Checked("folder", False, ("The student's folder is no longer where it was published.",))]
    return [Checked(each.name, each.ok, each.sentences) for each in verdict.checks]
