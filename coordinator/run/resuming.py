"""Checks before a run is resumed: whether it can go on, under which plan, and where its student goes."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coordinator.errors import PlanError, RunError
from coordinator.plan.plan import Plan
from coordinator.pricing.release import PricedPlan
from coordinator.published.manifest import SIGNATURE
from coordinator.publishing.publish import try_place
from coordinator.reading import shown
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
    if store.fact("left") and not store.finished("aggregate"):
        why = shown(store.fact("error"), 300)
        raise RunError(f"run {store.id} ended before anything was spent ({why}) Run its plan again.")


def plan_again(store: RunStore, given: Path | None) -> tuple[Plan, Path]:
    """The run's plan from its file, or the stored copy where the file is gone; and the folder that its paths start
    at.
    """
    with sound(store.folder):
        was = store.fact("path")
        path = given or (None if was is None else Path(was))
    if path is not None and (given is not None or os.path.exists(path)):
        return read_plan(path), path.absolute().parent
    return plan_kept(store)


def plan_kept(store: RunStore) -> tuple[Plan, Path]:
    """The stored copy of the run's plan, and the folder that its paths start at. Raises `RunError` where it is
    damaged.
    """
    with sound(store.folder):
        return plan_of(store.fact("plan")), Path(store.fact("base"))


def check_same(store: RunStore, priced: PricedPlan[Plan]) -> None:
    """Raises `PlanError`, naming what differs, when a run would be resumed under another plan hash."""
    if plan_hash(priced.binding).hex() == store.fact("plan_hash"):
        return
    with sound(store.folder):
        differ = sorted(_differing(json.loads(store.fact("document")), json.loads(priced.binding.document)))
    what = f"{', '.join(differ)} differ" if differ else "the public text or the files that it names differ"
    raise PlanError(
        f"run {store.id} was started with another plan: {what}. Restore the plan to resume the run, or start a new run "
        "with the new plan; that pays anew.",
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


def _differing(one: Any, other: Any, key: str = "") -> Iterator[str]:
    """The keys, dotted, at which two JSON documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            yield from _differing(one.get(name), other.get(name), f"{key}.{name}" if key else name)
    elif one != other:
        yield key
