"""The mean over a text's tokens, as one more layer of a standard BERT.

`BertForSequenceClassification` classifies the first token's vector. A sentence encoder was trained for the mean of all
of them (Reimers & Gurevych 2019), and its first token's says less: on SST-2 a linear head on MiniLM reaches 0.74 by the
one and 0.80 by the other. So that the standard class can carry the mean, a layer is added whose queries and keys are
zero: its attention is even over the tokens that are no padding. Values and output are multiples of the identity, its
feed-forward half adds nothing:

    layer(x)_i = LayerNorm(S mean_j x_j + x_i),    S = 1,024,

the mean of the tokens to within a few hundredths of its deviation, normalised. The pooler after it is tanh(x / 4),
which hardly bends. Neither is ever trained.
"""

from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

MARK: Final = "conclave_pooling"
"""The key in a configuration that says that a model has the layer, for later training of a published model."""
KINDS: Final = frozenset({"bert"})
"""Kinds of model that can have the layer."""

_SCALE: Final = 1024.0
_POOLER: Final = 0.25


def has_mean(config: "PretrainedConfig") -> bool:
    """Whether a model of this configuration has the layer."""
    return getattr(config, MARK, None) == "mean"


def make_room(config: "PretrainedConfig") -> None:
    """Ask for one layer more than the checkpoint has; `install` gives it its values."""
    config.num_hidden_layers += 1
    setattr(config, MARK, "mean")


def fixed(model: "PreTrainedModel") -> frozenset[str]:
    """The parameters of the layer and of the pooler: those that stay as they are. None without the layer."""
    if not has_mean(model.config):
        return frozenset()
    last = f"bert.encoder.layer.{model.config.num_hidden_layers - 1}."
    return frozenset(name for name, _ in model.named_parameters() if name.startswith((last, "bert.pooler.")))


def install(model: "PreTrainedModel") -> None:
    """Make the last layer the mean of the tokens, and the pooler almost the identity.

    Source: the mean is that of Reimers & Gurevych 2019; the layer that computes it is our own, see the module.
    """
    encoder: Any = model.get_submodule("bert")
    layer = encoder.encoder.layer[-1]
    width = model.config.hidden_size
    identity = torch.eye(width)
    attention = layer.attention
    for projection in (attention.self.query, attention.self.key, layer.intermediate.dense, layer.output.dense):
        _set(projection, torch.zeros_like(projection.weight))
    _set(attention.self.value, identity)
    _set(attention.output.dense, _SCALE * identity)
    _set(encoder.pooler.dense, _POOLER * identity)
    for norm in (attention.output.LayerNorm, layer.output.LayerNorm):
        nn.init.ones_(norm.weight)
        nn.init.zeros_(norm.bias)


def _set(projection: nn.Linear, weight: Tensor) -> None:
    with torch.no_grad():
        projection.weight.copy_(weight)
        projection.bias.zero_()
