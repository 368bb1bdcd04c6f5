"""The paper's own form beside the certified one, in a comparison: samples that no proof covers.

The layer is trained with its head on the public text and its labels, in the clear, and does not change afterwards.
Every party samples each of its texts once, pads too, and its labels go beside the samples as they are. The head is then
trained on all parties' samples, and measured on samples of the held-out text. What the layer's noise hides was learned,
not proven: no epsilon follows from any figure here.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.comparing.comparable import Outcome
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.public import public_examples
from coordinator.text_models.methods import TextData
from coordinator.text_models.public import PublicText, placed_model
from learning.text.labelled import LabelMap

if TYPE_CHECKING:
    from torch import Tensor

    from learning.bottleneck.forms import Name, NoisyModel
    from learning.bottleneck.posterior import Posterior
    from learning.bottleneck.states import TokenStates

COMPARED: Final = 500
"""Held-out texts whose samplers are compared and attacked, at most."""
DELTA: Final = 1e-5
"""Of the Bayesian figure, as the paper's."""


@dataclass(slots=True)
class KeptStates:
    """Token vectors of a comparison's texts, made once: the parties' for all seeds, public ones of the latest seed.

    Memory: 2 bytes for each number of each token, up to `[bottleneck] tokens` of them: 24 KiB a text at 32 tokens of
    width 384.
    """

    base: Path
    cache: Path
    parties: "list[tuple[TokenStates, Tensor]] | None" = None
    seed: int | None = None
    public: "tuple[tuple[TokenStates, Tensor], TokenStates] | None" = None
    _encoder: Any = None

    def of_parties(self, data: TextData) -> "list[tuple[TokenStates, Tensor]]":
        """The first texts of every party, and their targets."""
        from learning.bottleneck.states import states_of_rows

        if self.parties is None:
            table, (model, _) = _plan(data).layer, self._loaded(data)
            self.parties = [
                (
                    states_of_rows(model, part.rows[: table.texts], tokens=table.tokens),
                    _targets(part.labels[: table.texts]),
                )
                for part in data.text.parts
            ]
        return self.parties

    def of_public(self, data: TextData) -> "tuple[tuple[TokenStates, Tensor], TokenStates]":
        """The public texts that the layer is trained on with their targets, and the held-out ones."""
        from learning.bottleneck.states import token_states

        if self.public is None or self.seed != data.seed:
            plan, (model, tokenizer) = _plan(data), self._loaded(data)
            examples, targets = public_examples(plan, self.base, self.cache), plan.text.targets
            if isinstance(targets, LabelMap):
                truth = np.array([each.target for each in examples], np.int64)
            else:
                truth = np.array([targets.standard(each.target) for each in examples], np.float32)
            first, heldout = (
                token_states(model, tokenizer, [each.first for each in some], tokens=plan.layer.tokens)
                for some in (examples, data.public.heldout)
            )
            self.seed, self.public = data.seed, ((first, _targets(truth)), heldout)
        return self.public

    def _loaded(self, data: TextData) -> Any:
        from learning.models.compute import on_device
        from learning.models.encoders import encoder

        if self._encoder is None:
            self._encoder = encoder(placed_model(data.plan.model.name, self.base), cache=self.cache)
            on_device(self._encoder[0])
        return self._encoder


@dataclass(frozen=True, slots=True)
class Answered:
    """What a trained head says of one sample of every held-out text, float32 [texts, outputs]."""

    said: NDArray[np.float32]


def sampled(data: TextData, epsilon: float, *, name: "Name", kept: KeptStates) -> Outcome:
    """A form of the paper over simulated parties; epsilon has no part in it.

    Raises `learning.bottleneck.pinsker.AboveBound` where the figures contradict each other.
    """
    import torch

    from learning.bottleneck.fitting import Fitting, fitted, refitted, said, samplers
    from learning.bottleneck.forms import Form
    from learning.bottleneck.posterior import in_order

    plan = _plan(data)
    table, targets = plan.layer, plan.text.targets
    (first, truth), heldout = kept.of_public(data)
    outputs = len(targets.names) if isinstance(targets, LabelMap) else 1
    form = Form(name, first.vectors.shape[2], table.width, table.tokens, outputs, heads=table.heads, sigma=table.sigma)
    fitting = Fitting(table.weight, epochs=table.passes)
    model = fitted(form, first, truth, fitting, data.seed)
    parties = kept.of_parties(data)
    samples = [
        model.sample(samplers(model, states), data.stream("published", name, number))
        for number, (states, _) in enumerate(parties)
    ]
    refitted(model, in_order(samples), torch.cat([labels for _, labels in parties]), fitting, data.seed)
    posterior = samplers(model, heldout)
    answers = said(model, posterior, torch.Generator().manual_seed(data.seed))
    return Outcome(Answered(answers.numpy()), None, notes=compared(plan, data.public, data.seed, model, posterior))


def compared(
    plan: NvdpPlan, public: PublicText, seed: int, model: "NoisyModel", posterior: "Posterior"
) -> dict[str, float]:
    """How far held-out texts' samplers are apart, and what an attack finds, of `COMPARED` texts at most.

    posterior: of the held-out texts. A figure that is infinite is left out; `infinite_pairs` says for how many pairs
    the divergence is. Raises as `sampled`.
    """
    import torch

    from learning.audits.noisy_sequences import likeliest_samplers
    from learning.bottleneck.bayesian import bayesian
    from learning.bottleneck.divergences import divergences
    from learning.bottleneck.fitting import said
    from learning.bottleneck.pinsker import check_accuracy, most_accurate

    some = posterior.of(slice(COMPARED))
    found = divergences(some, plan.layer.order)
    source = torch.Generator().manual_seed(seed + 1)
    sample = model.sample(some, source)
    attack = likeliest_samplers(sample, some)
    notes = {
        "compared_texts": float(len(some)),
        "divergence_order": found.order,
        "infinite_pairs": found.infinite / found.pairs,
        "named_texts": attack.first,
        "named_by_chance": attack.chance,
    }
    bayes = bayesian(divergences(some, found.order + 1), DELTA)
    measures = {
        "largest_divergence": found.largest,
        "mean_divergence": found.mean,
        "largest_finite_divergence": found.largest_finite,
        "mean_finite_divergence": found.mean_finite,
        "bayesian_with_constant": bayes.reported,
        "bayesian_without_constant": bayes.largest,
        **{f"divergence_quantile_{share:g}": value for share, value in found.quantiles.items()},
    }
    notes |= {name: value for name, value in measures.items() if value is not None and math.isfinite(value)}
    if isinstance(plan.text.targets, LabelMap) and len(plan.text.labels) == 2:
        truth = np.array([each.target for each in public.heldout[:COMPARED]], np.int64)
        told = said(model, some, source).argmax(dim=1).numpy()
        if 0 < truth.sum() < len(truth):
            balanced = float(np.mean([(told == kind)[truth == kind].mean() for kind in (0, 1)]))
            slack = 1.5 * float(np.sqrt(sum(0.25 / (truth == kind).sum() for kind in (0, 1))))
            check_accuracy(balanced, found.largest, slack)
            notes |= {"balanced_accuracy": balanced, "admitted_accuracy": most_accurate(found.largest)}
    return notes


def _plan(data: TextData) -> NvdpPlan:
    assert isinstance(data.plan, NvdpPlan)
    return data.plan


def _targets(truth: "NDArray[np.int64] | NDArray[np.float32]") -> "Tensor":
    import torch

    return torch.from_numpy(truth)
