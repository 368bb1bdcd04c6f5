"""What a run keeps for its page beside its statement: exhibits, what was heard, retries, parties' caps."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from aggregation.errors import ConclaveError
from coordinator.page import exhibits
from coordinator.pricing.release import PricedPlan
from coordinator.progress.events import Observer
from coordinator.publishing import heard
from coordinator.publishing.student import Student
from coordinator.store.faults import sound
from coordinator.store.store import RunStore
from coordinator.systems.registry import system

RETRIES: Final = "retries"


def shown(student: Student, priced: PricedPlan[Any], present: Mapping[str, int], store: RunStore) -> str | None:
    """Keep what a page shows of a student and of its releases. present: how many parties are in each release.

    Returns a sentence where the system's exhibits could not be made: a run is published without them.
    """
    heard.keep(heard.heard(priced, present, store), store)
    makes = system(priced.plan.run.recipe).exhibits
    if makes is None:
        return None
    try:
        made = makes(student)
    except (ConclaveError, ValueError) as error:
        return f"the page of this run will not show what {priced.plan.run.recipe} shows of a student: {error}"
    exhibits.keep(made, store)
    return None


def caps_of(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """The cap for life of every party whose file the run writes itself; other parties' caps are not known."""
    found = {name: table["policy"].get("epsilon") for name, table in tables.items()}
    return {name: float(cap) for name, cap in found.items() if cap is not None}


class Counted:
    """Passes every event on, and keeps with the run how often a party was asked again, and for what.

    The count is written when a stage ends and when a party is lost, never for every retry.
    """

    def __init__(self, observer: Observer, store: RunStore) -> None:
        self._observer, self._store = observer, store
        with sound(store.folder):
            kept = store.fact(RETRIES) or {}
            self._counts: dict[str, Counter[str]] = {str(name): Counter(each) for name, each in kept.items()}

    def named(self, run: str) -> None:
        self._observer.named(run)

    def opened(self, run: str, epsilon: float | None, budget: float | None) -> None:
        self._observer.opened(run, epsilon, budget)

    def stage(self, name: str, state: str) -> None:
        self._observer.stage(name, state)
        if state == "finished":
            self._write()

    def block(self, release: str, party: str, seconds: float, size: int) -> None:
        self._observer.block(release, party, seconds, size)

    def stored(self, release: str, done: int, total: int) -> None:
        self._observer.stored(release, done, total)

    def retry(self, party: str, doing: str, why: str) -> None:
        self._observer.retry(party, doing, why)
        self._counts.setdefault(party, Counter())[doing] += 1

    def lost(self, party: str, why: str) -> None:
        self._observer.lost(party, why)
        self._write()

    def spent(self, epsilon: float) -> None:
        self._observer.spent(epsilon)

    def _write(self) -> None:
        if self._counts:
            self._store.note(**{RETRIES: {name: dict(each) for name, each in self._counts.items()}})
