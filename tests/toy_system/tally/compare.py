"""This system beside the counts themselves, on simulated text."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from coordinator.comparing.comparable import Method, Outcome, SeedData, View, changed
from coordinator.comparing.simulated_run import driven
from coordinator.progress.progress import Silent
from coordinator.transport.launchers import SimulationRequest
from tally.recipe import WINDOW, Tally, prepare, shares_of
from tally.student import error


@dataclass(frozen=True)
class TallyData(SeedData):
    """The data of one seed."""

    plan: Any
    public: Any
    shards: Any


def _tally(data, epsilon):
    """The recipe itself, over simulated parties."""
    with driven(Tally(changed(data.plan, epsilon=epsilon), data.public), data.shards, Silent()) as run:
        (release,) = run.priced.releases
        return Outcome(np.frombuffer(run.content), release.event)


def _exact(data, epsilon):
    size = len(data.public.vocabulary)
    counts = sum(np.asarray(units.sum(axis=0)).reshape(size, size) for units in data.shards.counts())
    return Outcome(shares_of(counts.sum(axis=1)), None)


class TallyComparison:
    """A `coordinator.comparing.comparable.Comparable`."""

    view = View(
        metric="error",
        axis="error, lower is better",
        columns=(),
        best=min,
        shown=lambda mean, deviation, best: f"{mean:.2f}",
        said=lambda value: f"error {value:.2f}",
        about=lambda plan, seeds: f"Error on public text, {seeds} seeds.",
    )

    def __init__(self, given):
        self.plan, self.given = given.plan, given

    @property
    def methods(self):
        private, clear = Method("tally", "noisy counts", _tally), Method("exact", "no privacy", _exact, private=False)
        return {method.name: method for method in (private, clear)}

    def data(self, seed, folder):
        plan = changed(self.plan, seed=seed)
        public = prepare(plan, self.given.base, self.given.cache)
        request = SimulationRequest(
            parties=self.given.parties,
            folder=folder,
            base=self.given.base,
            vocabulary=public.vocabulary.to_bytes(),
            window=WINDOW,
            record=plan.privacy.record,
            by_user=False,
        )
        return TallyData(plan, public, self.given.launcher.simulate(request))

    def metrics(self, data, model):
        return {"error": error(model, data.public.shares)}
