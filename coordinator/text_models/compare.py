"""Text classifiers and regressions as a comparison sees them: their data, their measures, how they are shown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coordinator.comparing.comparable import Comparable, Method, View, changed
from coordinator.progress.progress import Silent
from coordinator.text_models import public as classifier_public
from coordinator.text_models.folder import metrics_of
from coordinator.text_models.methods import VOTING, ReadText, TextBench, checked, methods_of
from coordinator.text_models.non_private import pooled, simulation
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.text_models.student import heldout_rows, measured
from coordinator.transport.launchers import Simulation, TextWanted


class ClassifierFamily:
    """A `coordinator.comparing.comparable.Family`. A seed is of the student's start, and of teachers; what the parties
    have is theirs for all seeds, and is read, and seen by the encoder, once.

    Memory of a bench: all parties' tokens, and where the last layer alone is trained 4 bytes a number of their vectors.
    """

    def __init__(self, given: Comparable) -> None:
        self.plan: ClassifierPlan = given.plan
        self._given = given
        self._read: ReadText | None = None
        self._shards: Simulation | None = None

    @property
    def methods(self) -> Mapping[str, Method]:
        return methods_of(self.plan)

    @property
    def view(self) -> View:
        return SCORES if self.plan.text.kind == "regression" else CLASSES

    def bench(self, seed: int, folder: Path) -> TextBench:
        plan = changed(self.plan, seed=seed)
        # The public texts to vote on are of one method alone; all else is the same for every one.
        asks = VOTING in self.methods
        if asks:
            checked(plan.check_votes)
        public = classifier_public.prepare(plan, self._given.base, self._given.cache, asks=asks)
        if self._shards is None:
            wanted = simulation(plan, self._given.parties, self._given.base, folder)
            self._shards = self._given.launcher.simulate(wanted)
        self._read = self._read or self._all(plan, public, self._shards)
        return TextBench(plan, public, self._read, self._shards, Silent(), self._given.recipe)

    def metrics(self, bench: TextBench, model: NDArray[np.float32]) -> dict[str, Any]:
        """model: what was trained, [parameters]."""
        import torch

        from learning.classification.training import predict
        from learning.models.adapting import unflatten
        from learning.models.features import head_alone

        unflatten(bench.public.model, torch.from_numpy(model))
        if bench.read.heldout is None:
            said = predict(bench.public.model, heldout_rows(bench.plan, bench.public))
        else:
            head = head_alone(bench.public.model)
            assert head is not None
            with torch.inference_mode():
                said = head(torch.from_numpy(bench.read.heldout)).numpy()
        found = metrics_of(measured(bench.plan, bench.public, said))
        return {name: value for name, value in found.items() if name != "examples"}

    def _all(self, plan: ClassifierPlan, public: PublicText, shards: Simulation) -> ReadText:
        """What every seed shares: where the last layer alone is trained, the encoder below it has no seed."""
        from learning.models.features import features, head_alone

        wanted = TextWanted(classifier_public.labelled_text(plan), public.tokenizer, public.longest)
        parts = shards.labelled(wanted)
        if head_alone(public.model) is None:
            return ReadText(parts, pooled(parts), None, None)
        vectors = []
        for number, part in enumerate(parts):
            self._given.progress.bar("encoding parties' text", number, len(parts))
            vectors.append(features(public.model, part.rows))
        self._given.progress.bar("encoding parties' text", len(parts), len(parts))
        return ReadText(parts, pooled(parts), tuple(vectors), features(public.model, heldout_rows(plan, public)))


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
