"""Attacks on PrivDistil: on the parties' domain classifiers, on the student's noisy gradient sums, and on the student.

Worst cases are those of other classifiers (`coordinator.text_models.auditing.trained`).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from coordinator.auditing.attacks import Floats, Ran, Scores, Seen
from coordinator.auditing.canaries import Canary
from coordinator.published.audit import Exposed
from coordinator.systems.privdistil.distillation import COMPRESSED
from coordinator.systems.privdistil.recipe import DOMAIN_FILE, PrivDistil
from coordinator.systems.privdistil.releases import DOMAIN, SCORES
from coordinator.text_models.auditing.steps import known
from coordinator.text_models.auditing.trained import (
    ENOUGH,
    encoded,
    labelled_units,
    loss_scores,
    mislabelled,
    trained_scores,
)
from learning.text.source import Document

PRIVATE: Final = 0
"""The class of private text in a party's domain classifier."""
_DOMAIN: Final = "Asked how much more private each canary looks to the parties' domain classifiers than to their start."
_STUDENT: Final = "Compared the loss of each canary under the published student with that before it was fine-tuned."


@dataclass(frozen=True, slots=True)
class PrivDistilAttacks:
    """A `coordinator.auditing.attacks.Attacks`."""

    recipe: PrivDistil

    @property
    def compares(self) -> bool:
        return False

    @property
    def watches(self) -> bool:
        return True

    @property
    def most(self) -> int | None:
        return ENOUGH

    def worst(self, count: int, rows: Sequence[Document], rng: np.random.Generator) -> list[Document]:
        return mislabelled(self.recipe.plan, self.recipe.read.text, count, rows, rng)

    def losses(self, canaries: Sequence[Canary], ran: Ran) -> Floats:
        from safetensors.numpy import load

        text = self.recipe.read.distilled(self.recipe.plan, ran.run.store.folder / COMPRESSED)
        units = labelled_units(self.recipe.plan, text, [canary.rows for canary in canaries])
        return units.losses_at(load(ran.run.content)["point"])

    def exposures(self, seen: Seen) -> Iterable[Exposed]:
        return ()

    def scores(self, seen: Seen) -> Iterator[Scores]:
        from safetensors.numpy import load

        run, read = seen.ran.run, self.recipe.read
        if read.domain is not None and self.recipe.plan.domain.release == "weights":
            yield self._domain(seen)
        text = read.distilled(self.recipe.plan, run.store.folder / COMPRESSED)
        units = labelled_units(self.recipe.plan, text, seen.units(self.recipe.plan))
        student = [release for release in run.priced.releases if release.name not in (DOMAIN, SCORES)]
        yield from trained_scores(seen, student, units, text.start)
        yield Scores("student", _STUDENT, loss_scores(units, seen, text.start, load(run.content)["point"]))

    def _domain(self, seen: Seen) -> Scores:
        """The mean over parties of what a canary's loss as private text fell by."""
        from safetensors.numpy import load

        domain = self.recipe.read.domain
        assert domain is not None
        canaries = seen.planted.canaries
        shards = self.recipe.plan.federation.shards
        assert shards is not None
        second = shards.second if self.recipe.plan.text.pairs else None  # a pair is read as two texts
        read = [(number, row) for number, canary in enumerate(canaries) for row in canary.rows]
        texts, owner = [row.text for _, row in read], [number for number, _ in read]
        if second is not None:
            texts, owner = [*texts, *(row.fields[second] for _, row in read)], owner * 2
        labels = torch.full((len(texts),), PRIVATE, dtype=torch.int64)
        units = known(domain.model, encoded(domain, texts, None), labels, owner, len(canaries))
        models = load((seen.ran.run.store.folder / DOMAIN_FILE).read_bytes())
        fell = [loss_scores(units, seen, domain.start, model) for model in models.values()]
        return Scores(DOMAIN, _DOMAIN, np.mean(fell, axis=0))
