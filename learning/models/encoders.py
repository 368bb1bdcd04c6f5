"""Encoders, classifiers and language models to train, causal ones and those with an encoder and a decoder.

They are standard classes of the transformers library. Parameters that a checkpoint has are taken as they are; those
that it lacks start from a seed, the same bytes on every machine. Dropout is off: the gradient of an example then
depends on that example alone. A saved classifier works in
`pipeline("text-classification")` with no code but the library's.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from learning.models import pooling
from learning.models.batching import Tokens, form_of, inputs_of
from learning.models.checkpoints import Loaded, ModelError, config_of, load, pooling_of
from learning.models.compute import moved, on_device
from learning.models.seeded import start
from learning.text.labelled import LabelMap, ScoreRange

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    Pretrained = tuple[PreTrainedModel, PreTrainedTokenizerBase]

Pooling = Literal["auto", "first", "mean"]


def encoder(name: str, *, cache: Path | None = None) -> "Pretrained":
    """A model without a head, and its tokenizer. Raises `ModelError` (see `learning.models.checkpoints.load`)."""
    found = load(name, "encoder", config_of(name, cache), cache)
    _complete(found, name, allowed=("pooler.",))
    return found.model, found.tokenizer


def classifier(
    name: str, targets: LabelMap | ScoreRange, *, seed: int, pool: Pooling = "auto", cache: Path | None = None
) -> "Pretrained":
    """A sequence classifier over a label map, or a regression over a range of scores, and its tokenizer.

    name: `learning.models.checkpoints.PACKAGED`, a local folder, or a name on the hub. seed: of the head, unless the
    checkpoint has one over the same labels in the same order, which is kept. pool: which vector of a text is
    classified: "mean" of its tokens (BERT only, see `learning.models.pooling`), "first" what the class takes by itself,
    "auto" the mean where the checkpoint says that it was trained for it. A regression says scores from -1 to 1 until
    `in_units`. Raises `ModelError`: see `learning.models.checkpoints.load`; a pooling the kind of model cannot have; a
    regression whose head has no bias to carry the range.
    """
    config = config_of(name, cache)
    before: dict[Any, Any] = dict(config.id2label or {})
    kept = isinstance(targets, LabelMap) and before == dict(enumerate(targets.names))
    if isinstance(targets, LabelMap):
        config.id2label = dict(enumerate(targets.names))
        config.label2id = {label: place for place, label in enumerate(targets.names)}
        config.problem_type = "single_label_classification"
    else:
        config.id2label, config.label2id, config.problem_type = {0: "score"}, {"score": 0}, "regression"
    config.use_cache = False
    added = _wants_mean(name, config.model_type, pool, pooling.has_mean(config), cache)
    if added:
        pooling.make_room(config)
    found = load(name, "classifier", config, cache)
    model = found.model
    outside = frozenset(key for key, _ in model.named_parameters() if not key.startswith(model.base_model_prefix + "."))
    if not outside:
        raise ModelError(f"{name} ({config.model_type}) has no head that could be trained. Name another model.")
    fixed = pooling.fixed(model) if added else frozenset()
    new = (found.missing if kept else found.missing | outside) - fixed
    _complete(Loaded(model, found.tokenizer, new - outside), name, allowed=(f"{model.base_model_prefix}.pooler.",))
    start(model, new, seed)
    if added:
        pooling.install(model)
    if isinstance(targets, ScoreRange) and last_layer(model).bias is None:
        raise ModelError(
            f"The head of {name} ({config.model_type}) has no bias, so its scores could not lie in the declared range. "
            "Name an encoder for a regression."
        )
    return model, found.tokenizer


def language_model(name: str, *, cache: Path | None = None) -> "Pretrained":
    """A causal language model, on the device of `learning.models.compute.running`, and its tokenizer.

    Raises `ModelError`: see `learning.models.checkpoints.load`; a checkpoint without a head for language; a model whose
    tokens see those that follow, as an encoder's do.
    """
    found = load(name, "language model", config_of(name, cache), cache)
    _complete(found, name, allowed=())
    model = found.model
    model.config.use_cache = False
    # Not every model with this head is causal; the first token's output must not depend on the second.
    said = []
    on_device(model)
    for second in (0, 1):
        rows = [Tokens(np.array([0, second], np.int32), 2)]
        with torch.no_grad():
            said.append(model(**moved(inputs_of(model.config, rows), model)).logits[0, 0])
    if not torch.equal(*said):
        raise ModelError(
            f"{name} ({model.config.model_type}) is no causal language model: its tokens see those that follow. "
            "Name one like GPT-2."
        )
    return model, found.tokenizer


def sequence_model(name: str, *, cache: Path | None = None) -> "Pretrained":
    """A model with an encoder and a decoder, such as BART or T5, on the device of `learning.models.compute.running`,
    and its tokenizer.

    Raises `ModelError`: see `learning.models.checkpoints.load`; a checkpoint without a head for language; a decoder
    that does not say with which token it begins.
    """
    found = load(name, "sequence-to-sequence model", config_of(name, cache), cache)
    _complete(found, name, allowed=())
    model = found.model
    model.config.use_cache = False
    on_device(model)
    inputs_of(model.config, [Tokens(np.array([0, 1], np.int32), 1)])  # raises where it has no first token
    return model, found.tokenizer


def speaking_model(name: str, *, cache: Path | None = None) -> "Pretrained":
    """A model that says the answer to an input: as `sequence_model` where the checkpoint has an encoder and a decoder,
    else as `language_model`. Raises as these do.
    """
    paired = getattr(config_of(name, cache), "is_encoder_decoder", False)
    return (sequence_model if paired else language_model)(name, cache=cache)


def longest(model: "PreTrainedModel", wanted: int) -> int:
    """The most tokens in an example: the wanted number, or the model's limit where that is smaller."""
    limit = form_of(model.config).longest
    return wanted if limit is None else min(wanted, limit)


def tokens_of(model: "PreTrainedModel") -> int:
    """The number of tokens that the model has vectors for. A token beyond it makes a pass through the model fail."""
    return len(model.get_input_embeddings().get_parameter("weight"))


def in_units(model: "PreTrainedModel", scores: ScoreRange) -> None:
    """Rescale a regression's output from -1 to 1 to the declared range, in place; once, before it is published."""
    last = last_layer(model)
    with torch.no_grad():
        last.weight.mul_(scores.half)
        last.bias.mul_(scores.half).add_(scores.middle)


def digest(model: torch.nn.Module) -> bytes:
    """SHA-256 of a model's parameters and their names; it shows parties that they start from the same model."""
    found = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        found.update(f"{name} {tuple(parameter.shape)}\n".encode())
        found.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return found.digest()


def _wants_mean(name: str, kind: str, pool: Pooling, has: bool, cache: Path | None) -> bool:
    """Whether the layer is to be added: it is wanted, it fits, and it is not there."""
    if pool == "mean" and kind not in pooling.KINDS:
        raise ModelError(f'{name} ({kind}) cannot pool by the mean: only BERT can. Use pooling "first".')
    if pool == "first" and has:
        raise ModelError(f'{name} was made to pool by the mean. Use pooling "mean", or the model it was made from.')
    if has or pool == "first" or kind not in pooling.KINDS:
        return False
    return pool == "mean" or pooling_of(name, cache) == "mean"


def _complete(found: Loaded, name: str, allowed: tuple[str, ...]) -> None:
    """Raise `ModelError` where a checkpoint lacks parameters other than those that may be new."""
    lacking = sorted(key for key in found.missing if not key.startswith(allowed)) if allowed else sorted(found.missing)
    if lacking:
        raise ModelError(
            f"The checkpoint {name} lacks {len(lacking):,} parameters that this needs, {lacking[0]} among them. Name a "
            "model that was trained for it."
        )


def last_layer(model: "PreTrainedModel") -> torch.nn.Linear:
    """The layer whose output is the classifier's."""
    layers = [
        module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.startswith(f"{model.base_model_prefix}.")
    ]
    return layers[-1]
