"""The simulated parties' labelled text in clear, for the methods of a comparison that have no privacy."""

from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator.comparing.comparable import ComparisonRequest
from coordinator.progress.progress import Progress
from coordinator.text_models.non_private import simulation
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText, labelled_text
from coordinator.transport.launchers import LabelledPart, Simulation, TextWanted

Floats: TypeAlias = NDArray[np.float32]


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
    return SimulatedText(shards, TextWanted(labelled_text(plan), public.tokenizer, public.longest), given.progress)
