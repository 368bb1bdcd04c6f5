"""What attacks on released rows share, of either form: nobody is told whose row is whose."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator.auditing.attacks import Seen
from coordinator.published.audit import Exposed
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.text_models.auditing.trained import ENOUGH, columns_of_plan, mislabelled
from coordinator.text_models.public import PublicText
from learning.text.labelled import Example, LabelMap, examples
from learning.text.source import Document, Skipped


class _Read(Protocol):
    """A recipe of either form, with its public data read."""

    @property
    def plan(self) -> NvdpPlan: ...

    @property
    def read(self) -> PublicText: ...


R = TypeVar("R", bound=_Read)


@dataclass(frozen=True, slots=True)
class RowAttacks(Generic[R]):
    """All of `coordinator.auditing.attacks.Attacks` but the attacks."""

    recipe: R

    @property
    def texts(self) -> int:
        """How many texts of a unit are released."""
        return self.recipe.plan.samples.texts

    @property
    def compares(self) -> bool:
        return False

    @property
    def watches(self) -> bool:
        return False

    @property
    def most(self) -> int | None:
        return ENOUGH

    def worst(self, count: int, rows: Sequence[Document], rng: np.random.Generator) -> list[Document]:
        return mislabelled(self.recipe.plan, self.recipe.read, count, rows, rng)

    def exposures(self, seen: Seen) -> Iterable[Exposed]:
        return ()

    def examples(self, units: Sequence[Sequence[Document]]) -> tuple[NDArray[np.int64], list[Example]]:
        """The unit of each text that a party releases, [texts], and the texts."""
        plan, owner, found = self.recipe.plan, list[int](), list[Example]()
        for number, rows in enumerate(units):
            own = list(examples(rows, columns_of_plan(plan), plan.text.targets, Skipped(), lenient=True))[: self.texts]
            found += own
            owner += [number] * len(own)
        return np.array(owner, np.int64), found

    def classes(self, found: Sequence[Example], classes: int) -> NDArray[np.int64]:
        """The class of each text as it is released, [texts]; of a score its bin."""
        targets = self.recipe.plan.text.targets
        truth = np.array([each.target for each in found], np.float64)
        if isinstance(targets, LabelMap):
            return truth.astype(np.int64)
        from learning.noisy_vectors.regression import binned

        return binned(truth, targets.low, targets.high, classes)
