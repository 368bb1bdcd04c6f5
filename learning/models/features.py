"""The inputs of a classifier's last layer, computed once: where only that layer is trained, the encoder runs only once.

Training the layer on these vectors is training the model's head on the texts, gradient for gradient, without a pass
through the encoder in every step.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from learning.errors import EXHAUSTED, ComputeError
from learning.models.adapting import trainable
from learning.models.agreement import (
    MADE_UP,
    agreeing_within,
    divided,
    drawn,
    made_up_rows,
    rounded,
    smaller,
    step_on,
)
from learning.models.batching import TOKENS, Tokens, batches, form_of, inputs_of
from learning.models.compute import device_of, moved, passing
from learning.models.device_memory import attempted, halved
from learning.models.encoders import last_layer

if TYPE_CHECKING:
    from transformers import PreTrainedModel

AT_ONCE: Final = 512
"""Tokens in one pass through the encoder, padding included, where examples are kept apart."""


def head_alone(model: "PreTrainedModel") -> nn.Linear | None:
    """The last layer of a classifier, if it is all that is trained and sees one vector per text; else None.

    It is the model's own: training it trains the model. `learning.models.adapting.flatten` gives the same of both. None
    for a model that classifies every token first, as GPT-2 does, or whose head has a layer before the last.
    """
    layer = last_layer(model)
    if {id(p) for p in trainable(model).values()} != {id(p) for p in layer.parameters()}:
        return None
    row = Tokens(np.zeros(2, np.int32), 2)
    return layer if _seen(model, layer, [row]).ndim == 2 else None


def features(model: "PreTrainedModel", rows: Sequence[Tokens], tokens: int = TOKENS) -> NDArray[np.float32]:
    """The vectors [examples, width] that are `head_alone`'s inputs, in order, at most `tokens` tokens at a time.

    The other examples of a batch change an example's vector by rounding.
    """
    layer = last_layer(model)
    found = np.empty((len(rows), layer.in_features), np.float32)

    def seen(places: NDArray[np.int64]) -> NDArray[np.float32]:
        return _seen(model, layer, [rows[place] for place in places]).cpu().numpy()

    for places, vectors in halved(batches(rows, tokens), seen):
        found[places] = vectors
    return found


def features_apart(
    model: "PreTrainedModel", rows: Sequence[Tokens], known: dict[int, tuple[int, ...]], tokens: int | None = None
) -> NDArray[np.float32]:
    """As `features`, for units that must not affect each other: a vector's bits depend on its own example alone.

    known: the sizes of batches of each length that agree (`learning.models.agreement`), kept from one call to the next
    of one model; empty for the first. tokens: in one pass, padding included; by default `AT_ONCE`, on a device of its
    own `TOKENS`. What does not fit in the device's memory is found on made-up examples, before any other.
    """
    if tokens is None:
        tokens = AT_ONCE if device_of(model).type == "cpu" else TOKENS
    layer, limit = last_layer(model), form_of(model.config).longest
    words = int(getattr(model.config, "vocab_size", 2))
    found = np.empty((len(rows), layer.in_features), np.float32)
    kind = device_of(model).type
    lengths = np.array([rounded(len(row), limit, kind) for row in rows], np.int64)
    for length in np.unique(lengths).tolist():

        def answer(numbers: Sequence[int], length: int = length) -> list[Tensor]:
            made_up = [made_up_rows(words, length, number)[0] for number in numbers]
            return [_seen(model, layer, made_up, length)]

        if length not in known:
            with drawn(model):
                known[length] = agreeing_within(answer, max(1, tokens // length))
        places, start = np.flatnonzero(lengths == length), 0
        while start < len(places):
            size = divided(len(places) - start, known[length], kind)[0]
            some = places[start : start + size]
            fill = [made_up_rows(words, length, 0)[0]] * (size - len(some))
            batch = [*(rows[place] for place in some), *fill]
            seen = attempted(lambda batch=batch, length=length: _seen(model, layer, batch, length).cpu())  # type: ignore[misc]
            if seen is None:
                known[length] = smaller(known[length], size)
                continue
            found[some] = seen[: len(some)].numpy()
            start += size
    return found


def tokens_held(model: "PreTrainedModel", longest: int) -> int:
    """Tokens in one pass of `features_apart`: by default as many as it says, fewer where a device's memory holds fewer.

    longest: tokens of an example, at most. It is found on made-up examples, so that afterwards no text is a reason for
    memory to be exhausted. Raises `ComputeError` where one of the longest is too large.
    """
    if (kind := device_of(model).type) == "cpu":
        return AT_ONCE
    tokens, layer = TOKENS, last_layer(model)
    words, length = int(getattr(model.config, "vocab_size", 2)), rounded(longest, form_of(model.config).longest, kind)
    for each in dict.fromkeys([length, min(step_on(kind), length)]):

        def passes(some: int, each: int = each) -> bool:
            made_up = [made_up_rows(words, each, place % MADE_UP)[0] for place in range(some)]
            with drawn(model):
                return bool(len(_seen(model, layer, made_up, each)))

        while not attempted(partial(passes, max(1, tokens // each))):
            if tokens < 2 * each:
                raise ComputeError(EXHAUSTED, code="C304")
            tokens //= 2
    return tokens


def _seen(model: "PreTrainedModel", layer: nn.Linear, rows: list[Tokens], length: int = 0) -> Tensor:
    caught: list[Tensor] = []

    def catch(module: nn.Module, arguments: tuple[Any, ...]) -> None:
        caught.append(arguments[0].float())

    handle = layer.register_forward_pre_hook(catch)
    try:
        with torch.inference_mode(), passing(device_of(model)):
            model(**moved(inputs_of(model.config, rows, length), model))
    finally:
        handle.remove()
    (vectors,) = caught
    return vectors
