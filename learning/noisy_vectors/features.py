"""The features of a text or a pair of texts, before the projection: what a public sentence encoder says of them.

A text's are its pooled vector at norm 1. A pair is one unit and has one vector: of its texts' vectors u and v the
products u * v, whose sum is their cosine, and the distances |u - v|. Which of these a projection keeps is chosen on
public pairs.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from learning.models.batching import encode
from learning.models.encoders import classifier, longest, tokens_of
from learning.models.features import features, features_apart
from learning.text.labelled import LabelMap

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from learning.models.encoders import Pretrained

LONGEST: Final = 128
"""Tokens of a text that are looked at, by default."""

_ANY: Final = LabelMap(("no", "yes"))


def sentence_encoder(name: str, *, cache: Path | None = None) -> "Pretrained":
    """A public encoder that pools as it was trained to, and its tokenizer. Raises `ModelError` as
    `learning.models.encoders.classifier`, whose untrained head has no part in the features.
    """
    return classifier(name, _ANY, seed=0, cache=cache)


def text_features(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    texts: Sequence[str],
    *,
    tokens: int = LONGEST,
    private: bool = False,
    known: dict[int, tuple[int, ...]] | None = None,
) -> NDArray[np.float32]:
    """The features of texts, float32 [texts, width], each of norm 1.

    tokens: of a text, at most. private: the bits of a text's features depend on that text alone, and one that cannot be
    tokenised, which fails for a public text, has NaN for features: `Projection.applied` makes the zero vector of it.
    known: kept from one private call to the next (`learning.models.features.features_apart`). Raises `ModelError` for a
    public text that the tokenizer fails on.
    """
    most = longest(model, tokens)
    rows = encode(tokenizer, texts, longest=most, known=tokens_of(model) if private else None).rows
    held = [place for place, row in enumerate(rows) if len(row)]
    some = [rows[place] for place in held]
    found = np.full((len(texts), model.config.hidden_size), np.nan, np.float32)
    if some:
        made = features_apart(model, some, {} if known is None else known) if private else features(model, some)
        found[held] = unit(made)
    return found


def unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Vectors [texts, width] at norm 1; one of norm 0 stays."""
    with np.errstate(all="ignore"):
        norms = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
        return np.asarray(vectors / np.where(norms > 0, norms, 1.0), np.float32)


def pair_features(first: NDArray[np.float32], second: NDArray[np.float32]) -> NDArray[np.float32]:
    """The features of pairs, float32 [pairs, 2 width]: u * v, then |u - v|, of texts' features [pairs, width] each.

    Raises `ConclaveError` for texts that are not as many.
    """
    if first.shape != second.shape:
        raise ConclaveError(f"First texts {first.shape} and second texts {second.shape} are no pairs. Give as many.")
    return np.hstack([first * second, np.abs(first - second)])


def cosine_direction(width: int) -> NDArray[np.float64]:
    """The direction [2 width, 1] of pairs' features along which they have their cosine, for `Projection.fitted`."""
    return np.concatenate([np.full(width, width**-0.5), np.zeros(width)])[:, None]
