"""Public pairs of an `nvdp` run: their vectors, the projection fitted on them, and what their cosine alone says.

A pair's features are the products u * v and the distances |u - v| of its two texts' vectors, so that they are the same
in either order. The projection's first direction is that along which they have the cosine of u and v. Where public
pairs have no labels, it is all that is known of the classes; and where they have, directions that tell these apart
carry over to another kind of text less well than the cosine does.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.text_models.public import PublicText
from learning.text.labelled import Example, LabelMap
from learning.text.source import Skipped, Source, read

if TYPE_CHECKING:
    from learning.noisy_vectors.projection import Projection
    from learning.noisy_vectors.public import Public

EMPHASIS: Final = 0.5
"""The part of public vectors' mean square that the cosine gets: otherwise it is one small number among others."""
HELD: Final = 0.99
"""The part of public pairs that the projection does not clip. Private pairs are often alike, or strange, where public
ones are neither, and a cosine that is clipped no longer orders them.
"""
LIKENESS: Final = 0.7
"""The correlation with the cosine that is expected of scores where no public pair has one."""

Floats = NDArray[np.float64]


class FittedToPairs(NamedTuple):
    """projection: of pairs' features. statistics: of public pairs under it. cosine: of their cosines alone, [1]."""

    projection: "Projection"
    statistics: "Public"
    cosine: "Public"


def check_encoder(public: PublicText, name: str) -> None:
    """Raise `ModelError` for an encoder whose tokenizer does not tell two texts apart, or whose pooled vector is not
    what its last layer sees: the published folder could not give it with the standard library alone.
    """
    import torch

    from learning.models.batching import encode, inputs_of
    from learning.models.checkpoints import ModelError
    from learning.models.compute import moved
    from learning.models.features import features
    from learning.noisy_vectors.sides import all_sides

    model = public.model
    first, _ = all_sides(encode(public.tokenizer, ["a"], ["b"], longest=8).rows)
    with torch.inference_mode():
        said = model.base_model(**moved(inputs_of(model.config, first), model))
    pooled = getattr(said, "pooler_output", None)
    if pooled is None or not np.allclose(pooled.float().cpu().numpy(), features(model, first), atol=1e-5):
        raise ModelError(f"{name} ({model.config.model_type}) pools no vector of a text. Name one like BERT for pairs.")


def pair_vectors(public: PublicText, examples: tuple[Example, ...]) -> NDArray[np.float32]:
    """The features of public pairs, float32 [pairs, 2 width], as a party has them. Raises `ModelError`."""
    from learning.models.batching import encode
    from learning.models.features import features
    from learning.noisy_vectors.features import pair_features, unit
    from learning.noisy_vectors.sides import all_sides

    first, second = [each.first for each in examples], [each.second or "" for each in examples]
    sides = all_sides(encode(public.tokenizer, first, second, longest=public.longest).rows)
    return pair_features(*(unit(features(public.model, side)) for side in sides))


def unlabelled(source: Source, second: str | None, cache: Path, left_out: Skipped) -> Iterator[Example]:
    """Public texts, or pairs where `second` names a column; those without a second text are left out."""
    if second is not None:
        source = replace(source, columns=(*source.columns, second))
    for each in read(source, cache, left_out):
        other = None if second is None else each.fields.get(second, "")
        if other is None or other.strip():
            yield Example(each.text, other, 0.0)


def cosines(vectors: NDArray[np.float32]) -> Floats:
    """The cosine of each pair's two texts, float64 [pairs, 1], of pairs' features [pairs, 2 width]."""
    return np.asarray(vectors[:, : vectors.shape[1] // 2].astype(np.float64).sum(axis=1, keepdims=True))


def fitted_to_pairs(plan: NvdpPlan, vectors: NDArray[np.float32], examples: tuple[Example, ...]) -> "FittedToPairs":
    """The projection of public pairs' features [pairs, 2 width], and what they say under it and by their cosine alone.

    The first direction is the cosine's, and gets half of the norm; those that tell more than two classes apart follow.
    Raises `aggregation.errors.ConclaveError` for pairs that make no projection.
    """
    from learning.noisy_vectors.features import cosine_direction
    from learning.noisy_vectors.projection import Projection, class_directions

    dimensions, targets = plan.samples.dimensions, plan.text.targets
    truth = None if plan.public.label is None else np.array([each.target for each in examples])
    directions = cosine_direction(vectors.shape[1] // 2)
    if truth is not None and isinstance(targets, LabelMap) and len(targets.names) > 2:
        directions = np.hstack([directions, class_directions(vectors, truth.astype(np.int64))])[:, :dimensions]
    projection = Projection.fitted(vectors, dimensions, directions=directions, emphasis=EMPHASIS, quantile=HELD)
    under, alone = (_said(plan, each, truth) for each in (projection.applied(vectors), cosines(vectors)))
    return FittedToPairs(projection, under, alone)


def _said(plan: NvdpPlan, vectors: Floats, truth: NDArray[np.generic] | None) -> "Public":
    """What public vectors [pairs, d] say, the first number of which rises with the cosine. Without labels, pairs with
    the higher cosine are taken to be alike, or to have the higher score.
    """
    from learning.noisy_vectors.public import Public

    targets = plan.text.targets
    if truth is not None and isinstance(targets, LabelMap):
        return Public.of(vectors, truth.astype(np.int64), classes=len(targets.names))
    if truth is not None:
        return Public.of(vectors, scores=truth.astype(np.float64))
    found, weight = Public.of(vectors), np.eye(vectors.shape[1])[0]
    if isinstance(targets, LabelMap):
        if plan.public.alike is None:
            return found
        return found.leaning(weight if plan.public.alike == targets.names[1] else -weight)
    toward = found.covariance @ weight
    spread = LIKENESS * (targets.high - targets.low) / math.sqrt(12)  # of scores that are spread evenly
    return replace(found, with_scores=toward / math.sqrt(max(float(weight @ toward), 1e-12)) * spread)
