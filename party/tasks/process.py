"""The training subprocess: does what a job says on this party's shard and leaves the result in the run's folder.

Started by the node as `python -m party.tasks.process`. One JSON line on standard input is the job; the pipe then stays
open, and its end means that the node is gone. First comes what needs public things alone, and a word when that is done.
The shard is opened once the node has answered it, which it does when the job is charged. Progress goes out as JSON
lines: whole percents, the end, or why there is none; never a count, a loss or a word. After a step the process stays,
with what it read, and takes the next line. Counts need no torch; it is imported for what does.
"""

import contextlib
import ctypes
import json
import logging
import math
import os
import queue
import resource
import signal
import sys
import threading
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from party.node.memory import keep_private
from party.store.disk import is_full
from party.tasks.job import MEMORY, STORAGE, Failure, Job, PartFailed, release_of

if TYPE_CHECKING:
    from party.tasks.step.training import Kept

Sum: TypeAlias = sparse.csr_array | NDArray[np.int32]
"""A bounded, noise-free sum [rows, columns]: integers where few cells are not 0, else all of them modulo 2**32."""

Private: TypeAlias = Callable[[Job, Callable[[int], None]], Sum]
"""The part of a job that opens the shard, given the job with its key, and whom to tell of percents."""

Done = TypeVar("Done")

CELL: Final = 4
"""Bytes of a cell of a sum that is held whole."""

_LITTLE: Final = 1 << 20
_READING: Final = threading.Lock()
"""Held while a matrix is read: what numpy reads a header with does not bear two threads (CPython 3.11, gh-106905)."""
_DENSE_AT_ONCE: Final = 1 << 22
_NICENESS: Final = 10
_PR_SET_PDEATHSIG: Final = 1


def work(job: Job, progress: Callable[[int], None], kept: "Kept | None" = None) -> None:
    """Do the whole job: the bounded sum is at `job.result` when this returns, and its census at `job.census`.

    kept: what this process read for an earlier step; a step leaves there what it read. Raises `ConclaveError`.
    """
    if job.part is not None:
        _answered(job, range(*job.part), progress)
    else:
        save_counts(Path(job.result), prepare(job, kept)(job, progress))


def prepare(job: Job, kept: "Kept | None" = None) -> Private:
    """Have everything ready that a job needs but its text: nothing private is read, whatever was provided.

    What it gives does the rest. Raises `ConclaveError` for what was provided, and that only.
    """
    if job.text is not None:
        return _learning(job, kept)
    from aggregation.mechanisms.counts import CountsMechanism
    from aggregation.mechanisms.vectors import VectorMechanism
    from party.releasing.mechanisms import answering
    from party.tasks.counts import training as counting

    mechanism = answering(release_of(job.release))
    if isinstance(mechanism, CountsMechanism | VectorMechanism):
        return counting.prepare(job, mechanism)
    from party.tasks.teachers import training as teaching

    return teaching.prepare(job, mechanism)


def _answered(job: Job, numbers: range, progress: Callable[[int], None]) -> None:
    """Some teachers' answers, for the process that puts all of them together."""
    from party.tasks.ray_tasks import save_answers

    if job.text is None:
        from party.tasks.teachers.training import some_answers
    else:
        from party.tasks.ensemble.training import some_answers

    save_answers(Path(job.result), some_answers(job, numbers, progress))


def _learning(job: Job, kept: "Kept | None") -> Private:
    from learning.models.checkpoints import ModelError
    from party.provided.models import put_together

    assert job.text is not None
    put_together(job.text, job.memory)
    try:
        return _learning_by_kind(job, kept)
    except ModelError as error:
        raise ModelError(_unplaced(str(error), job.text.folder)) from error


def _learning_by_kind(job: Job, kept: "Kept | None") -> Private:
    from aggregation.mechanisms.free import FreeAnswers
    from aggregation.mechanisms.gradients import GradientMechanism
    from party.releasing.mechanisms import mechanism_of

    assert job.text is not None
    mechanism = mechanism_of(release_of(job.release))
    if job.text.kind == "ensemble":
        from aggregation.mechanisms.joint import JointMechanism
        from party.tasks.ensemble import training as ensembles

        assert isinstance(mechanism, JointMechanism)
        return ensembles.prepare(job, mechanism)
    if isinstance(mechanism, FreeAnswers):
        from party.tasks.scores import training as text_scoring

        return text_scoring.prepare(job, mechanism)
    assert isinstance(mechanism, GradientMechanism)
    if job.text.kind == "step":
        from party.tasks.step import training as stepping

        return stepping.prepare(job, mechanism, stepping.Kept() if kept is None else kept)
    from party.tasks.text_model import training as text_training

    return text_training.prepare(job, mechanism)


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
    """Do the whole job; None when its result is on disk, else why there is none. Only bugs raise."""
    failure = tried(job, lambda: work(job, progress, kept))
    return failure if isinstance(failure, Failure) else None


def prepared(job: Job, kept: "Kept | None" = None) -> Private | Failure:
    """`prepare`, or why it cannot be done. Only bugs raise."""
    return tried(job, lambda: prepare(job, kept))


def finished(private: Private, job: Job, progress: Callable[[int], None]) -> Failure | None:
    """Do what was prepared, with the job's key; None when its result is on disk, else why there is none."""
    result = tried(job, lambda: save_counts(Path(job.result), private(job, progress)))
    return result._replace(private=True) if isinstance(result, Failure) else None


def tried(job: Job, act: Callable[[], Done]) -> Done | Failure:
    """What an act for a job gives, or why it gives nothing. Only bugs raise."""
    from aggregation.errors import ConclaveError

    try:
        return act()
    except PartFailed as part:
        return part.failure
    except ConclaveError as error:
        return Failure(STORAGE if is_full(error) else type(error).__name__, str(error))
    except Exception as error:  # libraries wrap what the disk or the system says in errors of their own
        if is_exhausted(error):
            return Failure(MEMORY, f"it needs more than the {job.memory:,} MiB that [limits] memory_mib allows.")
        if not is_full(error):
            raise
        return Failure(STORAGE, "the disk is full or read-only.")


def is_exhausted(error: BaseException) -> bool:
    """Whether an error says that there is no more memory: Python's own, or what torch makes of its own."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "alloc" in str(error).lower())


def save_counts(path: Path, counts: Sum) -> None:
    """Write a matrix whole or not at all, with mode 0600: no larger than all its cells are, unless that is little."""
    if not isinstance(counts, np.ndarray) and _bytes(counts) > max(_LITTLE, CELL * math.prod(counts.shape)):
        counts = _dense(counts)
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


def _bytes(counts: sparse.csr_array) -> int:
    return int(counts.data.nbytes + counts.indices.nbytes + counts.indptr.nbytes)


def _dense(counts: sparse.csr_array) -> NDArray[np.int32]:
    """All cells modulo 2**32. Memory: they, and a part of them as they were."""
    made = np.empty(counts.shape, np.int32)
    rows = max(1, _DENSE_AT_ONCE // max(1, counts.shape[1]))
    for start in range(0, counts.shape[0], rows):
        made[start : start + rows] = wrapped(counts[start : start + rows].toarray().astype(np.int64, copy=False))
    return made


def load_counts(path: Path) -> Sum:
    """The matrix that `save_counts` wrote."""
    with _READING, np.load(path, allow_pickle=False) as parts:
        if "dense" in parts:
            return np.asarray(parts["dense"])
        return sparse.csr_array((parts["data"], parts["indices"], parts["indptr"]), shape=tuple(parts["shape"]))


def shape_of(path: Path) -> tuple[int, int]:
    """Rows and columns of the matrix that `save_counts` wrote, which are public; its cells stay where they are."""
    with _READING, zipfile.ZipFile(path) as parts:
        if "dense.npy" not in parts.namelist():
            with np.load(path, allow_pickle=False) as found:
                rows, columns = found["shape"].tolist()
                return rows, columns
        with parts.open("dense.npy") as file:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            rows, columns = read(file)[0]
            return rows, columns


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
    keep_private()
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
        from party.tasks.step.training import Kept

        kept = Kept()
    while True:
        try:
            failure = _done(job, kept, lines, out)
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


def _done(job: Job, kept: "Kept | None", lines: "queue.SimpleQueue[bytes]", out: TextIO) -> Failure | None:
    """Do a job as the node has it: what is public, its word that the job is charged, the rest."""

    def told(percent: int) -> None:
        _say(out, percent=percent)

    if job.part is not None:  # of a job whose whole is charged already
        return attempt(job, told)
    private = prepared(job, kept)
    if isinstance(private, Failure):
        return private
    _say(out, prepared=True)
    return finished(private, job.paid_with(json.loads(lines.get())["key"]), told)


if __name__ == "__main__":
    sys.exit(main())
