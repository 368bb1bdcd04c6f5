"""Attacks on PATE: on the noisy votes of teachers that hold a canary, and on the student.

A worst case is one of the public texts that teachers vote on, under a label that the public start finds least likely:
the one teacher that holds it is asked about that very text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from aggregation.mechanisms.joint import JointMechanism
from coordinator.auditing.attacks import Scores, Seen
from coordinator.published.audit import Exposed
from coordinator.text_models.auditing.trained import (
    STUDENT,
    ClassifierAttacks,
    encoded,
    labelled_units,
    least_likely,
    loss_scores,
)
from coordinator.text_models.votes import VOTES
from learning.text.labelled import LabelMap
from learning.text.source import Document

Floats = NDArray[np.float64]

_SHARP: Final = 20.0
"""How fast a vote on a text counts less the less it is like a canary."""
_VOTES: Final = (
    "Took the other records' votes, which are known, from the noisy ones, and looked for votes for each canary's label "
    "on the texts that are most like it."
)


@dataclass(frozen=True, slots=True)
class PateAttacks(ClassifierAttacks):
    """A `coordinator.auditing.attacks.Attacks`."""

    @property
    def compares(self) -> bool:
        return True

    @property
    def watches(self) -> bool:
        return False

    @property
    def most(self) -> None:
        """All: teachers that learn from few records vote by chance, and a canary then changes little."""
        return None

    def worst(self, count: int, rows: Sequence[Document], rng: np.random.Generator) -> list[Document]:
        plan, public = self.recipe.plan, self.recipe.read
        shards = plan.federation.shards
        assert shards is not None
        assert shards.label is not None
        places = rng.permutation(len(public.queries))[:count]
        first = [public.queries[place][0] for place in places]
        second = [public.queries[place][1] for place in places] if plan.text.pairs else None
        labels = least_likely(plan, public, first, second)
        made = []
        for number, (text, label) in enumerate(zip(first, labels, strict=True)):
            like = rows[int(rng.integers(len(rows)))]
            fields = {**like.fields, shards.label: label}
            if second is not None and shards.second is not None:
                fields[shards.second] = second[number]
            made.append(replace(like, text=text, fields=fields))
        return made

    def exposures(self, seen: Seen) -> Iterable[Exposed]:
        return ()

    def scores(self, seen: Seen) -> Iterator[Scores]:
        from safetensors.numpy import load

        yield Scores(VOTES, _VOTES, self._votes(seen))
        public = self.recipe.read
        units = labelled_units(self.recipe.plan, public, seen.units(self.recipe.plan))
        point = load(seen.ran.run.content)["point"]
        yield Scores("student", STUDENT, loss_scores(units, seen, public.start, point))

    def _votes(self, seen: Seen) -> Floats:
        """The sum over queries of likeness [canaries, queries] times what votes changed for the canary's label."""
        plan, public, run = self.recipe.plan, self.recipe.read, seen.ran.run
        assert seen.without is not None
        (release,) = run.priced.releases
        mechanism = release.under(JointMechanism)
        assert mechanism.votes is not None
        total = np.concatenate([block for _, _, block in run.store.blocks(VOTES)]).astype(np.float64)
        for each in seen.without.parties.bounded(VOTES):
            total -= each if isinstance(each, np.ndarray) else each.toarray()
        changed = total / mechanism.votes.levels
        changed -= changed.mean(axis=1, keepdims=True)
        shards, targets = plan.federation.shards, plan.text.targets
        assert shards is not None
        assert shards.label is not None
        assert isinstance(targets, LabelMap)
        own = [canary.rows[0] for canary in seen.planted.canaries]
        known = list(targets.values or targets.names)  # a row with another label is no example, and votes for nothing
        said = [row.fields[shards.label].strip() for row in own]
        labels = [known.index(label) if label in known else 0 for label in said]
        first = [row.text for row in own]
        second = [row.fields[shards.second or ""] for row in own] if plan.text.pairs else None
        asked = [each[0] for each in public.queries]
        asked_too = [each[1] for each in public.queries] if plan.text.pairs else None
        likeness = self._vectors(first, second) @ self._vectors(asked, asked_too).T
        weights = np.exp(_SHARP * (likeness - 1))
        return np.asarray((weights * changed[:, labels].T).sum(axis=1), np.float64)

    def _vectors(self, first: list[str], second: list[str] | None) -> Floats:
        """Unit vectors of texts under the public start, [texts, width]."""
        from learning.classification.training import predict
        from learning.models.adapting import unflatten
        from learning.models.features import features, head_alone

        public = self.recipe.read
        unflatten(public.model, torch.from_numpy(public.start))
        rows = encoded(public, first, second)
        found = (features if head_alone(public.model) is not None else predict)(public.model, rows).astype(np.float64)
        found -= found.mean(axis=0)
        return np.asarray(found / np.maximum(np.linalg.norm(found, axis=1, keepdims=True), 1e-9), np.float64)
