"""The public data of an `nvdp` run: the encoder, the projection that public text gives, and what that text says."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.plan.public_text import source_of
from coordinator.systems.nvdp.pairs import check_encoder, fitted_to_pairs, pair_vectors, unlabelled
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.text_models import public as classifier_public
from coordinator.text_models.public import PublicText
from learning.errors import DataError
from learning.text import labelled
from learning.text.labelled import Example, LabelMap, TextColumns
from learning.text.source import Skipped, read

if TYPE_CHECKING:
    from learning.noisy_vectors.projection import Projection
    from learning.noisy_vectors.public import Public

LEAST_TEXTS: Final = 100
"""The fewest public texts that a projection is fitted on."""
_DRAW: Final = 61


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicVectors(PublicText):
    """The public data of a plan.

    projection: from the encoder's vectors to released ones. statistics: of public vectors under it, with their classes
    or scores where they have some. texts: how many there were. vectors: of the held-out texts before the projection,
    float32 [examples, features]. cosine: of pairs, what public ones say by their cosine alone.
    """

    projection: "Projection"
    statistics: "Public"
    texts: int
    vectors: NDArray[np.float32]
    cosine: "Public | None" = None


def prepare(plan: NvdpPlan, base: Path, cache: Path) -> PublicVectors:
    """Load the encoder, read the public texts and fit the projection on them.

    Raises as `coordinator.text_models.public.prepare`; `ModelError` for an encoder that reads no pairs; `DataError`
    for public text that is too little or has other labels than the plan; `aggregation.errors.ConclaveError` for text
    that makes no projection.
    """
    found = classifier_public.prepare(plan, base, cache)
    if plan.text.pairs:
        check_encoder(found, plan.model.name)
    examples = public_examples(plan, base, cache)
    vectors = features_of(plan, found, examples)
    if plan.text.pairs:
        projection, statistics, cosine = fitted_to_pairs(plan, vectors, examples)
    else:
        (projection, statistics), cosine = _fitted(plan, vectors, examples), None
    held = features_of(plan, found, found.heldout) if found.heldout else vectors[:0]
    parts = {field.name: getattr(found, field.name) for field in fields(found)}
    return PublicVectors(
        **parts, projection=projection, statistics=statistics, texts=len(examples), vectors=held, cosine=cosine
    )


def features_of(plan: NvdpPlan, public: PublicText, examples: "tuple[Example, ...]") -> NDArray[np.float32]:
    """What a party has of a text or pair before the projection, float32 [examples, features]."""
    from learning.models.batching import encode
    from learning.models.features import features

    if plan.text.pairs:
        return pair_vectors(public, examples)
    return features(
        public.model, encode(public.tokenizer, [each.first for each in examples], longest=public.longest).rows
    )


def _fitted(plan: NvdpPlan, vectors: NDArray[np.float32], examples: tuple[Example, ...]) -> "tuple[Projection, Public]":
    """The projection, and what the public vectors under it say."""
    from learning.noisy_vectors.projection import EMPHASIS, Projection, class_directions
    from learning.noisy_vectors.public import Public

    dimensions, targets = plan.samples.dimensions, plan.text.targets
    if plan.public.label is None:
        projection = Projection.fitted(vectors, dimensions)
        return projection, Public.of(projection.applied(vectors))
    truth = np.array([each.target for each in examples])
    if not isinstance(targets, LabelMap):
        scores = truth.astype(np.float64)
        parts = np.digitize(scores, np.quantile(scores, [1 / 3, 2 / 3])).astype(np.int64)
        directions = class_directions(vectors, parts)[:, :1]
        projection = Projection.fitted(vectors, dimensions, directions=directions, emphasis=EMPHASIS)
        return projection, Public.of(projection.applied(vectors), scores=scores)
    labels = truth.astype(np.int64)
    directions = class_directions(vectors, labels)[:, :dimensions]
    projection = Projection.fitted(vectors, dimensions, directions=directions, emphasis=EMPHASIS)
    return projection, Public.of(projection.applied(vectors), labels, classes=len(targets.names))


def public_examples(plan: NvdpPlan, base: Path, cache: Path) -> tuple[Example, ...]:
    """The public texts, with their labels where `[public]` names a column of them. Raises `DataError` as `prepare`."""
    table, text = plan.public, plan.text
    source, left_out = source_of(table, base), Skipped()
    if table.label is None:
        found = _some(unlabelled(source, table.second, cache, left_out), plan)
    else:
        columns = TextColumns(text.kind, table.text, table.second, table.label)
        documents = read(labelled.source_of(source, columns), cache, left_out)
        try:
            found = _some(labelled.examples(documents, columns, text.targets, left_out), plan)
        except labelled.LabelError as error:
            raise DataError(f"[public] {table.source}: {error}") from None
    if len(found) < max(LEAST_TEXTS, 2 * plan.samples.dimensions):
        raise DataError(
            f"[public] {table.source} has {len(found):,} usable texts; a projection to {plan.samples.dimensions:,} "
            f"numbers needs {max(LEAST_TEXTS, 2 * plan.samples.dimensions):,}. Give more public text.",
            code="C204",
        )
    return found


def _some(examples: Iterable[Example], plan: NvdpPlan) -> tuple[Example, ...]:
    """As many examples as the plan says, drawn evenly from all by the plan's seed: sources are often sorted."""
    rng, kept = np.random.default_rng([plan.run.seed, _DRAW]), list[Example]()
    for number, example in enumerate(examples):
        place = number if number < plan.public.limit else int(rng.integers(number + 1))
        if place < plan.public.limit:
            kept[place : place + 1] = [example]
    return tuple(kept)
