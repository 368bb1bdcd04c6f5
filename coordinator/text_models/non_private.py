"""Ordinary training without privacy on all simulated text: the baseline of private methods."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from coordinator.progress.progress import Progress
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.transport.launchers import LabelledPart, SimulationRequest

if TYPE_CHECKING:
    from learning.models.batching import Tokens


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
    """The examples of all parts in order."""
    rows = [part.rows[place] for part in parts for place in range(len(part.rows))]
    return Pooled(rows, np.concatenate([part.labels for part in parts]))


def trained(
    plan: ClassifierPlan,
    public: PublicText,
    examples: Pooled,
    vectors: NDArray[np.float32] | None,
    progress: Progress,
) -> NDArray[np.float32]:
    """The parameters [parameters] of ordinary training from the public start. Not private.

    vectors: the input of the last layer for the examples, where only that layer is trained; computed here where it is
    None.
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
