"""The bounded sum of a party's pair counts, before any noise."""

from pathlib import Path

import numpy as np
from scipy import sparse

from aggregation.mechanisms.counts import CountsMechanism
from party.provided.words import vocabulary_in
from party.shard.counted import counted_units
from party.shard.memory import Memory
from party.shard.reading import Reading
from party.tasks.counts.request import CountsWork
from party.tasks.job import Job, Private


def prepare(job: Job, work: CountsWork, mechanism: CountsMechanism, kept: Memory | None) -> Private:
    """Check everything except the party's units. Raises `TrainingError` for a vocabulary that cannot be used."""
    vocabulary_in(Path(work.vocabulary))
    return lambda job, progress: cooccurrence(job.reading, work, mechanism, kept)


def cooccurrence(
    reading: Reading, work: CountsWork, mechanism: CountsMechanism, memory: Memory | None = None
) -> sparse.csr_array:
    """Count the (word, context) pairs of every unit, bound each unit, and sum them: int64 `[words, words]`.

    The mechanism bounds each unit to L2 norm `levels` grid units, so adding or removing one unit changes the sum by at
    most that much. Memory: the vocabulary's sum (its non-zeros) and one chunk of units. Raises `ConclaveError` when the
    shard or the vocabulary cannot be used.
    """
    vocabulary = vocabulary_in(Path(work.vocabulary))
    size = len(vocabulary)
    total = sparse.csr_array((1, size * size), dtype=np.int64)
    for _, counted in counted_units(reading, vocabulary, work.window, memory):
        total = total + mechanism.contribute(counted)
    return total.reshape((size, size)).tocsr()
