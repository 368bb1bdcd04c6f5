"""The training subprocess: does what a job says on this party's shard and leaves the result in the run's folder.

Started by the node as `python -m party.work`. One JSON line on standard input is the job; the pipe then stays open, and
its end means that the node is gone. Progress goes out as JSON lines: whole percents, the end, or why there is none;
never a count, a loss or a word. Only teachers need torch; it is imported for them alone.
"""

import contextlib
import ctypes
import json
import logging
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, TextIO

import numpy as np
from scipy import sparse

from party.job import MEMORY, STORAGE, Job, release_of
from party.storage import is_full

_NICENESS: Final = 10
_PR_SET_PDEATHSIG: Final = 1


def work(job: Job, progress: Callable[[int], None]) -> None:
    """Do the job: the bounded sum is at `job.result` when this returns, and its census at `job.census`.

    Raises `ConclaveError`.
    """
    from aggregation.counts import CountsMechanism
    from aggregation.vectors import VectorMechanism
    from party.counting import cooccurrence, moments, take_census
    from party.mechanisms import answering

    if job.only_census:
        take_census(job)
        return
    mechanism = answering(release_of(job.release))
    if isinstance(mechanism, CountsMechanism):
        total = cooccurrence(job, mechanism, progress)
    elif isinstance(mechanism, VectorMechanism):
        total = moments(job, mechanism, progress)
    else:
        from party.teaching import teach

        total = teach(job, mechanism, progress)
    save_counts(Path(job.result), total)


def attempt(job: Job, progress: Callable[[int], None]) -> tuple[str, str] | None:
    """Do the job; None when its result is on disk, else the kind of failure and a sentence. Only bugs raise."""
    from aggregation.errors import ConclaveError

    try:
        work(job, progress)
    except ConclaveError as error:
        if is_full(error):
            return STORAGE, str(error)
        return type(error).__name__, str(error)
    except Exception as error:  # libraries wrap what the disk or the system says in errors of their own
        if is_exhausted(error):
            return MEMORY, f"it needs more than the {job.memory:,} MiB that [limits] memory_mib allows."
        if not is_full(error):
            raise
        return STORAGE, "the disk is full or read-only."
    return None


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that there is no more memory: Python's own, or what torch makes of its own."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "alloc" in str(error).lower())


def save_counts(path: Path, counts: sparse.csr_array) -> None:
    """Write a matrix whole or not at all, with mode 0600."""
    part = path.with_name(f".{path.name}.part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            np.savez(file, data=counts.data, indices=counts.indices, indptr=counts.indptr, shape=np.array(counts.shape))
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load_counts(path: Path) -> sparse.csr_array:
    """The matrix that `save_counts` wrote."""
    with np.load(path, allow_pickle=False) as parts:
        return sparse.csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=tuple(parts["shape"]))


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


def _hold_at_most(mebibytes: int) -> None:
    """Have the kernel refuse more memory than that, where it can: what is exhausted is then this process alone."""
    if mebibytes and sys.platform == "linux":
        size = mebibytes * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


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
    job = Job.from_json(_first_line())
    _die_with(job.parent)
    _hold_at_most(job.memory)
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
