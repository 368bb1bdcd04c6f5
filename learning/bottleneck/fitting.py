"""Training a form on texts whose labels are known, and what it then says of other texts.

The loss of a batch is the mean over its texts of

    task + weight * (KL_D + KL_G),

cross-entropy for classes and the squared error of scores, with one sample of every text in every step
(`learning.bottleneck.losses`). The encoder below is frozen, so that texts come as its token vectors. Nothing here is
private: the parameters that come out depend on the texts in the clear, and so does whatever is sampled with them later.

Source: NVDP, section 2.2, equation 5, and section 4.1.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from aggregation.errors import ConclaveError
from learning.bottleneck.forms import Form, NoisyModel
from learning.bottleneck.posterior import Posterior, Sample, joined
from learning.bottleneck.states import TokenStates
from learning.models.optimisers import uncompiled

DECAY: Final = 0.01
"""Weight decay of the form "regularised"; no other has any."""
NOISE_RATE: Final = 30.0
"""How much faster the noise of "vib-learned" is trained: at the others' rate Adam could not take it to the prior's."""
_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Fitting:
    """How a form is trained.

    weight: of both divergences from the prior, 0 or more. epochs: passes over the texts. batch: texts of a step. rate:
    of Adam at the first step; it falls evenly to 0. Raises `ConclaveError` for numbers that make no sense.
    """

    weight: float
    epochs: int = 6
    batch: int = 32
    rate: float = 1e-3

    def __post_init__(self) -> None:
        if not (self.weight >= 0 and self.epochs >= 1 and self.batch >= 1 and self.rate > 0):
            raise ConclaveError(
                f"A training of weight {self.weight:g}, {self.epochs} passes, {self.batch} texts a step and rate "
                f"{self.rate:g} makes no sense. Give a weight of 0 or more, and the others above 0."
            )


def fitted(form: Form, states: TokenStates, targets: Tensor, fitting: Fitting, seed: int) -> NoisyModel:
    """A form trained on texts.

    targets: classes int64 [texts], or scores float32 [texts] of a form with one output. seed: of the initial
    parameters, the order of texts and the samples. Raises `ConclaveError` for targets that do not fit.
    """
    if targets.shape != (len(states),) or targets.is_floating_point() != (form.outputs == 1):
        raise ConclaveError(
            f"Targets {tuple(targets.shape)} of {targets.dtype} do not fit {len(states):,} texts and {form.outputs} "
            "outputs. Give whole numbers for classes, and scores for one output."
        )
    model = NoisyModel(form, seed)
    source = torch.Generator().manual_seed(seed)

    def loss(places: Tensor) -> Tensor:
        some = states.of(places)
        posterior = model.posterior(some.vectors, some.mask)
        logits = model.logits(model.sample(posterior, source))
        kl_d, kl_g = model.kl(posterior)
        return task_loss(logits, targets[places]) + fitting.weight * (kl_d + kl_g).mean()

    _descend(model, form, len(states), fitting, seed, source, loss)
    return model


def refitted(model: NoisyModel, sample: Sample, targets: Tensor, fitting: Fitting, seed: int) -> None:
    """Train a form's reader further, in place, on samples that others released, one a text: post-processing of these.

    targets: as of `fitted`. The bottleneck stays as it is, and no divergence is added.
    """
    source = torch.Generator().manual_seed(seed)

    def loss(places: Tensor) -> Tensor:
        some = Sample(sample.vectors[places], sample.log_weights[places], sample.mask[places])
        return task_loss(model.logits(some), targets[places])

    _descend(model.reader, model.form, len(sample), fitting, seed, source, loss)
    model.train(False)


def _descend(
    trained: nn.Module,
    form: Form,
    texts: int,
    fitting: Fitting,
    seed: int,
    source: torch.Generator,
    loss: Callable[[Tensor], Tensor],
) -> None:
    """Minimise the loss of batches of texts, by Adam, over a module's parameters."""
    decay = DECAY if form.name == "regularised" else 0.0
    noise = [each for name, each in trained.named_parameters() if name.endswith("deviation")]
    others = [each for name, each in trained.named_parameters() if not name.endswith("deviation")]
    with uncompiled():
        optimizer = torch.optim.AdamW([{"params": others}, {"params": noise}], lr=fitting.rate, weight_decay=decay)
    steps, step = fitting.epochs * -(-texts // fitting.batch), 0
    trained.train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # of dropout
        for _ in range(fitting.epochs):
            for places in torch.split(torch.randperm(texts, generator=source), fitting.batch):
                for group, faster in zip(optimizer.param_groups, (1.0, NOISE_RATE), strict=True):
                    group["lr"] = faster * fitting.rate * (1 - step / steps)
                optimizer.zero_grad()
                torch.autograd.backward(loss(places))
                torch.nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
                with uncompiled():
                    optimizer.step()
                step += 1
    trained.train(False)


def task_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over texts of a task's loss: cross-entropy, or a squared error where targets are scores."""
    if targets.is_floating_point():
        return functional.mse_loss(logits.squeeze(1), targets)
    return functional.cross_entropy(logits, targets)


def samplers(model: NoisyModel, states: TokenStates) -> Posterior:
    """The samplers of texts, without gradients."""
    with torch.no_grad():
        return joined(
            [
                model.posterior(states.vectors[at : at + _AT_ONCE], states.mask[at : at + _AT_ONCE])
                for at in range(0, len(states), _AT_ONCE)
            ]
        )


def said(model: NoisyModel, posterior: Posterior, source: torch.Generator) -> Tensor:
    """Logits [texts, outputs] of one new sample of every text."""
    with torch.no_grad():
        found = []
        for at in range(0, len(posterior), _AT_ONCE):
            found.append(model.logits(model.sample(posterior.of(slice(at, at + _AT_ONCE)), source)))
        return torch.cat(found)
