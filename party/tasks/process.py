"""The training subprocess: does a job on this party's shard and leaves the result in the run's folder.

The node starts it as `python -m party.tasks.process`, or has it forked (`party.tasks.nursery`). The job is one JSON
line on standard input; the pipe then stays open, and its end means that the node is gone. The process first does
everything that needs only public data, and says so. It opens the shard once the node has answered, after charging the
job. It reports progress as JSON lines: whole percents, the end, or the reason of a failure; never a count, a loss or a
word. After a step the process stays, with what it read, and takes the next line. Where simulated parties share it
(`party.tasks.pool`), it stays after every job, also one that failed. Counting needs no torch, which is imported only
for jobs that do.
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
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final, Protocol, TextIO, TypeVar

from aggregation.mechanisms.joint import TeacherSignal
from learning.errors import EXHAUSTED
from learning.models.compute import running
from party.releasing.mechanisms import mechanism_of
from party.shard.memory import Memory
from party.shard.routing import Routes, shared
from party.store.disk import is_full
from party.store.memory import keep_private
from party.tasks.job import (
    DEVICE,
    MEMORY,
    STORAGE,
    Failure,
    Job,
    PartFailed,
    Private,
    is_device_full,
    is_exhausted,
    release_of,
)
from party.tasks.result import Sum, save_counts
from party.tasks.task import half

Done = TypeVar("Done")

_NICENESS: Final = 10
PR_SET_PDEATHSIG: Final = 1


class Training(Protocol):
    """The half of a kind of task that runs in the training process: a module `party.tasks.<kind>.training`."""

    def prepare(self, job: Job, work: Any, mechanism: Any, kept: Any) -> Private:
        """Prepare everything except the party's text. Raises `ConclaveError` only for what was provided.

        kept: what the process read for an earlier such job, where it stays for the next one.
        """
        ...


class Spreadable(Training, Protocol):
    """A training of teachers, which other machines of the site may train."""

    def some_answers(self, job: Job, work: Any, numbers: range, progress: Callable[[int], None]) -> TeacherSignal:
        """The answers of the teachers with these numbers, unbounded and in clear."""
        ...


class Staying(Training, Protocol):
    """A training whose process stays for the next such job."""

    def Kept(self, models: Memory | None = None) -> Any:  # noqa: N802 - a class
        """What the process keeps between jobs of a party, empty at first. models: of all that share the process."""
        ...


def work(job: Job, progress: Callable[[int], None], kept: object = None) -> None:
    """Run the whole job: the bounded sum is at `job.result` when this returns, and its census at `job.census`.

    kept: what this process read for an earlier step; a step leaves there what it read. Raises `ConclaveError`.
    """
    if job.part is None:
        save_counts(Path(job.result), prepare(job, kept)(job, progress))
        return
    from party.tasks.ray_tasks import save_answers

    training: Spreadable = half(job.work.kind, "training")
    with _running(job):
        save_answers(Path(job.result), training.some_answers(job, job.work, range(*job.part), progress))


def prepare(job: Job, kept: object = None) -> Private:
    """Prepare everything that a job needs except its text; nothing private is read, whatever was provided.

    Returns a function that does the rest. Raises `ConclaveError` only for what was provided, and `ComputeError` for a
    device that is not there or lacks the precision.
    """
    training: Training = half(job.work.kind, "training")
    mechanism = mechanism_of(release_of(job.release))
    with _running(job):
        private = training.prepare(job, job.work, mechanism, kept_for(job) if kept is None else kept)

    def rest(paid: Job, progress: Callable[[int], None]) -> Sum:
        with _running(paid):
            return private(paid, progress)

    return rest


def _running(job: Job) -> AbstractContextManager[None]:
    """Within it, the job's models are where its party wants them; work without a model needs no device."""
    return running(job.compute) if job.work.models else contextlib.nullcontext()


def kept_for(job: Job, models: Memory | None = None) -> object:
    """Where a staying job leaves what it read for the next such job; None for any other. models: as of `Staying`."""
    if not job.stays:
        return None
    training: Staying = half(job.work.kind, "training")
    return training.Kept(models)


class Shared:
    """What the simulated parties of one process share, and what it keeps of each. Memory: all their text."""

    def __init__(self) -> None:
        self.routes = Routes()
        self._models = Memory()
        self._kept: dict[str, object] = {}

    def kept_for(self, job: Job) -> object:
        """As `kept_for`, of the job's party alone."""
        if not job.stays:
            return None
        if job.party not in self._kept:
            self._kept[job.party] = kept_for(job, self._models)
        return self._kept[job.party]


def attempt(job: Job, progress: Callable[[int], None], kept: object = None) -> Failure | None:
    """Run the whole job; None when its result is on disk, otherwise why there is none. Only bugs raise."""
    failure = tried(job, lambda: work(job, progress, kept))
    return failure if isinstance(failure, Failure) else None


def prepared(job: Job, kept: object = None) -> Private | Failure:
    """`prepare`, or why it cannot be done. Only bugs raise."""
    return tried(job, lambda: prepare(job, kept))


def finished(private: Private, job: Job, progress: Callable[[int], None]) -> Failure | None:
    """Run a prepared job, with its key; None when its result is on disk, otherwise why there is none."""
    result = tried(job, lambda: save_counts(Path(job.result), private(job, progress)))
    return result._replace(private=True) if isinstance(result, Failure) else None


def tried(job: Job, act: Callable[[], Done]) -> Done | Failure:
    """The result of a function of a job, or why it failed. Only bugs raise."""
    from aggregation.errors import ConclaveError

    try:
        return act()
    except PartFailed as part:
        return part.failure
    except ConclaveError as error:
        return Failure(STORAGE if is_full(error) else type(error).__name__, str(error))
    except Exception as error:  # libraries wrap errors of the disk or the system in their own
        if is_device_full(error):
            return Failure(DEVICE, EXHAUSTED)
        if is_exhausted(error):
            return Failure(MEMORY, f"it needs more than the {job.memory:,} MiB that [limits] memory_mib allows.")
        if not is_full(error):
            raise
        return Failure(STORAGE, "the disk is full or read-only.")


def _die_with(parent: int) -> "queue.SimpleQueue[bytes]":
    """End when the node ends, in whatever way: by a kernel signal on Linux, by the end of the pipe everywhere.

    Returns a queue of the lines that arrive.
    """
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
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
    """Limit this process' memory through the kernel, where possible, so that only this process can exhaust it.

    What it allocates is counted, and not its addresses: a device's driver reserves more of those than any machine has
    memory, and maps the device's own memory, which is no part of the limit.
    """
    if mebibytes and sys.platform == "linux":
        size = mebibytes * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (size, size))


def first_line() -> bytes:
    """The next line of standard input, without a byte beyond it."""
    line = bytearray()
    while byte := os.read(0, 1):
        if byte == b"\n":
            break
        line += byte
    return bytes(line)


def _say(out: TextIO, **what: object) -> None:
    out.write(json.dumps(what) + "\n")
    out.flush()


def main(parent: int | None = None) -> int:
    """Run the jobs from standard input until one ends the process; 0 when its result is on disk.

    parent: the process that this one ends with; by default the job's node.
    """
    keep_private()
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints goes to the party's log, not among the progress lines
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    logging.basicConfig(level=logging.WARNING)
    job = Job.from_json(first_line())
    lines = _die_with(job.parent if parent is None else parent)
    _hold_at_most(job.memory)
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)

    together = Shared() if job.party else None
    kept = kept_for(job) if together is None else None
    while True:
        try:
            if together is None:
                failure = _done(job, kept, lines, out)
            else:
                with shared(together.routes):
                    failure = _done(job, together.kept_for(job), lines, out)
        except Exception:  # noqa: BLE001  the log is this process' standard error; the node names it
            traceback.print_exc()
            return 1
        if failure is not None:
            _say(out, **failure._asdict())
        else:
            _say(out, finished=True)
        if together is None and (failure is not None or not job.stays):
            return 0 if failure is None else 1
        job = Job.from_json(lines.get())


def _done(job: Job, kept: object, lines: "queue.SimpleQueue[bytes]", out: TextIO) -> Failure | None:
    """Run a job with the node: prepare what is public, wait until the job is charged, do the rest."""

    def told(percent: int) -> None:
        _say(out, percent=percent)

    if job.part is not None:  # for a job that is fully charged already
        return attempt(job, told)
    private = prepared(job, kept)
    if isinstance(private, Failure):
        return private
    _say(out, prepared=True)
    return finished(private, job.paid_with(json.loads(lines.get())["key"]), told)


if __name__ == "__main__":
    sys.exit(main())
