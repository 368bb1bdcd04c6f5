"""This system beside the counts themselves, on simulated text."""

import numpy as np

from aggregation.noise.stream import NoiseStream
from coordinator.comparing.comparable import Method, Outcome, View, changed
from coordinator.pricing.priced_plan import price_plan
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.transport.launchers import SimulationRequest
from tally.recipe import WINDOW, Tally, prepare, shares_of
from tally.student import error


class Bench:
    """The data of one seed."""

    def __init__(self, plan, public, units):
        self.plan, self.public, self.units = plan, public, units
        self.seed, self.delta = plan.run.seed, plan.privacy.delta * (1 - SAMPLER_SHARE)


def _tally(bench, epsilon):
    (release,) = price_plan(Tally(changed(bench.plan, epsilon=epsilon), bench.public)).releases
    counts, size = release.mechanism, len(bench.public.vocabulary)
    parts = [counts.contribute(units).toarray() for units in bench.units]
    noise = [counts.noise_share(part.shape, NoiseStream.insecure(bench.seed, str(n))) for n, part in enumerate(parts)]
    noisy = counts.release(sum(parts) + sum(noise), len(parts)).values
    return Outcome(shares_of(noisy.reshape(size, size).sum(axis=1)), release.event)


def _exact(bench, epsilon):
    size = len(bench.public.vocabulary)
    counts = sum(np.asarray(units.sum(axis=0)).reshape(size, size) for units in bench.units)
    return Outcome(shares_of(counts.sum(axis=1)), None)


class TallyFamily:
    """A `coordinator.comparing.comparable.Family`."""

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

    def bench(self, seed, folder):
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
        return Bench(plan, public, self.given.launcher.simulate(request).counts())

    def metrics(self, bench, model):
        return {"error": error(model, bench.public.shares)}
