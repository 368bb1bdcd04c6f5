"""The vector that a party masks, its bounded sum with its noise in the sum's blocks; and the file of masked blocks."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregation.noise.stream import NoiseStream
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.mask import block_count, block_length, block_start
from party.releasing.answers import noised
from party.releasing.mechanisms import answering
from party.store.runs import Run
from party.tasks.result import Sum
from protos.conclave.v1 import plan_pb2


def masked_file(run: Run, release: str, attempt: int) -> Path:
    """The path of an attempt's masked blocks, as they were sent."""
    return run.folder / f"{release}.{attempt}.masked"


def keep_masked(path: Path, cells: NDArray[np.uint32]) -> None:
    """Append a masked block to the file, mode 0600."""
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(cells.astype("<u4", copy=False).tobytes())


def kept_masked(path: Path, context: Context, index: int) -> NDArray[np.uint32]:
    """A masked block from the file."""
    cells = np.fromfile(path, "<u4", block_length(context, index), offset=4 * block_start(index))
    return cells.astype(np.uint32, copy=False)


def vector(
    run: Run,
    release: plan_pb2.Release,
    clean: Sum,
    party: str,
    key: bytes,
    rows_at_once: int,
) -> Iterator[NDArray[np.int32]]:
    """The bounded sum with this party's noise, flattened, a number of rows at a time; with noise as in `Answers`."""
    mechanism = answering(release)
    for batch, start in enumerate(range(0, clean.shape[0], rows_at_once)):
        if run.terms.privacy.insecure_reproducible_noise:
            stream = NoiseStream.insecure(run.terms.seed, party, release.name, str(batch))
        else:
            stream = NoiseStream.from_key(key).child(batch)
        yield noised(clean[start : start + rows_at_once], mechanism, stream).reshape(-1)


def pieces(vector: Iterator[NDArray[np.int32]], context: Context) -> Iterator[NDArray[np.int32]]:
    """The same cells, in pieces as long as the sum's blocks."""
    rest = np.empty(0, np.int32)
    for index in range(block_count(context)):
        length = block_length(context, index)
        held = [rest]
        while sum(each.size for each in held) < length:
            held.append(next(vector))
        joined = np.concatenate(held) if len(held) > 1 else held[0]
        rest = joined[length:]
        yield joined[:length]
