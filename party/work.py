"""The training subprocess: does what a job says on this party's shard and leaves the result in the run's folder.

Started by the node as `python -m party.work`. One JSON line on standard input is the job; the pipe then stays open, and
its end means that the node is gone. Progress goes out as JSON lines: whole percents, the end, or why there is none;
never a count, a loss or a word. After a step the process stays, with what it read, and takes the next line. Counts need
no torch; it is imported for what does.
"""

import contextlib
import ctypes
import json
import logging
import os
import queue
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from party.job import MEMORY, STORAGE, Failure, Job, PartFailed, release_of
from party.storage import is_full

if TYPE_CHECKING:
    from party.stepping import Kept

Sum: TypeAlias = sparse.csr_array | NDArray[np.int32]
"""A bounded, noise-free sum [rows, columns]: integers where few cells are not 0, else all of them modulo 2**32."""

_NICENESS: Final = 10
_PR_SET_PDEATHSIG: Final = 1


def work(job: Job, progress: Callable[[int], None], kept: "Kept | None" = None) -> None:
    """Do the job: the bounded sum is at `job.result` when this returns, and its census at `job.census`.

    kept: what this process read for an earlier step; a step leaves there what it read. Raises `ConclaveError`.
    """
    if job.only_census:
        take_census(job)
    elif job.part is not None:
        _answered(job, range(*job.part), progress)
    elif job.text is not None:
        save_counts(Path(job.result), _learned(job, progress, kept))
    else:
        save_counts(Path(job.result), _counted(job, progress))


def take_census(job: Job) -> None:
    """Read the shard for its census alone. Raises `ConclaveError` when it cannot be used."""
    if job.text is None:
        from party.counting import take_census
    else:
        from party.text_reading import take_census

    take_census(job)


def _answered(job: Job, numbers: range, progress: Callable[[int], None]) -> None:
    """Some teachers' answers, for the process that puts all of them together."""
    from party.spreading import save_answers

    if job.text is None:
        from party.teaching import some_answers
    else:
        from party.ensembles import some_answers

    save_answers(Path(job.result), some_answers(job, numbers, progress))


def _counted(job: Job, progress: Callable[[int], None]) -> Sum:
    from aggregation.counts import CountsMechanism
    from aggregation.vectors import VectorMechanism
    from party.counting import cooccurrence, moments
    from party.mechanisms import answering

    mechanism = answering(release_of(job.release))
    if isinstance(mechanism, CountsMechanism):
        return cooccurrence(job, mechanism)
    if isinstance(mechanism, VectorMechanism):
        return moments(job, mechanism)
    from party.teaching import teach

    return teach(job, mechanism, progress)


def _learned(job: Job, progress: Callable[[int], None], kept: "Kept | None") -> Sum:
    from learning.checkpoints import ModelError
    from party.text_models import put_together

    assert job.text is not None
    put_together(job.text)
    try:
        return _learned_by_kind(job, progress, kept)
    except ModelError as error:
        raise ModelError(_unplaced(str(error), job.text.folder)) from error


def _learned_by_kind(job: Job, progress: Callable[[int], None], kept: "Kept | None") -> Sum:
    from aggregation.free import FreeAnswers
    from aggregation.gradients import GradientMechanism
    from party.mechanisms import mechanism_of

    assert job.text is not None
    mechanism = mechanism_of(release_of(job.release))
    if job.text.kind == "ensemble":
        from aggregation.joint import JointMechanism
        from party.ensembles import vote

        assert isinstance(mechanism, JointMechanism)
        return vote(job, mechanism, progress)
    if isinstance(mechanism, FreeAnswers):
        from party.text_scoring import score

        return score(job, mechanism, progress)
    assert isinstance(mechanism, GradientMechanism)
    if job.text.kind == "step":
        from party.stepping import Kept, step

        return step(job, mechanism, kept or Kept())
    from party.text_training import train

    return train(job, mechanism, progress)


def _unplaced(sentence: str, folder: str) -> str:
    """A sentence about the model without the name of this party's folder."""
    provided = "that was provided"
    for found, said in (
        (f"model folder {folder}", f"model {provided}"),
        (f"checkpoint {folder}", f"checkpoint {provided}"),
        (folder, f"the model {provided}"),
    ):
        sentence = sentence.replace(found, said)
    return sentence[:1].upper() + sentence[1:]


def attempt(job: Job, progress: Callable[[int], None], kept: "Kept | None" = None) -> Failure | None:
    """Do the job; None when its result is on disk, else why there is none. Only bugs raise. kept: as of `work`."""
    from aggregation.errors import ConclaveError

    try:
        work(job, progress, kept)
    except PartFailed as part:
        return part.failure
    except ConclaveError as error:
        if is_full(error):
            return Failure(STORAGE, str(error))
        return Failure(type(error).__name__, str(error), getattr(error, "public", None))
    except Exception as error:  # libraries wrap what the disk or the system says in errors of their own
        if is_exhausted(error):
            return Failure(MEMORY, f"it needs more than the {job.memory:,} MiB that [limits] memory_mib allows.")
        if not is_full(error):
            raise
        return Failure(STORAGE, "the disk is full or read-only.")
    return None


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that there is no more memory: Python's own, or what torch makes of its own."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "alloc" in str(error).lower())


def save_counts(path: Path, counts: Sum) -> None:
    """Write a matrix whole or not at all, with mode 0600."""
    part = path.with_name(f".{path.name}.part")
    with contextlib.suppress(FileNotFoundError):
        part.unlink()
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_WRONLY | os.O_EXCL, 0o600), "wb") as file:
            if isinstance(counts, np.ndarray):
                np.savez(file, dense=counts)
            else:
                shape = np.array(counts.shape)
                np.savez(file, data=counts.data, indices=counts.indices, indptr=counts.indptr, shape=shape)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load_counts(path: Path) -> Sum:
    """The matrix that `save_counts` wrote."""
    with np.load(path, allow_pickle=False) as parts:
        if "dense" in parts:
            return np.asarray(parts["dense"])
        return sparse.csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=tuple(parts["shape"]))


def wrapped(cells: NDArray[np.int64]) -> NDArray[np.int32]:
    """The same integers modulo 2**32."""
    return (cells & 0xFFFFFFFF).astype(np.uint32).view(np.int32)


def _die_with(parent: int) -> "queue.SimpleQueue[bytes]":
    """End with the node, however it ends: by the kernel's word on Linux, by the end of the pipe anywhere.

    Returns where the lines arrive that come until then.
    """
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)

    def watch() -> None:
        rest = b""
        while some := os.read(0, 4096):
            *whole, rest = (rest + some).split(b"\n")
            for line in whole:
                lines.put(line)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    return lines


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
    """Do the jobs that standard input names, until one ends the process; 0 when its result is on disk."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to the party's log, not among the progress lines
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING)
    job = Job.from_json(_first_line())
    lines = _die_with(job.parent)
    _hold_at_most(job.memory)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)

    kept = None
    if job.stays:
        from party.stepping import Kept

        kept = Kept()
    while True:
        try:
            failure = attempt(job, lambda percent: _say(out, percent=percent), kept)
        except Exception:  # noqa: BLE001  the log is this process' standard error; the node names it
            traceback.print_exc()
            return 1
        if failure is not None:
            _say(out, **failure._asdict())
            return 1
        _say(out, finished=True)
        if not job.stays:
            return 0
        job = Job.from_json(lines.get())


if __name__ == "__main__":
    sys.exit(main())
