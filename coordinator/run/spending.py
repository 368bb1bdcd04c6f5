"""What a run has cost its parties so far, reckoned from its store while it goes on, by a thread of its own."""

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Final, Self

from dp_accounting import DpEvent, SelfComposedDpEvent

from aggregation.accounting.price import price
from aggregation.errors import ConclaveError
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.mechanism import Form
from coordinator.pricing.release import SAMPLER_SHARE, PricedPlan, Release, borne
from coordinator.progress.events import Observer
from coordinator.store.store import RunStore
from protos.steps import step_name

_COLLECTING: Final = ("train", "answer", "aggregate")
"""Stages in which parties release something."""
_LOOKED_EVERY: Final = 1.0
_REST: Final = 20.0
"""How many times as long as the last price took is waited before the next: pricing a training takes a second."""


def charged(priced: PricedPlan[Any], store: RunStore) -> tuple[tuple[Release, int], ...]:
    """The releases that parties may have been charged for, in the plan's order, and for how many sums of each.

    A sum is stored after it was charged. So the first that is not stored counts, too, while parties release something;
    and so does every attempt at a sum that was lost, though some of these are taken back.
    """
    stored, attempts, stages = store.released(), store.attempts(), store.stages()
    at_work = any(name in stages and stages[name][1] is None for name in _COLLECTING)
    over = "attest" in stages or "distil" in stages
    counts = []
    for release in priced.releases:
        names = [release.name]
        if release.form == Form.STEPPED:
            names = [step_name(release.name, number) for number in range(release.steps)]
        counts.append(
            (release, sum(name in stored for name in names), len(names), sum(attempts.get(name, 0) for name in names))
        )
    last = max((number for number, (_, done, *_) in enumerate(counts) if done), default=-1)
    found = []
    for number, (release, done, whole, lost) in enumerate(counts):
        if over or number < last:
            done = whole
        elif at_work and number in (last, last + 1) and done < whole:
            done += 1
            at_work = False
        if done + lost:
            found.append((release, done + lost))
    return tuple(found)


def spent(charges: Sequence[tuple[Release, int]], delta: float) -> float:
    """The epsilon of the party that was charged most, at this delta. charges: as `charged` gives them."""
    counts = {release.name: count for release, count in charges}
    epsilons = (
        price([_event(one, counts[one.name]) for one in several], delta).epsilon
        for several in borne([release for release, _ in charges])
    )
    return max(epsilons, default=0.0)


def _event(release: Release, count: int) -> DpEvent:
    if release.form == Form.STEPPED:
        return replace(release.under(GradientMechanism), steps=count).event()
    return release.event if count == 1 else SelfComposedDpEvent(release.event, count)


class Spending:
    """Tells an observer, and the run's store, what the run has cost so far, whenever that grew.

    Nothing is told of a plan without a guarantee. Where the store fails it ends: the figure is only for looking at.
    """

    def __init__(self, priced: PricedPlan[Any], store: RunStore, observer: Observer) -> None:
        self._priced, self._store, self._observer = priced, store, observer
        self._delta = priced.plan.privacy.delta * (1 - SAMPLER_SHARE) if priced.private else 0.0
        self._told: tuple[tuple[str, int], ...] = ()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._reckon_on, name="spending", daemon=True)

    def __enter__(self) -> Self:
        if self._priced.private:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop, before the store is closed."""
        self._ended.set()
        if self._priced.private:
            self._thread.join()

    def _reckon_on(self) -> None:
        rest = _LOOKED_EVERY
        while not self._ended.wait(rest):
            begun = time.thread_time()
            try:
                self._reckon()
            except ConclaveError:
                return
            rest = max(_LOOKED_EVERY, _REST * (time.thread_time() - begun))

    def _reckon(self) -> None:
        charges = charged(self._priced, self._store)
        counts = tuple((release.name, count) for release, count in charges)
        if counts == self._told:
            return
        self._told = counts
        epsilon = spent(charges, self._delta)
        self._store.note(spent=epsilon)
        self._observer.spent(epsilon)
