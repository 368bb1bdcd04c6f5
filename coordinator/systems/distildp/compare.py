"""DistilDP and its baselines in a comparison: their data and their metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.comparing.comparable import ComparisonRequest, Method, View, changed
from coordinator.language_models.comparing import PERPLEXITY, LanguageData, Measured
from coordinator.progress.progress import Silent
from coordinator.systems.distildp.methods import methods_of
from coordinator.systems.distildp.plan import DistilDpPlan
from coordinator.systems.distildp.public import prepare
from coordinator.systems.distildp.teaching import cells_of, rows_of
from coordinator.transport.launchers import Simulation, SimulationRequest


class DistilDpComparison:
    """A `coordinator.comparing.comparable.Comparable`.

    A seed draws every model's start, the texts and the order in which the student learns. The parties' text is the same
    for all seeds. Memory: teacher and student, and the parties' tokens.
    """

    def __init__(self, given: ComparisonRequest) -> None:
        # Rows are of teachers that the coordinator has: those that parties keep write and say the same.
        self.plan: DistilDpPlan = changed(given.plan, {"generation": {"where": "coordinator"}})
        self._given = given
        self._shards: Simulation | None = None

    @property
    def methods(self) -> Mapping[str, Method]:
        return methods_of(self.plan)

    @property
    def view(self) -> View:
        return PERPLEXITY

    def data(self, seed: int, folder: Path) -> LanguageData:
        given, plan = self._given, changed(self.plan, seed=seed)
        if self._shards is None:
            self._shards = given.launcher.simulate(
                SimulationRequest(
                    parties=given.parties,
                    folder=folder,
                    base=given.base,
                    vocabulary=b"",
                    window=0,
                    record=plan.privacy.record,
                    by_user=plan.privacy.unit == "user",
                )
            )
        public = prepare(plan, given.base, given.cache)
        return LanguageData(plan, public, self._shards, Silent(), given.base, folder, given.cache)

    def metrics(self, data: LanguageData, model: Measured) -> dict[str, Any]:
        """model: what speaks, and whether it reads control codes."""
        from learning.language.perplexity import perplexity

        rows, cells = rows_of(data.public, coded=model.coded), cells_of(data.public) if model.coded else None
        return {"perplexity": perplexity(model.speakers, rows, cells).perplexity}
