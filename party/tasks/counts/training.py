"""What a party's text comes to before anything leaves: units in chunks, and the bounded sum of their pair counts."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import chain
from pathlib import Path
from typing import Final

import numpy as np
from scipy import sparse

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.vectors import VectorMechanism
from learning.embeddings.cooccurrence import Passage, pair_counts, unit_counts
from learning.embeddings.moments import contribute
from learning.text.words import Vocabulary, tokenize
from party.ledger.census import written
from party.provided.words import directions_in, vocabulary_in
from party.shard.units import Unit, units
from party.tasks.job import Job

MOST_PAIRS: Final = 1 << 23
"""Pairs of one unit that are counted: of one that has more, the first words. A pair costs some 32 bytes while it is
counted, and the window is the plan's."""

_CHUNK_UNITS: Final = 512
_CHUNK_PAIRS: Final = 5 << 19


def prepare(
    job: Job, mechanism: CountsMechanism | VectorMechanism
) -> Callable[[Job, Callable[[int], None]], sparse.csr_array]:
    """Look at everything but the party's units. Raises `TrainingError` for a vocabulary or directions that cannot be
    used.
    """
    vocabulary = vocabulary_of(job)
    if isinstance(mechanism, CountsMechanism):
        return lambda job, progress: cooccurrence(job, mechanism)
    directions_in(Path(job.directions), len(vocabulary))
    return lambda job, progress: moments(job, mechanism)


def cooccurrence(job: Job, mechanism: CountsMechanism) -> sparse.csr_array:
    """Count (word, context) pairs of every unit, bound each unit, sum: int64 `[words, words]`.

    The mechanism bounds each unit to L2 norm `levels` grid units, so the sum moves by that much at most when one
    unit is added or removed. Memory: the vocabulary's sum (its non-zeros) and one chunk of units.
    Raises `ConclaveError` when the shard or the vocabulary cannot be used.
    """
    vocabulary = vocabulary_of(job)
    size = len(vocabulary)
    total = sparse.csr_array((1, size * size), dtype=np.int64)
    for _, counted in counted_units(job, vocabulary):
        total = total + mechanism.contribute(counted)
    return total.reshape((size, size)).tocsr()


def moments(job: Job, mechanism: VectorMechanism) -> sparse.csr_array:
    """Every unit's frequencies and moments along the public directions, bounded and summed: int64 `[1, columns]`.

    Moves by at most `levels` grid units when one unit is added or removed. Memory: one chunk of units, and slices of
    their vectors. Raises like `cooccurrence`, and `TrainingError` for directions that cannot be used.
    """
    vocabulary = vocabulary_of(job)
    directions = directions_in(Path(job.directions), len(vocabulary))
    total = np.zeros(directions.columns, dtype=np.int64)
    for _, counted in counted_units(job, vocabulary):
        total += contribute(counted, directions, mechanism)
    return sparse.csr_array(total[None, :])


def counted_units(job: Job, vocabulary: Vocabulary) -> Iterator[tuple[list[str], sparse.csr_array]]:
    """Chunks of units: their ids, and their pair counts [units, words * words].

    Where every pair is a unit, rows are pairs, and the ids are those of the documents they come from, one a row. A unit
    that cannot be read has no pair: a row without a cell, or where pairs are units no row. Of a unit, so many words are
    counted as make `MOST_PAIRS` pairs. No unit at all gives no chunk.
    The job's census is on disk when the last chunk was taken. Raises like `cooccurrence`.
    """
    size = len(vocabulary)
    for chunk in _chunks(_units(job), job.window):
        passages = [_encoded(unit, vocabulary, most=MOST_PAIRS // (2 * job.window)) for unit in chunk]
        if job.pairs:
            counts = [pair_counts(each, size, job.window) for each in passages]
            ids = list(chain.from_iterable([unit.id] * rows.shape[0] for unit, rows in zip(chunk, counts, strict=True)))
            counted = sparse.vstack(counts, format="csr")
        else:
            ids = [unit.id for unit in chunk]
            counted = unit_counts(passages, size, job.window)
        yield ids, sparse.csr_array(counted)


def take_census(job: Job) -> None:
    """Read the shard for its census alone. Raises `ConclaveError` when it cannot be used."""
    for _ in _units(job):
        pass


def vocabulary_of(job: Job) -> Vocabulary:
    """The public vocabulary that was provided. Raises `TrainingError`."""
    return vocabulary_in(Path(job.vocabulary))


def _units(job: Job) -> Iterator[Unit]:
    """The job's units; every document of theirs is in its census when they have all come."""
    with ExitStack() as opened:
        noted = None
        if job.census:
            key = bytes.fromhex(job.census_key)
            noted = opened.enter_context(
                written(Path(job.census), key, job.shard_table, job.record, by_user=job.by_user)
            ).note
        yield from units(
            job.shard_table, job.record, by_user=job.by_user, cache=Path(job.cache), frank=job.frank, noted=noted
        )


def _encoded(unit: Unit, vocabulary: Vocabulary, *, most: int) -> list[Passage]:
    """A unit's passages, `most` words of it."""
    passages = []
    for passage in unit.passages:
        words = tokenize(passage)[:most]
        most -= len(words)
        passages.append(vocabulary.encode(words))
    return passages


def _chunks(found: Iterator[Unit], window: int) -> Iterator[list[Unit]]:
    """Units in groups bounded in number and, as far as their characters tell, in pairs."""
    chunk: list[Unit] = []
    pairs = 0
    for unit in found:
        chunk.append(unit)
        pairs += window * sum(map(len, unit.passages))  # a word and what divides it from the next are two or more
        if len(chunk) >= _CHUNK_UNITS or pairs >= _CHUNK_PAIRS:
            yield chunk
            chunk, pairs = [], 0
    if chunk:
        yield chunk
