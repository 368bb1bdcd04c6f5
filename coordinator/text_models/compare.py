"""Text classifiers and regressions as a comparison sees them: their data, their measures, how they are shown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.comparing.comparable import ComparisonRequest, Method, View, changed
from coordinator.progress.progress import Silent
from coordinator.text_models import public as classifier_public
from coordinator.text_models.folder import metrics_of
from coordinator.text_models.methods import VOTING, TextData, checked, methods_of
from coordinator.text_models.non_private import SimulatedText, simulated_text
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.student import heldout_rows, measured


class ClassifierComparison:
    """A `coordinator.comparing.comparable.Comparable`.

    A seed draws the student's start and the division into teachers. The parties' text is the same for all seeds; it is
    read, and encoded, once. Memory: as `SimulatedText` says.
    """

    def __init__(self, given: ComparisonRequest) -> None:
        self.plan: ClassifierPlan = given.plan
        self._given = given
        self._text: SimulatedText | None = None
        self._heldout: NDArray[np.float32] | None = None

    @property
    def methods(self) -> Mapping[str, Method]:
        return methods_of(self.plan)

    @property
    def view(self) -> View:
        return SCORES if self.plan.text.kind == "regression" else CLASSES

    def data(self, seed: int, folder: Path) -> TextData:
        plan = changed(self.plan, seed=seed)
        # Only one method needs public texts to vote on.
        asks = VOTING in self.methods
        if asks:
            checked(plan.check_votes)
        public = classifier_public.prepare(plan, self._given.base, self._given.cache, asks=asks)
        if self._text is None:
            self._text = simulated_text(self._given, plan, public, folder)
        return TextData(plan, public, self._text, Silent(), self._given.recipe)

    def metrics(self, data: TextData, model: NDArray[np.float32]) -> dict[str, Any]:
        """model: what was trained, [parameters]."""
        found = metrics_of(measured(data.plan, data.public, self.said(data, model)))
        return {name: value for name, value in found.items() if name != "examples"}

    def said(self, data: TextData, model: NDArray[np.float32]) -> NDArray[np.float32]:
        """What trained parameters say of the held-out texts, [examples, outputs]."""
        import torch

        from learning.classification.training import predict, predict_head
        from learning.models.adapting import unflatten
        from learning.models.features import features, head_alone

        unflatten(data.public.model, torch.from_numpy(model))
        head = head_alone(data.public.model)
        if head is None:
            said = predict(data.public.model, heldout_rows(data.plan, data.public))
        else:
            if self._heldout is None:
                self._heldout = features(data.public.model, heldout_rows(data.plan, data.public))
            said = predict_head(head, self._heldout)
        return said


def _about(what: str, plan: ClassifierPlan, seeds: int) -> str:
    unit = "user" if plan.privacy.unit == "user" else plan.privacy.record
    return (
        f"{what} on public held-out text, mean and spread over {seeds} seed{'s' if seeds > 1 else ''}; model: "
        f"{plan.model.name}, {plan.model.adapt}; {len(plan.federation.names)} parties; unit: one {unit}; delta "
        f"{plan.privacy.delta:g}."
    )


def _shown(mean: float, deviation: float | None, best: float | None) -> str:
    return f"{mean:.3f}" if deviation is None else f"{mean:.3f} ± {deviation:.3f}"


CLASSES = View(
    metric="accuracy",
    axis="accuracy, higher is better",
    columns=(("macro_f1", "macro F1"), ("calibration_error", "calibration error")),
    best=max,
    shown=_shown,
    said=lambda value: f"accuracy {value:.3f}",
    about=lambda plan, seeds: _about("Accuracy", plan, seeds),
)
SCORES = View(
    metric="pearson",
    axis="Pearson correlation, higher is better",
    columns=(("spearman", "Spearman"), ("error", "error")),
    best=max,
    shown=_shown,
    said=lambda value: "no correlation" if value is None else f"correlation {value:.3f}",
    about=lambda plan, seeds: _about("Pearson correlation", plan, seeds),
)
