"""The public data of a run of the published form, and the layer that is trained on it."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.sequences import SequencesMechanism
from coordinator.errors import RunError
from coordinator.store.store import RunStore
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.public import public_examples
from coordinator.text_models import public as classifier_public
from coordinator.text_models.public import PublicText
from learning.text.labelled import Example, LabelMap

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from learning.bottleneck.fitting import Fitting
    from learning.bottleneck.forms import Form, NoisyModel
    from learning.bottleneck.posterior import Posterior

LAYER: Final = "artefacts/layer.safetensors"
"""The trained layer and its reader in a run's store."""
_BOTTLENECK: Final = "bottleneck."


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicSequences(PublicText):
    """The public data of a plan in the published form. examples: the public texts that the layer is trained on."""

    examples: tuple[Example, ...]


def prepare(plan: NvdpPlan, base: Path, cache: Path) -> PublicSequences:
    """Load the encoder and read the public texts. Raises as `coordinator.systems.nvdp.public.prepare`, and `ModelError`
    for an encoder that takes fewer tokens than the plan says.
    """
    from learning.models.checkpoints import ModelError

    found = classifier_public.prepare(plan, base, cache)
    if found.longest < plan.layer.tokens:
        raise ModelError(
            f"{plan.model.name} reads {found.longest:,} tokens under this plan, and [bottleneck] tokens = "
            f"{plan.layer.tokens:,}. Use fewer, or a larger [text] longest."
        )
    parts = {field.name: getattr(found, field.name) for field in fields(found)}
    return PublicSequences(**parts, examples=public_examples(plan, base, cache))


def encoder_of(public: PublicText) -> "PreTrainedModel":
    """The encoder without a head."""
    return cast("PreTrainedModel", public.model.base_model)


def form_of(plan: NvdpPlan, public: PublicText) -> "Form":
    """Which layer, and how large."""
    from learning.bottleneck.forms import Form

    table, targets = plan.layer, plan.text.targets
    outputs = len(targets.names) if isinstance(targets, LabelMap) else 1
    read = int(public.model.config.hidden_size)
    return Form(table.kind, read, table.width, table.tokens, outputs, heads=table.heads, sigma=table.sigma)


def fitting_of(plan: NvdpPlan) -> "Fitting":
    """How the layer is trained."""
    from learning.bottleneck.fitting import Fitting

    return Fitting(plan.layer.weight, epochs=plan.layer.passes)


def trained(plan: NvdpPlan, public: PublicSequences) -> "NoisyModel":
    """The layer with its reader, trained on the public text in the clear.

    Memory: 2 bytes for each number of each token of the public text.
    """
    from learning.bottleneck.fitting import fitted
    from learning.bottleneck.states import token_states

    states = token_states(
        encoder_of(public), public.tokenizer, [each.first for each in public.examples], tokens=plan.layer.tokens
    )
    truth = targets_of(plan, np.array([each.target for each in public.examples]))
    return fitted(form_of(plan, public), states, truth, fitting_of(plan), plan.run.seed)


def heldout_samplers(plan: NvdpPlan, public: PublicText, model: "NoisyModel") -> "Posterior":
    """The samplers of the held-out texts."""
    from learning.bottleneck.fitting import samplers
    from learning.bottleneck.states import token_states

    texts = [each.first for each in public.heldout]
    return samplers(model, token_states(encoder_of(public), public.tokenizer, texts, tokens=plan.layer.tokens))


def targets_of(plan: NvdpPlan, truth: "NDArray[np.generic]") -> "Tensor":
    """Classes, or standard scores of scores in their range, as a training takes them, [texts]."""
    import torch

    targets = plan.text.targets
    if isinstance(targets, LabelMap):
        return torch.from_numpy(truth.astype(np.int64))
    return torch.from_numpy(np.array([targets.standard(float(each)) for each in truth], np.float32))


def released_targets(plan: NvdpPlan, mechanism: SequencesMechanism, labels: NDArray[np.int64]) -> "Tensor":
    """The same of released labels [rows]: of scores the middles of the parts that they are in."""
    from learning.noisy_vectors.regression import centres

    targets = plan.text.targets
    if isinstance(targets, LabelMap):
        return targets_of(plan, labels)
    return targets_of(plan, centres(targets.low, targets.high, mechanism.classes)[labels])


def keep(store: RunStore, model: "NoisyModel") -> None:
    """Store a trained layer and its reader: a run that goes on sends the same bytes."""
    from safetensors.torch import save

    store.write(LAYER, save({name: tensor.contiguous() for name, tensor in model.state_dict().items()}))


def kept(plan: NvdpPlan, public: PublicText, store: RunStore) -> "NoisyModel":
    """The stored layer with its reader. Raises `RunError` where it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    from learning.bottleneck.forms import NoisyModel

    path, model = store.folder / LAYER, NoisyModel(form_of(plan, public), plan.run.seed)
    try:
        model.load_state_dict(load(path.read_bytes()))
    except (SafetensorError, OSError, RuntimeError) as error:
        raise RunError(f"{path} is damaged: {error} The run cannot go on. Run its plan again.", code="C802") from None
    model.train(False)
    return model


def layer_content(model: "NoisyModel") -> bytes:
    """What parties are sent: the layer alone, as safetensors."""
    from safetensors.torch import save

    found = {name.removeprefix(_BOTTLENECK): each for name, each in model.state_dict().items()
             if name.startswith(_BOTTLENECK)}  # fmt: skip
    content: bytes = save({name: tensor.contiguous() for name, tensor in found.items()})
    return content
