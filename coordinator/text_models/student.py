"""A classifier's student: the public model with its trained parameters, measured on public text, to be published."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.page.exhibits import Calibration, Dots, Exhibit, Matrix, Passage, Passages, Sure, shortened
from coordinator.plan.named import named
from coordinator.progress.measuring import Measuring
from coordinator.progress.progress import Progress, Silent
from coordinator.publishing.report import Statement, markdown
from coordinator.publishing.verdict import headline
from coordinator.text_models import folder as classifier_folder
from coordinator.text_models.folder import ClassifierStudent, Erred, Made, about, metrics_of
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
        return classifier_folder.card(
            self.student,
            markdown(statement),
            first=headline(statement.privacy, self.metrics),
            plan=statement.plan,
            parties=len(statement.parties),
        )


def student_of(
    plan: ClassifierPlan,
    public: PublicText,
    point: NDArray[np.float32],
    made: Made | None = None,
    progress: Progress | None = None,
) -> PublishedClassifier:
    """The public model with these trained parameters [parameters], measured where there is public text.

    made: how it was made, where it was distilled. progress: is told of both measurements, of the start and the student.
    """
    import torch

    from learning.classification.training import predict
    from learning.models.adapting import unflatten

    model, targets = public.model, plan.text.targets
    measures: ClassifierMeasures | RegressionMeasures | None = None
    scores, free, told = None, {}, Measuring(progress or Silent(), times=2).told
    if public.heldout:
        rows = heldout_rows(plan, public)
        unflatten(model, torch.from_numpy(public.start))
        free = _free(plan, public, measured(plan, public, predict(model, rows, progress=told)))
    unflatten(model, torch.from_numpy(point))
    if public.heldout:
        said = predict(model, rows, progress=told)
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
            erred=() if measures is None else erred_of(plan, public, said),
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


MOST_ERRED: Final = 12
"""The most public test texts that a page shows the student wrong about."""


def erred_of(plan: ClassifierPlan, public: PublicText, said: NDArray[np.float32]) -> tuple[Erred, ...]:
    """The held-out examples that a model with these outputs, as `measured` takes them, gets most wrong: the surest of
    the wrong classes, the largest of the wrong scores.
    """
    from learning.classification.training import probabilities

    targets, examples = plan.text.targets, public.heldout
    if isinstance(targets, LabelMap):
        chances = probabilities(said)
        answers, sure = chances.argmax(axis=1), chances.max(axis=1)
        wrong = [place for place, each in enumerate(examples) if answers[place] != int(each.target)]
        first = sorted(wrong, key=lambda place: (-float(sure[place]), place))[:MOST_ERRED]
        return tuple(
            Erred(
                examples[place].first,
                examples[place].second or "",
                targets.names[int(examples[place].target)],
                targets.names[int(answers[place])],
                float(sure[place]),
            )
            for place in first
        )
    scores = [targets.score(float(each)) for each in said[:, 0]]
    first = sorted(range(len(scores)), key=lambda place: (-abs(scores[place] - examples[place].target), place))
    return tuple(
        Erred(
            examples[place].first,
            examples[place].second or "",
            f"{examples[place].target:.2f}",
            f"{scores[place]:.2f}",
            None,
        )
        for place in first[:MOST_ERRED]
    )


def exhibits(student: PublishedClassifier) -> list[Exhibit]:
    """How right and how sure a classifier is on public test text, and the texts that it gets most wrong; of a
    regression its scores.
    """
    from learning.classification.metrics import ClassifierMeasures

    made, found = student.student, []
    measures, targets = made.measures, made.targets
    if isinstance(measures, ClassifierMeasures) and isinstance(targets, LabelMap):
        if len(targets.names) <= MOST_NAMED:
            says = [f"On {measures.examples:,} public test texts: a row is the true class, a column what it says."]
            cells = Matrix(
                names=[shortened(name, 60) for name in targets.names], cells=[list(row) for row in measures.confusion]
            )
            found.append(Exhibit(title="What it takes for what", says=says, content=cells))
        bins = [Sure(confidence=b.confidence, right=b.accuracy, examples=b.examples) for b in measures.reliability]
        says = [
            "Texts are put together by how sure it is of its answer. On the line it is right as often as it is sure; "
            "below the line it is too sure. The mean distance from the line, the expected calibration error, is "
            f"{measures.calibration:.3f}."
        ]
        found.append(Exhibit(title="Is it right as often as it is sure?", says=says, content=Calibration(bins=bins)))
    elif made.scores is not None:
        dots = [[float(truth), float(said)] for said, truth in zip(*made.scores, strict=True)][:MOST_DOTS]
        says = ["Each dot is a public test text. On the line, the score that it says is the true one."]
        shown = Dots(across="true score", up="score said", dots=dots)
        found.append(Exhibit(title="Scores said and true", says=says, content=shown))
    if made.erred:
        says = ["Public test texts, the most wrong first. No text of any party is shown here, or known."]
        found.append(
            Exhibit(title="Where it errs", says=says, content=Passages(passages=[_erred(each) for each in made.erred]))
        )
    return found


MOST_NAMED: Final = 30
MOST_DOTS: Final = 1000


def _erred(each: Erred) -> Passage:
    text = each.text if not each.second else f"{each.text} \u2022 {each.second}"
    sure = "" if each.sure is None else f", {each.sure:.0%} sure"
    return Passage(text=shortened(text, 400), about=shortened(f"It says {each.said}{sure}; it is {each.truth}.", 300))
