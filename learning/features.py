"""What a classifier's last layer sees, worked out once: where that layer alone is trained, the rest is done beforehand.

Training the layer on these vectors is training the model's head on the texts, gradient for gradient, without a pass
through the encoder in every step.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learning.adapting import trainable
from learning.batching import Tokens, batches, inputs_of
from learning.classifying import TOKENS
from learning.encoders import last_layer

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def head_alone(model: "PreTrainedModel") -> nn.Linear | None:
    """The last layer of a classifier, if it is all that is trained and sees one vector per text; else None.

    It is the model's own: training it trains the model. `learning.adapting.flatten` gives the same of both. None for a
    model that classifies every token first, as GPT-2 does, or whose head has a layer before the last.
    """
    layer = last_layer(model)
    if {id(p) for p in trainable(model).values()} != {id(p) for p in layer.parameters()}:
        return None
    row = Tokens(np.zeros(2, np.int32), 2)
    return layer if _seen(model, layer, [row]).ndim == 2 else None


def features(model: "PreTrainedModel", rows: Sequence[Tokens], tokens: int = TOKENS) -> NDArray[np.float32]:
    """The vectors [examples, width] that `head_alone` sees of examples, in order, at most `tokens` tokens at a time."""
    layer = last_layer(model)
    found = np.empty((len(rows), layer.in_features), np.float32)
    for places in batches(rows, tokens):
        found[places] = _seen(model, layer, [rows[place] for place in places]).numpy()
    return found


def _seen(model: "PreTrainedModel", layer: nn.Linear, rows: list[Tokens]) -> Tensor:
    caught: list[Tensor] = []

    def catch(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        caught.append(arguments[0].float())

    handle = layer.register_forward_pre_hook(catch)
    try:
        with torch.inference_mode():
            model(**inputs_of(model.config, rows))
    finally:
        handle.remove()
    (vectors,) = caught
    return vectors
