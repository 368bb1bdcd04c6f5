"""Training processes: one for each training, or one kept for all steps of a run.

A process belongs to this party alone, is niced and has limited memory (`party.tasks.process`), and ends with its node
in any case.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import BinaryIO, Final, Protocol, Self, TypeAlias

from party.tasks.forked import Forked
from party.tasks.job import Failure, Job
from protos.waiting import PATIENT

Charge: TypeAlias = Callable[[], Awaitable[str]]
"""A function that charges a job to the ledger, once however often it is called, and returns the key of its noise, in
hexadecimal.
"""

IDLE: Final = 300.0
"""Seconds without a step after which a kept process is ended; the next step reads the shard again."""

_ROOT: Final = str(Path(__file__).resolve().parents[2])
_SPARING: Final = {
    "MALLOC_ARENA_MAX": "2",
    "MALLOC_MMAP_THRESHOLD_": str(4 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(32 << 20),
    "THP_MEM_ALLOC_ENABLE": "1",
}
"""What glibc's allocator keeps of freed memory: it would have eight arenas a core, and keep arrays of up to 32 MiB.

Arrays of 4 MiB and more go back to the system at once, and come back by page faults: at 1 MiB, where a micro-batch has
many of them, embedding took 1.1 times as long as at 4, for 2% less memory. In pages of 2 MiB (torch asks for them under
the last name) a step of a language model has a sixth of the faults, and takes 0.88 of the processor time for 2% more.
"""
_LIBRARIES: Final = {"KMP_DUPLICATE_LIB_OK": "True", "KMP_INIT_AT_FORK": "FALSE"}
"""What scikit-learn sets when it is imported: then it makes no difference whether a launcher imported it before."""


class Worker:
    """One process. `start` makes one; `end` ends it, whatever it is doing."""

    def __init__(self, process: asyncio.subprocess.Process | Forked) -> None:
        self._process = process
        self.idle: asyncio.TimerHandle | None = None

    @classmethod
    async def start(cls, log_file: Path | None, threads: int = 0) -> Self:
        """log_file: where the process logs; None for the node's own log. threads: of its libraries; 0 leaves them."""
        with contextlib.ExitStack() as opened:
            own = None if log_file is None else opened.enter_context(_private_log(log_file))
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",
                "-m",
                "party.tasks.process",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=own,
                env=training_environment(threads=threads),
                cwd="/",
                start_new_session=True,
            )
        return cls(process)

    @classmethod
    async def forked(cls, nursery: Path, job: Job, log_file: Path | None, threads: int = 0) -> Self | None:
        """The same, forked by a nursery on this machine for a job of this kind; None where it forks none."""
        environment = training_environment(threads=threads)
        with contextlib.ExitStack() as opened:
            log = 2 if log_file is None else opened.enter_context(_private_log(log_file)).fileno()
            process = await Forked.ask(nursery, job.work.kind, environment, log)
        return None if process is None else cls(process)

    @property
    def pid(self) -> int:
        """The process' id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process is running."""
        return self._process.returncode is None

    async def do(self, job: Job, told: Callable[[int], None], charge: Charge) -> Failure | None:
        """None when the result is on disk, otherwise why there is none; the process is then of no more use, unless
        simulated parties share it and it says why itself (`Failure.kind`).

        Raises what `charge` raises.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        failure = Failure("", "training ended without a result. Its own log says why.")
        finished = False
        with contextlib.suppress(ConnectionError):
            process.stdin.write(job.to_json().encode() + b"\n")
            await process.stdin.drain()
        async for line in process.stdout:
            said = json.loads(line)
            if "percent" in said:
                told(said["percent"])
            elif "prepared" in said:
                failure = failure._replace(private=True)
                word = json.dumps({"key": await charge()}).encode()
                with contextlib.suppress(ConnectionError):
                    process.stdin.write(word + b"\n")
                    await process.stdin.drain()
            elif "kind" in said:
                failure = Failure(**said)
                if job.party:
                    return failure
            elif said.get("finished", False):
                finished = True
                if job.stays or job.party:
                    return None
        return None if await process.wait() == 0 and finished else failure

    async def end(self) -> None:
        """End the process. Idempotent."""
        if self.idle is not None:
            self.idle.cancel()
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
        await asyncio.shield(self._process.wait())


class Trains(Protocol):
    """Has a node's jobs done: `Workers`, or `party.tasks.pool.PooledWorkers`."""

    async def do(self, run: str, job: Job, told: Callable[[int], None], charge: Charge) -> Failure | None: ...

    async def end(self, run: str) -> None: ...

    async def end_all(self) -> None: ...


class Workers:
    """All training processes of a node."""

    def __init__(self, log_file: Path | None = None, threads: int = 0, nursery: Path | None = None) -> None:
        """log_file, threads: as of `Worker.start`. nursery: the socket of a process that forks them, where one does."""
        self._log_file = log_file
        self._threads = threads
        self._nursery = nursery
        self._kept: dict[str, Worker] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def do(self, run: str, job: Job, told: Callable[[int], None], charge: Charge) -> Failure | None:
        """Have a job of a run done; None when its result is on disk, otherwise why there is none. Raises what `charge`
        raises.

        charge: is awaited before the shard is opened, and again where the process has to be replaced. A process that
        failed, or whose job was cancelled, is ended. A kept process that something else ended in the meantime is
        replaced.
        """
        worker = self._kept.pop(run, None) if job.stays else None
        if worker is not None and worker.alive:
            failure = await self._done(run, worker, job, told, charge)
            if failure is None or failure.kind:
                return failure
        return await self._done(run, await self._started(job), job, told, charge)

    async def _started(self, job: Job) -> Worker:
        """A new process: forked where there is a nursery that can, otherwise started."""
        if self._nursery is not None:
            forked = await Worker.forked(self._nursery, job, self._log_file, self._threads)
            if forked is not None:
                return forked
        return await Worker.start(self._log_file, self._threads)

    async def _done(
        self, run: str, worker: Worker, job: Job, told: Callable[[int], None], charge: Charge
    ) -> Failure | None:
        if worker.idle is not None:
            worker.idle.cancel()
        kept = False
        try:
            failure = await worker.do(job, told, charge)
            kept = failure is None and job.stays
            return failure
        finally:
            if kept:
                self._keep(run, worker)
            else:
                await worker.end()

    async def end(self, run: str) -> None:
        """End the process that is kept for a run, if there is one."""
        worker = self._kept.pop(run, None)
        if worker is not None:
            await worker.end()

    async def end_all(self) -> None:
        """End every process that is kept."""
        for run in list(self._kept):
            await self.end(run)
        await asyncio.gather(*self._ending)

    def kept(self, run: str) -> int | None:
        """The id of the process that is kept for a run."""
        worker = self._kept.get(run)
        return None if worker is None else worker.pid

    def _keep(self, run: str, worker: Worker) -> None:
        def end() -> None:
            task = asyncio.get_running_loop().create_task(self.end(run))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

        self._kept[run] = worker
        worker.idle = asyncio.get_running_loop().call_later(IDLE, end)


def _private_log(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600), "ab")


def training_environment(outside: Mapping[str, str] = os.environ, threads: int = 0) -> dict[str, str]:
    """The node's own environment, with this code importable from any folder, threads that sleep while they wait, and an
    allocator that gives freed memory back.

    The accelerators that a launcher assigned to the node are in it (`CUDA_VISIBLE_DEVICES`). Where parties share cores,
    threads that spin while they wait took three times as long as ones that sleep.
    """
    paths = [_ROOT, *filter(None, [outside.get("PYTHONPATH")])]
    own = {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_DISABLE_TELEMETRY": "1"}
    own |= {"OMP_NUM_THREADS": str(threads)} if threads else {}
    return {**PATIENT, **_SPARING, **_LIBRARIES, **outside, **own}
