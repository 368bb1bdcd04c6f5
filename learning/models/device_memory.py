"""Work that halves itself where a device's memory is exhausted, without a word: what it was given may be private.

On the processor nothing is halved: a job's memory there is bounded beforehand, and its end is one of the process.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from learning.errors import EXHAUSTED, FULL, ComputeError

Result = TypeVar("Result")


def attempted(work: Callable[[], Result]) -> Result | None:
    """What work gives, or None where the device's memory is exhausted; what it held there is free again.

    work: gives no None. Raises what it raises otherwise.
    """
    try:
        return work()
    except RuntimeError as error:
        if not _is_exhausted(error):
            raise
    # Outside the handler, for the error's frames hold the tensors that are to be freed.
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    elif torch.backends.mps.is_available():
        torch.mps.empty_cache()
    return None


def halved(
    batches: Iterable[NDArray[np.int64]], work: Callable[[NDArray[np.int64]], Result]
) -> Iterator[tuple[NDArray[np.int64], Result]]:
    """Batches' places in order, in as many parts as the device's memory makes necessary, and what work gives of each.

    Once a batch was divided, all that follow are divided as often. Raises `ComputeError` where one example alone is too
    large.
    """
    parts = 1
    for places in batches:
        start = 0
        while start < len(places):
            some = places[start : start + max(1, -(-len(places) // parts))]
            found = attempted(lambda some=some: work(some))  # type: ignore[misc]
            if found is None:
                if len(some) == 1:
                    raise ComputeError(EXHAUSTED, code="C304")
                parts *= 2
                continue
            yield some, found
            start += len(some)


def _is_exhausted(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or any(each in str(error) for each in FULL)
