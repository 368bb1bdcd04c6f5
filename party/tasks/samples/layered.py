"""Makes a party's rows of noisy sequences: token vectors of a public encoder, sampled by a layer that was provided.

Nothing is promised of what leaves (`aggregation.mechanisms.sequences`). What still holds: every text leaves once, as
many rows leave as were asked, and neither their number nor a failure tells anything of a text.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import numpy as np
import torch
from numpy.typing import NDArray

from aggregation.mechanisms.sequences import SequencesMechanism
from aggregation.noise.stream import NoiseStream
from learning.bottleneck.fitting import samplers
from learning.bottleneck.forms import Form, NoisyModel
from learning.bottleneck.layer import load_parameters
from learning.bottleneck.states import TokenStates, states_of_rows
from learning.models.batching import Tokens
from learning.models.checkpoints import ModelError
from party.errors import TrainingError
from party.tasks.text.model import Loaded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from learning.bottleneck.forms import Name

_AT_ONCE: Final = 512
"""Texts that are sampled at a time."""


def layer_of(mechanism: SequencesMechanism, found: Loaded, path: Path) -> NoisyModel:
    """The layer, with the parameters that were provided. Raises `TrainingError` for other parameters than the release
    needs, or more tokens than the encoder takes.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    model = form_of(mechanism, int(found.model.config.hidden_size))
    try:
        tensors = load(path.read_bytes())
    except SafetensorError:
        raise TrainingError("the layer that was provided is no safetensors. Provide its parameters anew.") from None
    try:
        load_parameters(model.bottleneck, tensors)
        states_of_rows(_encoder(found), [Tokens(np.zeros(1, np.int64), 1)], tokens=mechanism.tokens)
    except ModelError as error:
        raise TrainingError(f"the layer that was provided does not fit the release: {error}") from None
    return model


def form_of(mechanism: SequencesMechanism, read: int) -> NoisyModel:
    """The untrained layer of a release, for an encoder whose vectors have `read` numbers."""
    form = Form(
        cast("Name", mechanism.layer), read, mechanism.width, mechanism.tokens, 1, heads=1, sigma=mechanism.sigma or 1.0
    )
    return NoisyModel(form, 0)


def drawn(
    mechanism: SequencesMechanism,
    found: Loaded,
    layer: NoisyModel,
    rows: Sequence[Tokens],
    labels: NDArray[np.int64],
    stream: NoiseStream,
) -> NDArray[np.int32]:
    """The released rows [rows, columns] of up to so many texts, in random order: sequences, and last a class.

    rows: the texts as tokens. labels: [texts], from 0. The others are samples of a text of no tokens, with classes that
    are drawn evenly. Memory: the rows once, and `_AT_ONCE` texts with their token vectors.
    """
    texts = len(rows)
    order = np.concatenate([places := mechanism.places(texts, stream.child("order")), _others(mechanism.rows, places)])
    made = np.empty((mechanism.rows, mechanism.columns), np.int32)
    made[order, -1] = (stream.child("labels").uint64(mechanism.rows) % np.uint64(mechanism.classes)).astype(np.int32)
    made[order[:texts], -1] = labels
    for start in range(0, mechanism.rows, _AT_ONCE):
        at = order[start : start + _AT_ONCE]
        states = _states(mechanism, found, rows[start : start + len(at)], len(at))
        with torch.no_grad():
            sample = layer.sample(samplers(layer, states), stream.child("noise", start))
        flat = mechanism.flat(sample.vectors.cpu().numpy(), sample.log_weights.cpu().numpy())
        made[at, :-1] = mechanism.contribute(flat)
    return made


def _others(rows: int, places: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.setdiff1d(np.arange(rows), places)


def _states(mechanism: SequencesMechanism, found: Loaded, rows: Sequence[Tokens], count: int) -> TokenStates:
    """Token vectors of so many texts; those beyond `rows` have no token."""
    states = states_of_rows(_encoder(found), rows, tokens=mechanism.tokens)
    none = count - len(states)
    if not none:
        return states
    width = int(found.model.config.hidden_size)
    return TokenStates(
        torch.cat([states.vectors, torch.zeros((none, mechanism.tokens, width), dtype=torch.float16)]),
        torch.cat([states.mask, torch.zeros((none, mechanism.tokens), dtype=torch.bool)]),
        torch.cat([states.pieces, torch.full((none, mechanism.tokens), -1, dtype=torch.int32)]),
    )


def _encoder(found: Loaded) -> "PreTrainedModel":
    return cast("PreTrainedModel", found.model.base_model)


def prepared(
    mechanism: SequencesMechanism, found: Loaded, path: Path
) -> Callable[[Sequence[Tokens], NDArray[np.int64], NoiseStream], NDArray[np.int32]]:
    """`drawn` under this release, encoder and layer. Raises as `layer_of`."""
    layer = layer_of(mechanism, found, path)
    return lambda rows, labels, stream: drawn(mechanism, found, layer, rows, labels, stream)
