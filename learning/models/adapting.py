"""Which parameters of a model are trained: its head, low-rank adapters (LoRA) of its attention or of all linear
layers, or all of them.
"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch import Tensor, nn

from learning.models import checkpoints, pooling
from learning.models.checkpoints import ModelError
from learning.models.seeded import draw
from learning.text.hub import held

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Adapt = Literal["head", "lora", "lora-all", "full"]

ADAPTERS: Final = ("lora", "lora-all")
"""The ways that train low-rank adapters."""

_ADAPTER: Final = "private"
_CLUSTERS: Final = "_torch_supports_distributed"


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters: W x + (alpha / rank) B A x, W [out, in] frozen.

    A [rank, in] is drawn and B [out, rank] zero at the start, so that the model begins as it was.
    Source: LoRA (Hu et al. 2021, section 4.1).
    """

    rank: int = 8
    alpha: int = 16


def adapt(model: "PreTrainedModel", how: Adapt, *, seed: int, lora: Lora | None = None) -> list[str]:
    """Set `requires_grad` on the parameters to train, in place, with adapters where it says so; returns their sorted
    names.

    head: what lies outside the encoder (with the first token's pooler, which belongs to the head). lora: adapters on
    the attention's projections, and the head; a language model's head stays as it is. lora-all: the same with adapters
    on every linear layer of the encoder (QLoRA, Dettmers et al. 2023, section 4). full: everything but a fixed pooling
    layer. Raises `ModelError` where the kind of model has no head of its own, or LoRA is not known for it.
    """
    fixed = pooling.fixed(model)
    for parameter in model.parameters():
        parameter.requires_grad_(how == "full")
    if how in ADAPTERS:
        _inject(model, lora or Lora(), seed, everywhere=how == "lora-all")
    if how != "full":
        speaks = model.get_output_embeddings() is not None  # type: ignore[no-untyped-call]
        head = frozenset() if how in ADAPTERS and speaks else head_of(model)
        if how == "head" and not head:
            raise ModelError(
                f"A {model.config.model_type} language model has no head apart from its embeddings. Adapt it by "
                '"lora" or "full".'
            )
        for name, parameter in model.named_parameters():
            if name in head or "lora_" in name:
                parameter.requires_grad_(True)
    for name, parameter in model.named_parameters():
        if name in fixed:
            parameter.requires_grad_(False)
    return list(trainable(model))


def head_of(model: "PreTrainedModel") -> frozenset[str]:
    """The names of the head's parameters: outside the base model, and the pooler of a first token in it.

    A parameter that the base model has too, as tied embeddings, is no part of the head.
    """
    prefix = _inside(model)
    return frozenset(
        name
        for name, _ in model.named_parameters()
        if not name.startswith(prefix) or (name.startswith(f"{prefix}pooler.") and not pooling.has_mean(model.config))
    )


def merged(model: "PreTrainedModel") -> "PreTrainedModel":
    """A plain copy of a model on the processor, adapters added to its weights: standard class, standard names."""
    plain: PreTrainedModel = nn.Module.to(copy.deepcopy(model), "cpu")
    if not hasattr(plain, "peft_config"):  # without adapters, importing their library would take seconds
        return plain
    from peft.tuners.lora import LoraLayer

    for name, module in list(plain.named_modules()):
        if isinstance(module, LoraLayer):
            layer: Any = module
            layer.merge(safe_merge=True)
            parent, _, last = name.rpartition(".")
            setattr(plain.get_submodule(parent), last, layer.get_base_layer())
    del plain.peft_config
    return plain


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters that are trained, by name in sorted order; a shared one once."""
    return {name: p for name, p in sorted(model.named_parameters()) if p.requires_grad}


def flatten(model: nn.Module) -> Tensor:
    """The trained parameters as one float32 vector [parameters] on the processor, in the order of `trainable`."""
    parts = [p.detach().reshape(-1).float() for p in trainable(model).values()]
    return torch.cat(parts).cpu() if parts else torch.empty(0)


def unflatten(model: nn.Module, vector: Tensor) -> None:
    """Set the trained parameters, in place, from a vector [parameters] as `flatten` gives it.

    Raises `ValueError` for another length: the caller checks vectors from outside.
    """
    parameters = trainable(model)
    size = sum(p.numel() for p in parameters.values())
    if vector.shape != (size,):
        raise ValueError(f"The vector has shape {tuple(vector.shape)}, what is trained has {size:,} numbers.")
    with torch.no_grad():
        parts = torch.split(vector, [parameter.numel() for parameter in parameters.values()])
        for parameter, part in zip(parameters.values(), parts, strict=True):
            parameter.copy_(part.view(parameter.shape))


def _inside(model: "PreTrainedModel") -> str:
    """What the names of the base model's parameters begin with: T5 has its parts in the model itself."""
    alone = getattr(model.config, "is_encoder_decoder", False) and model.base_model is model
    return "" if alone else f"{model.base_model_prefix}."


@contextmanager
def _unspread() -> Iterator[None]:
    """A context in which the adapters' library does not ask whether a weight is spread over a cluster; nobody
    else loads a model meanwhile.

    It asks by a name that is there only where somebody has imported torch's clusters (`learning.models.library`).
    """
    from peft.tuners import tuners_utils

    with checkpoints.alone, held(tuners_utils, _CLUSTERS, False) if hasattr(tuners_utils, _CLUSTERS) else nullcontext():
        yield


def _inject(model: "PreTrainedModel", lora: Lora, seed: int, *, everywhere: bool) -> None:
    from peft import LoraConfig, inject_adapter_in_model
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as KNOWN
    from transformers.pytorch_utils import Conv1D

    kind = model.config.model_type
    if kind not in KNOWN and not everywhere:
        raise ModelError(
            f'Which layers of a {kind} model LoRA adapts is not known. Use adapt = "head", "lora-all" or "full", or '
            "another model."
        )
    fixed = pooling.fixed(model)
    if everywhere:
        inside, left = _inside(model), fixed | head_of(model)
        speaks: Any = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        wanted = [name for name, each in model.named_modules() if name.startswith(inside) and each is not speaks]
    else:
        endings, left = tuple(f".{name}" for name in KNOWN[kind]), fixed
        wanted = [name for name, _ in model.named_modules() if name.endswith(endings)]
    found = [
        name
        for name in wanted
        if isinstance(model.get_submodule(name), nn.Linear | Conv1D) and f"{name}.weight" not in left
    ]
    if not found:
        what = "linear layer" if everywhere else "attention"
        raise ModelError(f'This {kind} model has no {what} that LoRA can adapt. Use adapt = "head" or "full".')
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=0.0,
        bias="none",
        target_modules=found,
        fan_in_fan_out=any(isinstance(model.get_submodule(name), Conv1D) for name in found),
    )
    with _unspread():
        inject_adapter_in_model(config, model, adapter_name=_ADAPTER)
    for name, parameter in model.named_parameters():
        if ".lora_A." in name:
            draw(name, parameter, seed, bound=parameter.shape[1] ** -0.5)
        elif ".lora_B." in name:
            nn.init.zeros_(parameter)
