"""Simulated parties' labelled text in clear, and ordinary training on all of it: the baseline of private methods."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator.comparing.comparable import ComparisonRequest
from coordinator.progress.progress import Progress
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.transport.launchers import LabelledPart, Simulation, SimulationRequest, TextWanted

if TYPE_CHECKING:
    from learning.models.batching import Tokens

Floats: TypeAlias = NDArray[np.float32]


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


class SimulatedText:
    """All parties' text, read when a method first needs it, once for all seeds.

    shards: the simulated parties. Memory: all parties' tokens; and, for every model of which only the last layer is
    trained, 4 bytes for each number of the texts' vectors.
    """

    def __init__(self, shards: Simulation, wanted: TextWanted, progress: Progress) -> None:
        self.shards = shards
        self._wanted = wanted
        self._progress = progress
        self._parts: tuple[LabelledPart, ...] | None = None

    @property
    def parts(self) -> tuple[LabelledPart, ...]:
        """Every party's examples."""
        if self._parts is None:
            self._parts = self.shards.labelled(self._wanted)
        return self._parts

    def vectors(self, public: PublicText) -> tuple[Floats, ...] | None:
        """The input vectors of a model's last layer, [examples, width] for each party. None where more than that layer
        is trained.
        """
        from learning.models.features import head_alone

        if head_alone(public.model) is None:
            return None
        found = []
        for number, part in enumerate(self.parts):
            self._progress.bar("encoding parties' text", number, len(self.parts))
            found.append(self.shards.vectors(public.model, part.rows))
        self._progress.bar("encoding parties' text", len(self.parts), len(self.parts))
        return tuple(found)


def simulated_text(given: ComparisonRequest, plan: ClassifierPlan, public: PublicText, folder: Path) -> SimulatedText:
    """Simulate the parties of a comparison's plan. folder: for their files.

    Raises `ConclaveError` where the plan's parties hold their own text.
    """
    shards = given.launcher.simulate(simulation(plan, given.parties, given.base, folder))
    return SimulatedText(shards, TextWanted(plan.labelled, public.tokenizer, public.longest), given.progress)


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
        fit(
            model,
            examples.rows,
            labels,
            settings,
            rng,
            lambda done: progress.bar("training", int(100 * done), 100, "percent"),
        )
    else:
        fit_head(head, features(model, examples.rows) if vectors is None else vectors, labels, settings, rng)
    return np.asarray(flatten(model).numpy())
