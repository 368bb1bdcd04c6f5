"""Swing distillation and its baselines in a comparison: their data and their metrics."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from coordinator.comparing.comparable import ComparisonRequest, Method, View, changed
from coordinator.language_models.comparing import PERPLEXITY, Measured
from coordinator.language_models.pairs import answers_rouge, heldout_rows
from coordinator.progress.progress import Silent
from coordinator.systems.swing.data import SwingData
from coordinator.systems.swing.methods import methods_of
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import prepare
from coordinator.transport.launchers import Simulation, SimulationRequest

ROUGE: Final = (("rouge_1", "ROUGE-1"), ("rouge_2", "ROUGE-2"), ("rouge_l", "ROUGE-L"))


class SwingComparison:
    """A `coordinator.comparing.comparable.Comparable`.

    A seed draws the order of texts and which unit is in which teacher. The parties' text is the same for all seeds.
    Memory: the teachers' parameters, and the parties' tokens.
    """

    def __init__(self, given: ComparisonRequest) -> None:
        self.plan: SwingPlan = given.plan
        self._given = given
        self._shards: Simulation | None = None

    @property
    def methods(self) -> Mapping[str, Method]:
        return methods_of(self.plan)

    @property
    def view(self) -> View:
        return replace(PERPLEXITY, columns=ROUGE) if self.plan.pairs else PERPLEXITY

    def data(self, seed: int, folder: Path) -> SwingData:
        given, plan = self._given, changed(self.plan, seed=seed)
        if self._shards is None:
            by_user = plan.privacy.unit == "user"
            request = SimulationRequest(
                given.parties, folder, given.base, b"", 0, record=plan.privacy.record, by_user=by_user
            )
            self._shards = given.launcher.simulate(request)
        public = prepare(plan, given.base, given.cache)
        return SwingData(plan, public, self._shards, Silent(), given.base, folder, given.cache)

    def metrics(self, data: SwingData, model: Measured) -> dict[str, Any]:
        """model: what speaks."""
        from learning.language.perplexity import perplexity

        found = {"perplexity": perplexity(model.speakers, heldout_rows(data.public)).perplexity}
        written = answers_rouge(data.public, model.speakers)
        return found | {name: each for name, each in written.items() if name != "written"}
