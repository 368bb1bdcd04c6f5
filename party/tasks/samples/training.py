"""Makes a party's rows of a data set: vectors of a public encoder, projected, clipped and noised, with their classes;
or, without a guarantee, token vectors sampled by a layer.

Nothing is trained here, and nothing is learned from the party's text: encoder, projection and layer are public.
"""

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.samples import SamplesMechanism
from aggregation.mechanisms.sequences import SequencesMechanism
from aggregation.noise.stream import NoiseStream
from learning.models.batching import Tokens, encode
from learning.models.encoders import last_layer, longest, tokens_of
from learning.models.features import features_apart
from learning.noisy_vectors.features import pair_features, unit
from learning.noisy_vectors.projection import Projection
from learning.noisy_vectors.regression import binned
from learning.noisy_vectors.sides import all_sides, told_apart
from learning.text.labelled import LabelMap, ScoreRange
from party.admission.labels import columns_of, targets_of
from party.errors import TrainingError
from party.shard.labelled import LabelledUnits, labelled_units, tell_if_few
from party.tasks.job import Job, Private
from party.tasks.result import wrapped
from party.tasks.samples import layered
from party.tasks.samples.choosing import chosen
from party.tasks.samples.request import SamplesWork
from party.tasks.text.kept import Keeps, Kept
from party.tasks.text.model import Loaded, labelled_in, placed

log = logging.getLogger("conclave.party")

_AT_ONCE: Final = 4096
"""Texts whose vectors are held at a time."""


def prepare(
    job: Job, work: SamplesWork, mechanism: SamplesMechanism | SequencesMechanism, kept: Keeps | None
) -> Private:
    """Prepare everything but the texts: the encoder, the projection or the layer, and that they fit the release.

    Raises `ConclaveError` as `party.tasks.text.model.placed` and `loaded` do, `DataError` for a file that is no
    projection, and `TrainingError` for one of other vectors, or of other numbers than the release has, and as
    `party.tasks.samples.layered.layer_of`.
    """
    kept = kept or Kept()
    with placed(work.model, job.memory):
        found = kept.loaded(job, work)
    targets = targets_of(labelled_in(work.lesson.labelled), job.reading.shard)
    pairs = columns_of(labelled_in(work.lesson.labelled), job.reading.shard).second is not None
    _check(mechanism, found, targets, pairs=pairs)
    if isinstance(mechanism, SequencesMechanism):
        sampled = layered.prepared(mechanism, found, Path(work.layer))
        return lambda job, progress: _released(job, mechanism, found, 1, sampled)
    projection = Projection.read(Path(work.projection))
    _check_projection(mechanism, found, projection, pairs=pairs)

    def drawn(rows: Sequence[Tokens], labels: NDArray[np.int64], stream: NoiseStream) -> NDArray[np.int32]:
        return noised(mechanism, found, projection, rows, labels, stream, pairs=pairs)

    return lambda job, progress: _released(job, mechanism, found, mechanism.texts, drawn)


def _released(
    job: Job,
    mechanism: SamplesMechanism | SequencesMechanism,
    found: Loaded,
    each: int,
    drawn: Callable[[Sequence[Tokens], NDArray[np.int64], NoiseStream], NDArray[np.int32]],
) -> NDArray[np.int32]:
    """The rows: int32 [rows, columns].

    They are drawn once from the job's key, which belongs to this release alone: a job that begins again after a crash
    makes the same rows. each: texts of a unit at most. Memory: the shard's tokens, and what `drawn` takes. Raises as
    `party.shard.labelled.labelled_units` does for a shard that cannot be used.
    """
    work = job.work
    assert isinstance(work, SamplesWork)
    targets = targets_of(labelled_in(work.lesson.labelled), job.reading.shard)
    read = _read(job, work, found)
    labels = classes_of(read.labels, targets, mechanism.classes)
    places = chosen(read.rows, labels, read.members, key=bytes.fromhex(work.slot_key), each=each, most=mechanism.rows)
    if len(places) < mechanism.rows:
        log.warning(
            "the shard fills %s of the %s rows that leave, and the others are noise. Plan with fewer rows.",
            f"{len(places):,}",
            f"{mechanism.rows:,}",
        )
    stream = NoiseStream.from_key(bytes.fromhex(work.key))
    return drawn([read.rows[place] for place in places.tolist()], labels[places], stream)


def noised(
    mechanism: SamplesMechanism,
    found: Loaded,
    projection: Projection,
    rows: Sequence[Tokens],
    labels: NDArray[np.int64],
    stream: NoiseStream,
    *,
    pairs: bool,
) -> NDArray[np.int32]:
    """The rows [rows, dimensions + 1] of these texts, as of `SamplesMechanism.drawn`.

    Memory: `_AT_ONCE` vectors of the encoder, and four times the rows.
    """
    known: dict[int, tuple[int, ...]] = {}
    bounded = np.zeros((len(rows), mechanism.dimensions), np.int64)
    for start in range(0, len(rows), _AT_ONCE):
        some = rows[start : start + _AT_ONCE]
        vectors = vectors_of(found, some, known, pairs=pairs)
        bounded[start : start + len(some)] = mechanism.contribute(projection.applied(vectors))
    return wrapped(mechanism.drawn(bounded, labels, stream))


def vectors_of(
    found: Loaded, rows: Sequence[Tokens], known: dict[int, tuple[int, ...]], *, pairs: bool
) -> NDArray[np.float32]:
    """The public encoder's vectors of texts, or the features of pairs, [texts, features]; each depends on its own text
    or pair alone, bit for bit.

    A pair of which a tokenizer that was provided does not tell where the second text begins has NaN, of which
    `Projection.applied` makes the zero vector: were it a failure, the party's answer would depend on that one record.
    """
    if not pairs:
        return features_apart(found.model, rows, known, found.tokens)
    made = np.full((len(rows), 2 * last_layer(found.model).in_features), np.nan, np.float32)
    apart = [place for place, row in enumerate(rows) if told_apart(row)]
    if apart:
        sides = all_sides([rows[place] for place in apart])
        made[apart] = pair_features(*(unit(features_apart(found.model, side, known, found.tokens)) for side in sides))
    return made


def classes_of(
    labels: NDArray[np.int64] | NDArray[np.float32], targets: LabelMap | ScoreRange, classes: int
) -> NDArray[np.int64]:
    """Labels as classes [examples]: a label's place in the map, or of a score the part of the range that it is in."""
    if isinstance(targets, LabelMap):
        return labels.astype(np.int64)
    return binned(labels.astype(np.float64), -1.0, 1.0, classes)


def _read(job: Job, work: SamplesWork, found: Loaded) -> LabelledUnits:
    """The party's examples as tokens, with their labels."""
    reading, labelled = job.reading, labelled_in(work.lesson.labelled)
    with reading.counted() as census:
        read = labelled_units(
            reading.shard,
            columns_of(labelled, reading.shard),
            targets_of(labelled, reading.shard),
            found.tokenizer,
            longest=longest(found.model, work.model.longest),
            known=tokens_of(found.model),
            by_user=reading.by_user,
            cache=reading.cache,
            frank=reading.frank,
            census=census,
        )
    if (declared := reading.declared_size) is not None:
        tell_if_few(len(read), needed=declared, why="[policy] declared_size")
    return read


def _check(
    mechanism: SamplesMechanism | SequencesMechanism, found: Loaded, targets: LabelMap | ScoreRange, *, pairs: bool
) -> None:
    """Raises `TrainingError` where encoder, labels and release do not belong together."""
    if not found.head_alone:
        raise TrainingError("the model that was provided gives a text no vector of its own. Provide an encoder.")
    (probe,) = encode(found.tokenizer, ["a"], ["b"] if pairs else None, longest=8).rows
    if pairs and not told_apart(probe):
        raise TrainingError("the tokenizer that was provided does not tell two texts apart. Provide one like BERT's.")
    if isinstance(targets, LabelMap) and mechanism.classes != len(targets.names):
        raise TrainingError(
            f"the plan has {len(targets.names):,} classes, and the release takes {mechanism.classes:,}."
        )


def _check_projection(mechanism: SamplesMechanism, found: Loaded, projection: Projection, *, pairs: bool) -> None:
    """Raises `TrainingError` for a projection of other vectors, or to other numbers than the release has."""
    (probe,) = encode(found.tokenizer, ["a"], ["b"] if pairs else None, longest=8).rows
    features = vectors_of(found, [probe], {}, pairs=pairs).shape[1]
    if projection.features != features or projection.dimensions != mechanism.dimensions:
        raise TrainingError(
            f"the projection that was provided takes {projection.features:,} numbers to {projection.dimensions:,}; the "
            f"encoder gives {features:,}, and the release has {mechanism.dimensions:,}."
        )
