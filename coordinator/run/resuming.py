"""Checks before a run is resumed: whether it can go on, under which plan, and where its student goes."""

import os
from pathlib import Path
from typing import Any

from coordinator.errors import PlanError, RunError
from coordinator.plan.plan import Plan
from coordinator.pricing.release import PricedPlan
from coordinator.published.manifest import SIGNATURE
from coordinator.publishing.publish import try_place
from coordinator.reading import shown
from coordinator.run.mending import differing, in_words
from coordinator.store.faults import sound
from coordinator.store.output import STUDENT
from coordinator.store.store import CANCELLED, FINISHED, RunStore
from coordinator.systems.registry import plan_of, read_plan
from protos.digest import plan_hash


def check_open(store: RunStore) -> None:
    """Raises `RunError` for a run that has ended."""
    status = store.status()
    if status == FINISHED:
        raise RunError(f"run {store.id} is finished; its student is in {shown(store.fact('student'), 300)}.")
    if status == CANCELLED:
        raise RunError(f"run {store.id} was cancelled, and its parties forgot it. Run its plan again; that pays again.")
    if store.fact("plan") is None:
        raise RunError(f"run {store.id} was killed before its plan was stored; nothing was asked. Run the plan again.")


def plan_again(store: RunStore, given: Path | None) -> tuple[Plan, Path, Path | None]:
    """The run's plan from its file, or the stored copy where the file is gone; the folder that its paths start at; and
    where the file is.
    """
    with sound(store.folder):
        was = store.fact("path")
        path = given or (None if was is None else Path(was))
    if path is not None and (given is not None or os.path.exists(path)):
        return read_plan(path), path.absolute().parent, path.absolute()
    return *plan_kept(store), path


def facts_of(
    plan: Plan, document: str, path: Path | None, base: Path, student: Path, ray_address: str | None
) -> dict[str, Any]:
    """What a run's store keeps of the plan that it goes on under.

    document: of the plan's message. student: where it is published.
    """
    return {
        "plan": plan.model_dump(mode="json"),
        "document": document,
        "path": None if path is None else str(path),
        "base": str(base),
        "student": str(student),
        "ray_address": ray_address,
    }


def plan_kept(store: RunStore) -> tuple[Plan, Path]:
    """The stored copy of the run's plan, and the folder that its paths start at. Raises `RunError` where it is
    damaged.
    """
    with sound(store.folder):
        return plan_of(store.fact("plan")), Path(store.fact("base"))


def check_same(store: RunStore, priced: PricedPlan[Plan]) -> None:
    """Raises `PlanError`, naming what differs, for a plan that is not the one that a run began with."""
    if plan_hash(priced.binding).hex() != store.fact("plan_hash"):
        raise PlanError(
            f"run {store.id} was started with another plan: {in_words(differing(store, priced))}. Restore that plan.",
            code="C108",
        )


def place_again(store: RunStore, plan: Plan, base: Path) -> None:
    """Publish where the plan now says, unless the student is published or all of the run is in one folder; tried
    beforehand.

    Raises `RunError` where nothing can be published there.
    """
    with sound(store.folder):
        place = Path(store.fact("student"))
    if store.finished("publish") or (store.fact("publishing") and (place / SIGNATURE).exists()):
        return
    if place != store.folder / STUDENT:
        place = base / plan.student.publish
        store.note(student=str(place), publishing=None)
    try_place(place)
