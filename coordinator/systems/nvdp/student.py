"""What an `nvdp` run publishes: the rows as a data set, and the task model that was learned from them."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.samples import SamplesMechanism
from coordinator.publishing.report import Statement
from coordinator.systems.nvdp.dataset import FOLDER, about, write
from coordinator.systems.nvdp.pair_student import pair_student
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.pooling import Rows
from coordinator.systems.nvdp.public import PublicVectors
from coordinator.systems.nvdp.rules import floor_of, said_by
from coordinator.text_models.folder import metrics_of
from coordinator.text_models.student import PublishedClassifier, measured
from coordinator.text_models.student import student_of as classifier_of


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
