"""What an `nvdp` run publishes: the rows as a data set, and the task model that was learned from them."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.samples import SamplesMechanism
from coordinator.page.exhibits import Exhibit, Table
from coordinator.publishing.report import Statement
from coordinator.systems.nvdp.dataset import FOLDER, about, write
from coordinator.systems.nvdp.pair_student import pair_student
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.pooling import Rows
from coordinator.systems.nvdp.public import PublicVectors
from coordinator.systems.nvdp.rules import floor_of, said_by
from coordinator.text_models.folder import metrics_of
from coordinator.text_models.student import PublishedClassifier, measured
from coordinator.text_models.student import exhibits as classifier_exhibits
from coordinator.text_models.student import student_of as classifier_of
from learning.text.labelled import LabelMap


@dataclass(frozen=True, slots=True)
class PublishedSamples:
    """A `coordinator.publishing.student.Student`: a classifier, with the rows beside it."""

    classifier: PublishedClassifier
    plan: NvdpPlan
    public: PublicVectors
    mechanism: SamplesMechanism
    rows: Rows

    @property
    def metrics(self) -> dict[str, Any]:
        return self.classifier.metrics

    @property
    def neighbours(self) -> dict[str, list[str]]:
        return {}

    @property
    def claimed(self) -> None:
        return None

    def write(self, folder: Path) -> None:
        self.classifier.write(folder)
        write(folder / FOLDER, self.plan, self.public, self.mechanism, self.rows)

    def card(self, statement: Statement) -> str:
        """The classifier's card, with a section on the rows before how the folder is checked."""
        front, checking, rest = self.classifier.card(statement).partition("## Checking it")
        return front + about(self.plan, self.public, self.mechanism, self.rows) + checking + rest


def student_of(
    plan: NvdpPlan, public: PublicVectors, content: bytes, mechanism: SamplesMechanism, rows: Rows
) -> PublishedSamples:
    """The public encoder under the rule that was learned, measured where there is public text."""
    from safetensors.numpy import load

    kept = load(content)
    made = pair_student(plan, public, kept) if plan.text.pairs else classifier_of(plan, public, kept["point"])
    if public.heldout:
        metrics = made.student.metrics | _measures(plan, public, kept)
        made = replace(made, student=replace(made.student, metrics=metrics))
    return PublishedSamples(made, plan, public, mechanism, rows)


def _measures(plan: NvdpPlan, public: PublicVectors, kept: dict[str, NDArray[np.float64]]) -> dict[str, Any]:
    """The score of the public text's own rule, the floor, where it has labels."""
    floor = floor_of(plan, public)
    if floor is None:
        return {}
    found = metrics_of(measured(plan, public, said_by(plan, public, floor)))
    return {"public_rule": found["accuracy" if "accuracy" in found else "pearson"]}


_SOME_ROWS, _SOME_NUMBERS = 5, 5


def exhibits(student: PublishedSamples) -> list[Exhibit]:
    """What the published rows are, a few of them, and how good the classifier is that learned from them."""
    mechanism, rows, public = student.mechanism, student.rows, student.public
    own = math.sqrt(float(np.trace(public.statistics.covariance)) / mechanism.dimensions)
    facts = [
        ["rows", f"{len(rows.labels):,}, of {rows.parties} parties, as many of each whatever it holds"],
        ["numbers in a row", f"{mechanism.dimensions}, with {public.projection.explained:.0%} of what the public "
         "encoder tells apart in public text"],
        ["longest vector before noise", "1"],
        ["noise on every number", f"standard deviation {mechanism.sigma:.3g}"],
        ["a number's own spread without noise", f"about {own:.2g}: {own / mechanism.sigma:.3f} of the noise's"],
        ["label", f"the true one with probability {mechanism.kept:.3f}" if mechanism.label_epsilon else "public"],
    ]  # fmt: skip
    says = ["A row is one text, as a noisy vector. One row says next to nothing of its text; many together teach."]
    some = [
        [f"row {place + 1}", _labelled(student.plan, int(rows.labels[place]))]
        + [f"{number:+.2f}" for number in rows.vectors[place][:_SOME_NUMBERS]]
        for place in range(min(_SOME_ROWS, len(rows.labels)))
    ]
    heads = ["", "label said", *(f"number {place + 1}" for place in range(min(_SOME_NUMBERS, mechanism.dimensions)))]
    return [
        Exhibit(title="What the rows are", says=says, content=Table(heads=["", ""], rows=facts)),
        Exhibit(title="The first rows", says=["As they are published."], content=Table(heads=heads, rows=some)),
        *classifier_exhibits(student.classifier),
    ]


def _labelled(plan: NvdpPlan, label: int) -> str:
    targets = plan.text.targets
    return targets.names[label] if isinstance(targets, LabelMap) else f"part {label + 1} of the range"
