"""Training processes that simulated parties share, where one process serves many parties' nodes.

Each does one job at a time, for whichever party's turn it is, and stays. It reads a source once for all of them
(`party.shard.routing`) and keeps one model, with which they take turns; what it read for the steps of a party it keeps
for that party alone. The text of several parties lies in its memory, and nothing but this program keeps it apart.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from party.tasks.job import Failure, Job
from party.tasks.worker import Charge, Worker


class Pool:
    """So many training processes, started when they are first needed. A party's jobs all go to the same one."""

    def __init__(self, processes: int, log_folder: Path, threads: int = 0, nursery: Path | None = None) -> None:
        """log_folder: where process number n logs, as `training-n.log`. threads, nursery: as of `Workers`."""
        self._lanes = [
            _Lane(log_folder / f"training-{number}.log", threads, nursery) for number in range(1, processes + 1)
        ]
        self._parties = 0

    def workers(self, party: str) -> "PooledWorkers":
        """What a party's node uses; parties are dealt to the processes in turn."""
        self._parties += 1
        return PooledWorkers(party, self._lanes[self._parties % len(self._lanes)])

    @property
    def pids(self) -> list[int]:
        """The ids of the processes that run."""
        return [each.pid for each in self._lanes if each.pid]

    async def end(self) -> None:
        """End all processes, whatever they are doing."""
        await asyncio.gather(*(each.end() for each in self._lanes))


class PooledWorkers:
    """A party's part in a pool: what `party.tasks.worker.Workers` is where a party has processes of its own."""

    def __init__(self, party: str, lane: "_Lane") -> None:
        self._party = party
        self._lane = lane
        self._anew = 0

    async def do(self, run: str, job: Job, told: Callable[[int], None], charge: Charge) -> Failure | None:
        """As `party.tasks.worker.Workers.do`, when it is this party's turn. Raises what `charge` raises."""
        return await self._lane.do(replace(job, party=self._party, anew=self._anew), told, charge)

    async def end(self, run: str) -> None:
        """Have the party's text read again for its next step."""
        self._anew += 1

    async def end_all(self) -> None:
        """The same: the processes are other parties' too."""
        self._anew += 1


class _Lane:
    """One process, and the jobs that wait for it in order."""

    def __init__(self, log_file: Path, threads: int, nursery: Path | None) -> None:
        self._log_file = log_file
        self._threads = threads
        self._nursery = nursery
        self._turn = asyncio.Lock()
        self._worker: Worker | None = None

    @property
    def pid(self) -> int:
        return self._worker.pid if self._worker is not None and self._worker.alive else 0

    async def do(self, job: Job, told: Callable[[int], None], charge: Charge) -> Failure | None:
        async with self._turn:
            if self.pid:
                failure = await self._done(job, told, charge)
                if failure is None or failure.kind:
                    return failure
            return await self._done(job, told, charge)

    async def end(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.end()

    async def _done(self, job: Job, told: Callable[[int], None], charge: Charge) -> Failure | None:
        """Do a job in the process that runs, or in a new one. One that was interrupted, or that ended, is of no more
        use.
        """
        ours = False
        try:
            if self._worker is None or not self._worker.alive:
                self._worker = await self._started(job)
            failure = await self._worker.do(job, told, charge)
            ours = failure is None or bool(failure.kind)
            return failure
        finally:
            if not ours:
                await self.end()

    async def _started(self, job: Job) -> Worker:
        if self._nursery is not None:
            forked = await Worker.forked(self._nursery, job, self._log_file, self._threads)
            if forked is not None:
                return forked
        return await Worker.start(self._log_file, self._threads)
