"""Students of DPED's kind, embeddings, as a comparison sees them: their data, their measures, how they are shown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.comparing.comparable import ComparisonRequest, Method, View
from coordinator.progress.progress import Silent
from coordinator.publishing.measured import shown_perplexity
from coordinator.systems.dped.methods import METHODS, EmbeddingData, changed
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.public import Public, prepare
from coordinator.systems.dped.student import Probes, metrics_of
from coordinator.transport.launchers import Simulation, SimulationRequest

OFF_THE_SCALE = 1e4
"""A student of this perplexity or more is worse than useless: five times worse than guessing among 2,000 words."""


class DpedComparison:
    """A `coordinator.comparing.comparable.Comparable`.

    Memory of a seed's data: every unit's pair counts in clear, about 12 bytes a distinct pair of a unit.
    """

    def __init__(self, given: ComparisonRequest) -> None:
        self.plan: DpedPlan = given.plan
        self._given = given
        self._probes: Probes | None = None
        self._shards: Simulation | None = None

    @property
    def methods(self) -> Mapping[str, Method]:
        return METHODS

    @property
    def view(self) -> View:
        return VIEW

    def data(self, seed: int, folder: Path) -> EmbeddingData:
        # Every method may need the reference, whatever the plan's own signals are.
        seeded = changed(self.plan, seed=seed, signals=["votes", "hidden", "moments"], private_training=None)
        public = prepare(seeded, self._given.base, self._given.cache)
        if self._shards is None:
            self._shards = self._given.launcher.simulate(self._request(public, folder))
        self._probes = self._probes or Probes.read(self.plan, public.vocabulary, self._given.base, self._given.cache)
        return EmbeddingData(changed(self.plan, seed=seed), public, self._shards, Silent())

    def _request(self, public: Public, folder: Path) -> SimulationRequest:
        """The parties' text, which is the same for every seed, as are the words that are counted."""
        return SimulationRequest(
            parties=self._given.parties,
            folder=folder,
            base=self._given.base,
            vocabulary=public.vocabulary.to_bytes(),
            window=self.plan.dped.window,
            record=self.plan.privacy.record,
            by_user=self.plan.privacy.unit == "user",
        )

    def metrics(self, data: EmbeddingData, model: Any) -> dict[str, Any]:
        assert self._probes is not None
        found = metrics_of(model, data.plan, data.public)
        return {
            "perplexity": found["perplexity"],
            "wordsim": found["wordsim"]["spearman"],
            "analogies": found["analogies"]["accuracy"],
            **self._probes.accuracies(model.inputs),
        }


def _about(plan: DpedPlan, seeds: int) -> str:
    unit = "user" if plan.privacy.unit == "user" else plan.privacy.record
    return (
        f"Context perplexity on public held-out text, mean and spread over {seeds} seed{'s' if seeds > 1 else ''}, and "
        f"its ratio to the best row without privacy; unit: one {unit}; delta {plan.privacy.delta:g}; "
        f"{plan.vocabulary.size:,} words."
    )


def _shown(mean: float, deviation: float | None, best: float | None) -> str:
    if mean >= OFF_THE_SCALE:
        return shown_perplexity(mean)
    said = f"{mean:.1f}" if deviation is None else f"{mean:.1f} ± {deviation:.1f}"
    return said if best is None else f"{said} ({mean / best:.2f})"


def _said(perplexity: float | None) -> str:
    assert perplexity is not None
    return f"perplexity {shown_perplexity(perplexity)}"


VIEW = View(
    metric="perplexity",
    axis="context perplexity, lower is better",
    columns=(("wordsim", "WordSim"), ("analogies", "analogies")),
    best=min,
    shown=_shown,
    said=_said,
    about=_about,
    claims=True,
    logarithmic=True,
    worst=OFF_THE_SCALE,
)
