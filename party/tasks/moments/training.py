"""The bounded sum of a party's moments along public directions, before any noise."""

from pathlib import Path

import numpy as np
from scipy import sparse

from aggregation.mechanisms.vectors import VectorMechanism
from learning.embeddings.moments import contribute
from party.provided.words import directions_in, vocabulary_in
from party.shard.counted import counted_units
from party.shard.memory import Memory
from party.shard.reading import Reading
from party.tasks.job import Job, Private
from party.tasks.moments.request import MomentsWork


def prepare(job: Job, work: MomentsWork, mechanism: VectorMechanism, kept: Memory | None) -> Private:
    """Check everything except the party's units. Raises `TrainingError` for an unusable vocabulary or directions."""
    vocabulary = vocabulary_in(Path(work.vocabulary))
    directions_in(Path(work.directions), len(vocabulary))
    return lambda job, progress: moments(job.reading, work, mechanism, kept)


def moments(
    reading: Reading, work: MomentsWork, mechanism: VectorMechanism, memory: Memory | None = None
) -> sparse.csr_array:
    """Every unit's frequencies and moments along the public directions, bounded and summed: int64 `[1, columns]`.

    Adding or removing one unit changes the sum by at most `levels` grid units (L2). Memory: one chunk of units, and
    slices of their vectors. Raises `ConclaveError` when the shard, the vocabulary or the directions cannot be used.
    """
    vocabulary = vocabulary_in(Path(work.vocabulary))
    directions = directions_in(Path(work.directions), len(vocabulary))
    total = np.zeros(directions.columns, dtype=np.int64)
    for _, counted in counted_units(reading, vocabulary, work.window, memory):
        total += contribute(counted, directions, mechanism)
    return sparse.csr_array(total[None, :])
