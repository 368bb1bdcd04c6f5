"""The training subprocess: counts what the job says on this party's shard and leaves the result in the run's folder.

Started by the node as `python -m party.work`. One JSON line on standard input is the job; the pipe then stays open, and
its end means that the node is gone. Progress goes out as JSON lines: whole percents, the end, or why there is none;
never a count, a loss or a word. Nothing here needs torch.
"""

import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final, Literal, TextIO

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from party.config import SIZE_FACT, PolicyTable, ShardTable
from party.errors import TrainingError

UNKNOWN: Final = 255
"""The percent of work whose length is not known."""

_NICENESS: Final = 10
_PR_SET_PDEATHSIG: Final = 1
_CHUNK_UNITS: Final = 512
_CHUNK_CHARACTERS: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class Job:
    """What to count. Paths are absolute; `result` is written whole or not at all."""

    parent: int
    shard: dict[str, Any]
    policy: dict[str, Any]
    record: Literal["document", "sentence", "pair"]
    by_user: bool
    vocabulary: str
    window: int
    clip: float
    levels: int
    noise_multiplier: float
    shares: int
    cache: str
    result: str

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))


def cooccurrence(job: Job, progress: Callable[[int], None]) -> None:
    """Count (word, context) pairs of every unit, bound each unit, sum; int64 `[words, words]` at `job.result`.

    The mechanism bounds each unit to L2 norm `levels` grid units, so the sum moves by that much at most when one
    unit is added or removed. Memory: the vocabulary's sum (its non-zeros) and one chunk of units.
    Raises `ConclaveError` when the shard or the vocabulary cannot be used.
    """
    from aggregation.counts import CountsMechanism
    from learning.cooccurrence import pair_counts, unit_counts
    from learning.text import DataError
    from learning.words import Vocabulary, tokenize
    from party.shard import Unit, units

    try:
        vocabulary = Vocabulary.from_bytes(Path(job.vocabulary).read_bytes())
    except DataError as error:
        raise TrainingError(f"the vocabulary that was provided cannot be used: {error}") from None
    size = len(vocabulary.words)
    mechanism = CountsMechanism(job.clip, job.levels, job.noise_multiplier, job.shares)
    shard, policy = ShardTable.model_validate(job.shard), PolicyTable.model_validate(job.policy)
    pairs = job.record == "pair" and not job.by_user
    total = sparse.csr_array((1, size * size), dtype=np.int64)
    done = 0

    def encoded(unit: Unit) -> list[NDArray[np.int32]]:
        return [vocabulary.encode(tokenize(passage)) for passage in unit.passages]

    for chunk in _chunks(units(shard, job.record, by_user=job.by_user, cache=Path(job.cache))):
        passages = [encoded(unit) for unit in chunk]
        counted = (
            pair_counts(list(chain(*passages)), size, job.window) if pairs else unit_counts(passages, size, job.window)
        )
        total = total + mechanism.contribute(counted)
        done += len(chunk)
        progress(_percent(done, policy))
    save_counts(Path(job.result), total.reshape((size, size)).tocsr())


def attempt(job: Job, progress: Callable[[int], None]) -> tuple[str, str] | None:
    """Do the job; None when its result is on disk, else the kind of failure and a sentence. Only bugs raise."""
    from aggregation.errors import ConclaveError

    try:
        cooccurrence(job, progress)
    except ConclaveError as error:
        return type(error).__name__, str(error)
    return None


def save_counts(path: Path, counts: sparse.csr_array) -> None:
    """Write a matrix whole or not at all, with mode 0600."""
    part = path.with_name(f".{path.name}.part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
        np.savez(file, data=counts.data, indices=counts.indices, indptr=counts.indptr, shape=np.array(counts.shape))
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


def load_counts(path: Path) -> sparse.csr_array:
    """The matrix that `save_counts` wrote."""
    with np.load(path, allow_pickle=False) as parts:
        return sparse.csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=tuple(parts["shape"]))


def _chunks(found: Iterator[Any]) -> Iterator[list[Any]]:
    """Units in groups bounded in number and in characters."""
    chunk: list[Any] = []
    characters = 0
    for unit in found:
        chunk.append(unit)
        characters += sum(map(len, unit.passages))
        if len(chunk) >= _CHUNK_UNITS or characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _percent(done: int, policy: PolicyTable) -> int:
    """Whole percent of the declared size, told only as finely as the policy tells the size itself."""
    if policy.declared_size is None or SIZE_FACT not in policy.tell:
        return UNKNOWN
    return min(99, done // 1000 * 1000 * 100 // policy.declared_size)


def _die_with(parent: int) -> None:
    """End with the node, however it ends: by the kernel's word on Linux, by the end of the pipe anywhere."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)

    def watch() -> None:
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _first_line() -> bytes:
    line = bytearray()
    while byte := os.read(0, 1):
        if byte == b"\n":
            break
        line += byte
    return bytes(line)


def _say(out: TextIO, **what: object) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()


def main() -> int:
    """Do the job that standard input names; 0 when its result is on disk."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to the party's log, not among the progress lines
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING)
    job = Job(**json.loads(_first_line()))
    _die_with(job.parent)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)

    try:
        failure = attempt(job, lambda percent: _say(out, percent=percent))
    except Exception:  # noqa: BLE001  the log is this process' standard error; the node names it
        traceback.print_exc()
        return 1
    if failure is not None:
        _say(out, kind=failure[0], failed=failure[1])
        return 1
    _say(out, finished=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
