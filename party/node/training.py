"""Training in a subprocess, seen from the node: one at a time, watched, ended with the node, never repeated.

A charged training always gives a result, whatever is in the shard: no failure reveals a record.
"""

import asyncio
import logging
import time
from typing import Final

from learning.errors import EXHAUSTED
from party.store.disk import full
from party.tasks.job import DEVICE, MEMORY, STORAGE, UNKNOWN, Failure, Job
from party.tasks.worker import Charge, Trains, Workers
from protos.refusal import Reason, Refusal

log = logging.getLogger("conclave.party")

_GONE: Final = "what its [compute] asks for is not there any more. Its own log says what is."
_SHARD_FAILURES: Final = frozenset({"DataError", "EmptyShard", "LabelError", "LabelMapError", "ShardError"})


class Training:
    """One operation in progress. It continues when its caller goes away, and the caller may come back."""

    def __init__(self, digest: bytes, release: str, workers: Trains | None = None, run: str = "") -> None:
        """workers: whose processes run it; None for processes of its own, for this run."""
        self.digest = digest
        self.release = release
        self._workers: Trains = Workers() if workers is None else workers
        self._run = run
        self.percent = UNKNOWN
        self.started = time.monotonic()
        self.task: asyncio.Task[None] | None = None

    @property
    def seconds(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.started

    async def run(self, job: Job, turn: asyncio.Semaphore, charge: Charge, *, party: str) -> bool:
        """Run the job when it is its turn; returns whether the party's text is in the result.

        charge: writes the cost into the ledger before the shard is opened, as for `Workers.do`. An error before that
        concerns what was provided, and is reported. An error after it may concern private text: the job is then done
        again without any text, and only the party's own log says so. In a simulation it is reported too. A device that
        fails after it costs no text: the job, of which nothing left, is done again on the processor.

        Raises `Refusal` (MEMORY, SHARD, STORAGE, TRAINING) when there is no result, and what `charge` raises.
        """
        async with turn:
            failure = await self._work(job, charge)
            if failure is None:
                return True
            log.error("training failed: %s", failure.sentence)
            if failure.private and failure.kind == DEVICE and job.on_processor != job:
                log.error("%s is done again on the processor.", self.release)
                job = job.on_processor
                failure = await self._work(job, charge)
                if failure is None:
                    return True
                log.error("training failed on the processor: %s", failure.sentence)
            if failure.private and not job.frank:
                log.error("%s goes on without this party's text, as if there were none.", self.release)
                failure = await self._without_text(job, charge)
                if failure is None:
                    return False
        raise _refusal(failure, party, frank=job.frank)

    async def without_text(self, job: Job, turn: asyncio.Semaphore, charge: Charge, *, party: str) -> None:
        """Run the job as if the shard were empty, discarding what was begun. Raises as `run`."""
        async with turn:
            failure = await self._without_text(job, charge)
        if failure is not None:
            raise _refusal(failure, party, frank=job.frank)

    async def _without_text(self, job: Job, charge: Charge) -> Failure | None:
        await asyncio.to_thread(job.checkpoint.unlink, missing_ok=True)
        return await self._work(job.without_text, charge)

    async def _work(self, job: Job, charge: Charge) -> Failure | None:
        """None when the result is on disk, otherwise why there is none."""

        def told(percent: int) -> None:
            # A job that is done again reports nothing until it has come as far as the first.
            self.percent = percent if self.percent == UNKNOWN else max(self.percent, min(percent, 100))

        return await self._workers.do(self._run, job, told, charge)


def _refusal(failure: Failure, party: str, *, frank: bool) -> Refusal:
    """frank: whether the machine's own devices may be named, which are nobody's business but the party's."""
    if failure.kind == STORAGE:
        return full(party)
    if failure.kind == DEVICE and failure.sentence != EXHAUSTED and not frank:
        failure = failure._replace(sentence=_GONE)
    if failure.kind in (MEMORY, DEVICE):
        return Refusal(Reason.MEMORY, f"training at party {party}: {failure.sentence}")
    return Refusal(Reason.SHARD if failure.kind in _SHARD_FAILURES else Reason.TRAINING, failure.sentence)
