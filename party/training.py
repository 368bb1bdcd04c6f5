"""Training in a subprocess, seen from the node: one at a time, watched, ended with the node, never done twice."""

import asyncio
import logging
import time
from typing import Final

from party.job import MEMORY, STORAGE, UNKNOWN, Failure, Job
from party.storage import full
from party.worker import Workers
from protos.refusal import Reason, Refusal

log = logging.getLogger("conclave.party")

_SHARD_FAILURES: Final = frozenset({"DataError", "LabelError", "LabelMapError", "ShardError"})


class Training:
    """One operation as it goes. Whoever asked may go away and come back; it goes on."""

    def __init__(self, digest: bytes, release: str, workers: Workers | None = None, run: str = "") -> None:
        """workers: whose processes do it, those of its own if None, for this run."""
        self.digest = digest
        self.release = release
        self._workers = Workers() if workers is None else workers
        self._run = run
        self.percent = UNKNOWN
        self.started = time.monotonic()
        self.task: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return time.monotonic() - self.started

    async def run(self, job: Job, turn: asyncio.Semaphore, *, party: str, frank: bool) -> None:
        """Do the job when it is its turn. Raises `Refusal` (MEMORY, SHARD, STORAGE, TRAINING) when there is no result.

        frank: whether the caller may read what is wrong with the shard. Of private text it may not: such a sentence can
        name files and say that rows are unusable, and why. It reads the failure's public sentence, where there is one.
        The party's own log has the other in any case.
        """
        async with turn:
            failure = await self._work(job)
        if failure is None:
            return
        kind, sentence, public = failure
        log.error("training failed: %s", sentence)
        if kind == STORAGE:
            raise full(party)
        if kind == MEMORY:
            raise Refusal(Reason.MEMORY, f"training at party {party}: {sentence}")
        if kind in _SHARD_FAILURES and not frank:
            sentence = public or "the shard cannot be used as the plan asks. Its own log says why."
        raise Refusal(Reason.SHARD if kind in _SHARD_FAILURES else Reason.TRAINING, sentence)

    async def _work(self, job: Job) -> Failure | None:
        """None when the result is on disk, else why there is none."""

        def told(percent: int) -> None:
            self.percent = percent

        return await self._workers.do(self._run, job, told)
