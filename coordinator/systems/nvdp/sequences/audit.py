"""Attacks on a run of the published form: on the sequences that all parties released together, and on the student.

As in the certified form nobody is told whose row is whose. The attack asks of each canary how much likelier all rows
are if one of them is its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from aggregation.mechanisms.sequences import SequencesMechanism
from coordinator.auditing.attacks import Ran, Scores, Seen
from coordinator.auditing.canaries import Canary
from coordinator.systems.nvdp.row_attacks import RowAttacks
from coordinator.systems.nvdp.sequences.public import encoder_of, form_of, kept, targets_of
from coordinator.systems.nvdp.sequences.recipe import SEQUENCES, SampledByLayer, sequences_of
from learning.text.labelled import Example, LabelMap

if TYPE_CHECKING:
    from learning.bottleneck.forms import NoisyModel
    from learning.bottleneck.posterior import Posterior

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

_AT_ONCE: Final = 256
"""Rows that are judged at a time."""
_HOW: Final = (
    "Knew all other texts' samplers, and compared how likely the rows are with each canary's own among them and "
    "without."
)
_STUDENT: Final = "Compared the loss of each canary under the published head with that of the head before any row."
_DRAWS: Final = 16
"""Samples of a text over which a loss is averaged."""


@dataclass(frozen=True, slots=True)
class SequenceAttacks(RowAttacks[SampledByLayer]):
    """A `coordinator.auditing.attacks.Attacks`."""

    @property
    def texts(self) -> int:
        return 1

    def scores(self, seen: Seen) -> Iterator[Scores]:
        canaries = len(seen.planted.canaries)
        owner, found = self.examples(seen.units(self.recipe.plan))
        layer = kept(self.recipe.plan, self.recipe.read, seen.ran.run.store)
        posterior = self._samplers(layer, found)
        values = self._in_rows(seen, posterior, found, owner, canaries)
        own = owner < canaries
        yield Scores(SEQUENCES, _HOW, np.asarray(np.bincount(owner[own], values, minlength=canaries), np.float64))
        some = posterior.of(torch.from_numpy(np.flatnonzero(own)))
        truth = [each for each, is_own in zip(found, own, strict=True) if is_own]
        fell = self._losses(layer, some, truth) - self._losses(self._student(seen.ran), some, truth)
        fell = np.asarray(np.bincount(owner[own], fell, minlength=canaries), np.float64)
        yield Scores("student", _STUDENT, fell)

    def losses(self, canaries: Sequence[Canary], ran: Ran) -> Floats:
        owner, found = self.examples([canary.rows for canary in canaries])
        layer = kept(self.recipe.plan, self.recipe.read, ran.run.store)
        values = self._losses(self._student(ran), self._samplers(layer, found), found)
        return np.asarray(np.bincount(owner, values, minlength=len(canaries)), np.float64)

    def _samplers(self, layer: "NoisyModel", found: Sequence[Example]) -> "Posterior":
        from learning.bottleneck.fitting import samplers
        from learning.bottleneck.states import token_states

        public, tokens = self.recipe.read, self.recipe.plan.layer.tokens
        texts = [each.first for each in found]
        return samplers(layer, token_states(encoder_of(public), public.tokenizer, texts, tokens=tokens))

    def _student(self, ran: Ran) -> "NoisyModel":
        """The layer with the head that was published."""
        from safetensors.torch import load

        from learning.bottleneck.forms import NoisyModel

        model = NoisyModel(form_of(self.recipe.plan, self.recipe.read), self.recipe.plan.run.seed)
        model.load_state_dict(load(ran.run.content))
        model.train(False)
        return model

    def _losses(self, model: "NoisyModel", posterior: "Posterior", found: Sequence[Example]) -> Floats:
        """The mean loss of each text under a model over some of its samples, the same of every model, [texts]."""
        from torch.nn import functional

        from learning.bottleneck.fitting import said

        plan, total = self.recipe.plan, np.zeros(len(found))
        targets = targets_of(plan, np.array([each.target for each in found]))
        for seed in range(_DRAWS):
            logits = said(model, posterior, torch.Generator().manual_seed(seed))
            if isinstance(plan.text.targets, LabelMap):
                total += functional.cross_entropy(logits, targets, reduction="none").double().numpy()
            else:
                total += functional.mse_loss(logits[:, 0], targets, reduction="none").double().numpy()
        return total / _DRAWS

    def _in_rows(
        self, seen: Seen, posterior: "Posterior", found: Sequence[Example], owner: Ints, canaries: int
    ) -> Floats:
        """For each canary's text the log of how much likelier the rows are with it than without, [its texts].

        As `coordinator.systems.nvdp.audit.in_rows`: the log of the mean over rows of f_x(z) / p(z), where f_x is the
        density of a row under the sampler of x, 0 for a row of another class, and p the mean of all samplers, weighted
        by how sure it is that each is there.
        """
        from learning.audits.noisy_sequences import unlikeliness
        from learning.bottleneck.posterior import Sample, joined

        mechanism = seen.ran.run.priced.releases[0].under(SequencesMechanism)
        rows = sequences_of(seen.ran.run.store, mechanism)
        vectors = torch.from_numpy(rows.vectors)
        sample = Sample(vectors, torch.from_numpy(rows.log_weights), torch.ones(vectors.shape[:2], dtype=torch.bool))
        nobody = self._samplers_of_nothing(posterior, seen)
        apart = unlikeliness(sample, joined([posterior, nobody]))
        there = np.where(owner < canaries, 0.5, 1.0)
        empty = max(1e-9, len(rows.labels) - float(there.sum()))
        labels, own = self.classes(found, mechanism.classes), np.flatnonzero(owner < canaries)
        total = np.full(len(own), -np.inf)
        with np.errstate(divide="ignore"):
            for start in range(0, len(rows.labels), _AT_ONCE):
                some = slice(start, start + _AT_ONCE)
                logs = -apart(some) / 2
                logs[:, :-1] += np.where(rows.labels[some, None] == labels, 0.0, -np.inf)
                logs[:, -1] -= np.log(mechanism.classes)
                whole = np.logaddexp.reduce(logs + np.log(np.append(there, empty)), axis=1)
                total = np.logaddexp(total, np.logaddexp.reduce(logs[:, own] - whole[:, None], axis=0))
        return total

    def _samplers_of_nothing(self, posterior: "Posterior", seen: Seen) -> "Posterior":
        """The sampler of a text of no tokens, which rows that no text fills have."""
        form = form_of(self.recipe.plan, self.recipe.read)
        layer = kept(self.recipe.plan, self.recipe.read, seen.ran.run.store)
        none = torch.zeros((1, form.tokens, form.read), dtype=torch.float16)
        with torch.no_grad():
            return layer.posterior(none, torch.zeros(none.shape[:2], dtype=torch.bool))
