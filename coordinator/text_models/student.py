"""A classifier's student: the public model with its trained parameters, measured on public text, to be published."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coordinator.plan.named import named
from coordinator.publishing.report import Statement, markdown
from coordinator.text_models import folder as classifier_folder
from coordinator.text_models.folder import ClassifierStudent, Made, about, metrics_of
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from learning.text.hub import is_hub_name
from learning.text.labelled import LabelMap

if TYPE_CHECKING:
    from learning.classification.metrics import ClassifierMeasures, RegressionMeasures
    from learning.models.batching import Tokens


@dataclass(frozen=True, slots=True)
class PublishedClassifier:
    """A `coordinator.publishing.student.Student`."""

    student: ClassifierStudent

    @property
    def metrics(self) -> dict[str, Any]:
        return self.student.metrics

    @property
    def neighbours(self) -> dict[str, list[str]]:
        return {}

    @property
    def claimed(self) -> None:
        return None

    def write(self, folder: Path) -> None:
        classifier_folder.write(self.student, folder)

    def card(self, statement: Statement) -> str:
        plan = statement.plan
        return classifier_folder.card(
            self.student,
            markdown(statement),
            name=plan.run.name,
            parties=len(statement.parties),
            recipe=plan.run.recipe,
            language=plan.student.language,
            licence=plan.student.licence,
        )


def student_of(
    plan: ClassifierPlan, public: PublicText, point: NDArray[np.float32], made: Made | None = None
) -> PublishedClassifier:
    """The public model with these trained parameters [parameters], measured where there is public text.

    made: how it was made, where it was distilled.
    """
    import torch

    from learning.classification.training import predict
    from learning.models.adapting import unflatten

    model, targets = public.model, plan.text.targets
    measures: ClassifierMeasures | RegressionMeasures | None = None
    scores, free = None, {}
    if public.heldout:
        rows = heldout_rows(plan, public)
        unflatten(model, torch.from_numpy(public.start))
        free = _free(plan, public, measured(plan, public, predict(model, rows)))
    unflatten(model, torch.from_numpy(point))
    if public.heldout:
        said = predict(model, rows)
        measures = measured(plan, public, said)
        if not isinstance(targets, LabelMap):
            truth = np.array([each.target for each in public.heldout], np.float64)
            scores = np.array([targets.score(float(each)) for each in said[:, 0]]), truth
    return PublishedClassifier(
        ClassifierStudent(
            model=model,
            tokenizer=public.tokenizer,
            targets=targets,
            pairs=plan.text.pairs,
            base=plan.model.name if is_hub_name(plan.model.name) else f"{named(plan.model.name)} (a local folder)",
            adapt=plan.model.adapt,
            metrics=({} if measures is None else metrics_of(measures) | free) | ({} if made is None else about(made)),
            measures=measures,
            scores=scores,
            made=made,
        )
    )


def _free(
    plan: ClassifierPlan, public: PublicText, start: "ClassifierMeasures | RegressionMeasures"
) -> dict[str, float | None]:
    """The same measurements of two baselines that cost nothing: the public start, and the most frequent class."""
    found = metrics_of(start)
    if not isinstance(plan.text.targets, LabelMap):
        return {"public_start": found["pearson"]}
    commonest = Counter(each.target for each in public.heldout).most_common(1)[0][1]
    return {"public_start": found["accuracy"], "majority": commonest / len(public.heldout)}


def heldout_rows(plan: ClassifierPlan, public: PublicText) -> "list[Tokens]":
    """The held-out examples as inputs of the model."""
    from learning.models.batching import encode

    second = [example.second or "" for example in public.heldout] if plan.text.pairs else None
    first = [example.first for example in public.heldout]
    return encode(public.tokenizer, first, second, longest=public.longest).rows


def measured(
    plan: ClassifierPlan, public: PublicText, said: NDArray[np.float32]
) -> "ClassifierMeasures | RegressionMeasures":
    """The quality of a model with these outputs on the held-out examples: logits, or standard scores [examples, 1]."""
    from learning.classification.metrics import measure_classifier, measure_regression
    from learning.classification.training import probabilities

    targets, truth = plan.text.targets, [each.target for each in public.heldout]
    if isinstance(targets, LabelMap):
        return measure_classifier(probabilities(said), np.array(truth, np.int64))
    return measure_regression(said[:, 0], np.array(truth, np.float64), targets)
