"""Recipe `fine_tune`: a text model trained on all simulated text in clear, without privacy, to be compared with.

What it publishes promises nothing, and says so first: no privacy.json, no manifest, no signature.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.progress.progress import Progress
from coordinator.published.manifest import CARD
from coordinator.publishing.publish import check_free, placed
from coordinator.text_models import folder as classifier_folder
from coordinator.text_models import public as classifier_public
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.text_models.student import PublishedClassifier, student_of
from coordinator.transport.launchers import LabelledPart, Launcher, SimulationRequest, TextWanted

if TYPE_CHECKING:
    from learning.models.batching import Tokens

RECIPE: Final = "fine_tune"
NO_GUARANTEE: Final = (
    "NO PRIVACY GUARANTEE: this model was trained on all text in clear. It is for comparing on text that is nobody's "
    "secret, and nothing that learned from anybody's secret may be published so."
)


@dataclass(frozen=True, slots=True)
class TrainedInClear:
    """A finished training. student: its folder, absolute. metrics: of public test text. epsilon, delta: none."""

    student: Path
    metrics: dict[str, Any]
    epsilon: None = None
    delta: None = None


def run(
    plan: ClassifierPlan,
    launcher: Launcher,
    parties: dict[str, dict[str, Any]],
    base: Path,
    cache: Path,
    folder: Path,
    progress: Progress,
) -> TrainedInClear:
    """Train, measure and write the student's folder whole, or not at all.

    Memory: all parties' tokens; where the last layer alone is trained, the vectors of all examples, 4 bytes a number.
    Raises `ConclaveError`: what cannot be read or trained, and `RunError` where something stands in `folder`.
    """
    progress.say(NO_GUARANTEE)
    check_free(folder)
    public = classifier_public.prepare(plan, base, cache)
    shards = launcher.simulate(simulation(plan, parties, base, cache / "simulation"))
    wanted = TextWanted(classifier_public.labelled_text(plan), public.tokenizer, public.longest)
    point = trained(plan, public, pooled(shards.labelled(wanted)), None, progress)
    student = student_of(plan, public, point)

    def fill(beside: Path) -> None:
        student.write(beside)
        (beside / CARD).write_text(card(student, plan, len(parties)), encoding="utf-8")

    placed(folder, fill)
    return TrainedInClear(folder, student.metrics)


def simulation(plan: ClassifierPlan, parties: dict[str, dict[str, Any]], base: Path, folder: Path) -> SimulationRequest:
    """The parties of a plan, whose labelled text is read in clear."""
    return SimulationRequest(
        parties=parties,
        folder=folder,
        base=base,
        vocabulary=b"",
        window=0,
        record=plan.privacy.record,
        by_user=plan.privacy.unit == "user",
    )


@dataclass(frozen=True, slots=True)
class Pooled:
    """All parties' examples together. labels [examples]."""

    rows: "Sequence[Tokens]"
    labels: NDArray[np.int64] | NDArray[np.float32]


def pooled(parts: Sequence[LabelledPart]) -> Pooled:
    """The examples of all parts, in their order."""
    rows = [part.rows[place] for part in parts for place in range(len(part.rows))]
    return Pooled(rows, np.concatenate([part.labels for part in parts]))


def trained(
    plan: ClassifierPlan,
    public: PublicText,
    examples: Pooled,
    vectors: NDArray[np.float32] | None,
    progress: Progress,
) -> NDArray[np.float32]:
    """The parameters [parameters] that ordinary training finds from the public start. Not private.

    vectors: what the last layer sees of the examples, where that alone is trained; made here where they are None.
    """
    import torch

    from learning.classification.training import fit, fit_head
    from learning.models.adapting import flatten, unflatten
    from learning.models.features import features, head_alone

    model, settings = public.model, plan.fine_tune.fit()
    unflatten(model, torch.from_numpy(public.start))
    rng, labels = np.random.default_rng(plan.run.seed), examples.labels
    head = head_alone(model)
    if head is None:
        fit(model, examples.rows, labels, settings, rng, lambda done: progress.bar("training", int(100 * done), 100))
    else:
        fit_head(head, features(model, examples.rows) if vectors is None else vectors, labels, settings, rng)
    return np.asarray(flatten(model).numpy())


def card(student: PublishedClassifier, plan: ClassifierPlan, parties: int) -> str:
    """The model card, which says first that nothing is promised."""
    return classifier_folder.clear_card(
        student.student,
        NO_GUARANTEE,
        name=plan.run.name,
        parties=parties,
        language=plan.student.language,
        licence=plan.student.licence,
    )
