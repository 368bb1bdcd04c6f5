"""PrivDistil and its baselines in a comparison: their data and their metrics."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coordinator.comparing.comparable import ComparisonRequest, Method, View, changed
from coordinator.progress.progress import Silent
from coordinator.systems.privdistil.data import CorpusData, Trained
from coordinator.systems.privdistil.methods import methods_of
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.public import prepare
from coordinator.text_models import public as classifier_public
from coordinator.text_models.compare import CLASSES, SCORES
from coordinator.text_models.folder import metrics_of
from coordinator.text_models.methods import VOTING
from coordinator.text_models.non_private import SimulatedText, simulated_text
from coordinator.text_models.public import public_model
from coordinator.text_models.student import heldout_rows, measured


class PrivDistilComparison:
    """A `coordinator.comparing.comparable.Comparable`.

    A seed draws the public texts, every model's start and the order in which the student learns. The parties' text is
    the same for all seeds. Memory: the teacher, and as `SimulatedText` says.
    """

    def __init__(self, given: ComparisonRequest) -> None:
        self.plan: PrivDistilPlan = given.plan
        self._given = given
        self._text: SimulatedText | None = None

    @property
    def methods(self) -> Mapping[str, Method]:
        return methods_of(self.plan)

    @property
    def view(self) -> View:
        return SCORES if self.plan.text.kind == "regression" else CLASSES

    def data(self, seed: int, folder: Path) -> CorpusData:
        plan = changed(self.plan, seed=seed)
        public = prepare(plan, self._given.base, self._given.cache)
        whole = public_model(plan, public.teacher, self._given.cache, pool=plan.model.pooling)
        asked = VOTING in self.methods
        if self._text is None:
            self._text = simulated_text(self._given, plan, whole, folder)
        return CorpusData(
            plan=plan,
            public=public,
            text=self._text,
            progress=Silent(),
            folder=folder,
            base=self._given.base,
            whole=whole,
            recipe=self._given.recipe,
            queries=classifier_public.queries(plan, self._given.base, self._given.cache) if asked else (),
        )

    def metrics(self, data: CorpusData, model: Trained) -> dict[str, Any]:
        """model: what was trained, and in which model."""
        import torch

        from learning.classification.training import predict
        from learning.models.adapting import unflatten

        unflatten(model.public.model, torch.from_numpy(model.point))
        public = data.public.text
        said = predict(model.public.model, heldout_rows(data.plan, public))
        found = metrics_of(measured(data.plan, public, said))
        return {name: value for name, value in found.items() if name != "examples"}
