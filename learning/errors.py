"""What can go wrong with public and private text and with training, as the person reads it who asked for it."""

from typing import Final

from aggregation.errors import ConclaveError

EXHAUSTED: Final = (
    "The device has too little memory for one example of the longest kind. Use a device with more, shorter texts "
    '([text] longest), or device = "cpu".'
)
"""What is said of any example that does not fit alone; it tells nothing of which."""


FULL: Final = ("backend out of memory", "CUDA error: out of memory")
"""Words of torch's errors, besides `OutOfMemoryError`, where a device's memory is exhausted: Apple's, and CUDA's own
where it cannot even begin because other programs have it all.
"""


class DataError(ConclaveError):
    """Text that cannot be read as the plan or the party's file describes it. The message names the file."""

    CODE = "C202"


class Diverged(ConclaveError):
    """A training that went to infinity. Whoever must not tell what a shard holds may not fail on it."""

    CODE = "C208"


class ComputeError(ConclaveError):
    """A device that is not there, a precision that it lacks, or too little of its memory. The message says what is."""

    CODE = "C303"
