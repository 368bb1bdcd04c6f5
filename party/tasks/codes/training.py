"""The bounded histogram of a party's control codes, before any noise. No tokenizer is needed, and no torch."""

import numpy as np
from scipy import sparse

from aggregation.mechanisms.counts import CountsMechanism
from party.admission.codes import codes_of
from party.shard.coded import coded_units
from party.shard.memory import Memory
from party.shard.reading import Reading
from party.tasks.codes.request import CodesWork
from party.tasks.job import Job, Private
from protos.conclave.v1 import plan_pb2


def prepare(job: Job, work: CodesWork, mechanism: CountsMechanism, kept: Memory | None) -> Private:
    """Nothing but the party's rows is needed, and the node has checked the codes."""
    return lambda job, progress: histogram(job.reading, work, mechanism, kept)


def histogram(
    reading: Reading, work: CodesWork, mechanism: CountsMechanism, memory: Memory | None = None
) -> sparse.csr_array:
    """Count the codes of every unit's rows, bound each unit, and sum: int64 [1, cells].

    The mechanism bounds each unit to L2 norm `levels` grid units, so adding or removing one unit changes the sum by at
    most that much; a row without a public code counts nothing. Memory: one chunk of units. Raises `ConclaveError` when
    the shard cannot be used.
    """
    codes = codes_of(plan_pb2.CodedText.FromString(bytes.fromhex(work.coded)), reading.shard)
    total = sparse.csr_array((1, codes.codes.cells), dtype=np.int64)
    of = (reading.whose, work.coded)
    units = coded_units(reading, codes)
    for chunk in units if memory is None else memory.once("codes", of, lambda: list(units)):
        total = total + mechanism.contribute(chunk)
    return total
