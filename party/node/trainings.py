"""The trainings of a party: each begun once, charged before its text is opened, and never repeated.

How a training is run is in `party.node.training`; which process runs it, in `party.tasks.worker`.
"""

import asyncio
import logging
import sqlite3
from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path
from typing import Any, Final

from party.admission.admit import affordable, event_of, times
from party.config import PartyConfig
from party.errors import PartyError
from party.ledger.ledger import Ledger
from party.node.draining import Drain
from party.node.metrics import Metrics
from party.node.training import Training
from party.releasing.answers import Answers
from party.releasing.secure_sums import Sums
from party.store.artefacts import Artefacts
from party.store.keys import insecure_key
from party.store.runs import NAME, Operation, Run
from party.tasks.job import Job
from party.tasks.machine import Machine
from party.tasks.operations import charge_of, check_fit, check_step, is_claimed, job_of, training_digest
from party.tasks.task import Asks
from party.tasks.worker import Charge, Trains
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import operation_digest
from protos.refusal import Reason, Refusal
from protos.steps import is_step, number_of, whole_of
from protos.telemetry import tracing

log = logging.getLogger("conclave.party")

HEARTBEAT: Final = 1.0
"""Seconds between messages to a caller about a training that goes on."""


class Trainings:
    """A node's trainings in progress, one at a time; a finished one is known from its run's files."""

    def __init__(
        self,
        config: PartyConfig,
        home: Path,
        ledger: Ledger,
        workers: Trains,
        answers: Answers,
        sums: Sums,
        drain: Drain,
        metrics: Metrics,
        machine: Machine,
    ) -> None:
        """answers, sums: hold what leaves of a training, and forget steps that are over."""
        self._config = config
        self._machine = machine
        self._home = home
        self._ledger = ledger
        self._workers = workers
        self._answers = answers
        self._sums = sums
        self._drain = drain
        self._metrics = metrics
        self._going: dict[tuple[str, str], Training] = {}
        self._turn = asyncio.Semaphore(1)
        self._pause = asyncio.sleep

    def any_of(self, run_id: str) -> bool:
        """Whether a training of a run is in progress."""
        return any(key[0] == run_id for key in self._going)

    def tasks(self, run_id: str | None = None) -> list[asyncio.Task[None]]:
        """The trainings in progress, of all runs or of one."""
        return [each.task for key, each in self._going.items() if each.task and run_id in (None, key[0])]

    async def cancel(self, run_id: str | None = None) -> None:
        """End the trainings in progress, of all runs or of one."""
        tasks = self.tasks(run_id)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def begin(self, run: Run, request: party_pb2.TrainRequest) -> Training | None:
        """The training that a request asks for, begun if necessary; None when it is already finished.

        Every training is charged before the shard is opened for it, and one charge covers one request. A killed node
        leaves nothing of a training. The same request then begins it again under the noise key that the ledger keeps,
        without another charge, provided that no result is stored and nothing of it was ever sent. This reveals nothing:
        everything that leaves of a training leaves through its answers, so nobody has seen anything of the lost one,
        and what will be seen is a single run of the charged mechanism with a single draw of its noise. Once something
        was sent, the result must stay the one that was answered from, so no other is made.

        For a step, every attempt has a result of its own, which replaces the last attempt's until something of that
        very attempt was sent; steps before the last trained one are over.
        """
        if not NAME.fullmatch(request.operation_id):
            raise Refusal(Reason.REQUEST, "an operation id has 1 to 64 small letters, digits and hyphens.")
        asks = Asks.of(request)
        release = run.release(asks.release)
        claimed = await is_claimed(self._ledger, run, release, asks.attempt)
        self._drain.check()
        # nothing is awaited from here on, so that two callers cannot begin the same thing
        digest = operation_digest(request)
        key = (run.id, request.operation_id)
        going = self._going.get(key)
        if going is not None and going.digest != digest:
            raise Refusal(
                Reason.CONFLICT, f"operation {request.operation_id} stands for something else already; use a new id."
            )
        if going is not None:
            return going
        done = run.operation(release.name)
        if done is not None and (done.id, done.digest) == (request.operation_id, digest):
            return None
        self._check_rivals(run, release, done, asks.attempt)
        if is_step(release):
            check_step(run, release, asks.attempt)
        if claimed:
            raise Refusal(
                Reason.CONFLICT,
                f"release {release.name} was answered from already, and what it was answered from is gone; start a "
                "new run.",
            )
        job = job_of(
            request, run, self._config, Artefacts(run.folder), self._home, self._ledger.census_key, self._machine
        )
        training = Training(digest, release.name, self._workers, run.id)
        self._going[key] = training
        kept = Operation(request.operation_id, digest, release.name, asks.attempt, training_digest(request))
        training.task = asyncio.create_task(self._train(run, kept, training, job))
        training.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return training

    async def watched(self, run: Run, training: Training) -> AsyncGenerator[party_pb2.TrainProgress, None]:
        """Yield a training's progress until it has finished. Raises its `Refusal`, and one where it was ended."""
        assert training.task is not None
        while not training.task.done():
            yield party_pb2.TrainProgress(percent=training.percent, seconds=training.seconds)
            await asyncio.wait([training.task], timeout=HEARTBEAT)
        if training.task.cancelled():
            self._drain.check()
            raise Refusal(Reason.NOT_JOINED, f"run {run.id} ended while it trained.")
        training.task.result()

    def _check_rivals(self, run: Run, release: plan_pb2.Release, done: Operation | None, attempt: int) -> None:
        """Raises `Refusal` (CONFLICT) where another operation trains a release, or trained it (`done`)."""
        rivals = [
            other
            for other, each in self._going.items()
            if other[0] == run.id and whole_of(each.release) == whole_of(release.name)
        ]
        replaced = done is not None and is_step(release) and attempt > done.attempt
        if (done is not None and not replaced) or rivals:
            raise Refusal(
                Reason.CONFLICT,
                f"release {release.name} is trained by operation {rivals[0][1] if rivals or not done else done.id} in "
                "this run; one release is one result.",
            )

    async def _train(self, run: Run, operation: Operation, training: Training, job: Job) -> None:
        what: dict[str, Any] = {"run": run.id, "release": training.release, "operation": operation.id}
        try:
            with self._metrics.training(), tracing.span("training", run=run.id, release=training.release):
                await asyncio.to_thread(check_fit, job)
                if not await self._serves_again(run, operation):
                    await self._trained(run, training, job, partial(self._charge, run, operation, charge_of(job)))
                await self._padded(job, training)  # before anybody can find out, by asking for more, that it is done
                await asyncio.to_thread(run.keep_operation, operation)
                if number_of(operation.release) is not None:
                    await self._over(run, operation)
        except BaseException as error:
            if job.stays:  # the records that it read may not be in the ledger: the next step reads them again
                await self._workers.end(run.id)
            if not isinstance(error, Exception):
                raise
            what |= {"reason": str(error.reason)} if isinstance(error, Refusal) else {}
            log.warning(
                "%s in run %s was not trained", training.release, run.id, extra={"event": "training-failed", **what}
            )
            raise
        else:
            what |= {"event": "trained", "seconds": round(training.seconds, 3)}
            log.info("trained %s in run %s", training.release, run.id, extra=what)
        finally:
            Path(job.census).unlink(missing_ok=True)
            self._going.pop((run.id, operation.id), None)

    async def _serves_again(self, run: Run, operation: Operation) -> bool:
        """Whether the result of an earlier attempt at a step, with its charge, can serve this attempt.

        It can where nothing of the earlier attempt left and the request is the same: the text is not opened again, and
        nobody else has seen anything of its sample.
        """
        done = await asyncio.to_thread(run.operation, operation.release)
        if done is None or number_of(operation.release) is None or done.training != operation.training:
            return False
        if not await self._ledger.move(run.id, operation.release, done.attempt, operation.attempt):
            return False
        before, now = (run.counts(operation.release, each.attempt) for each in (done, operation))
        await asyncio.to_thread(before.replace, now)
        return True

    async def _padded(self, job: Job, training: Training) -> None:
        """Make a step take a public time, where the party's file sets one: a whole multiple of `step_seconds`.

        A step's true duration tells how many units its secret sample has.
        """
        public = self._config.policy.step_seconds
        if public is None or not job.stays:
            return
        if training.seconds > public:
            log.warning(
                "%s took longer than [policy] step_seconds = %g, which tells something of its sample; allow more.",
                training.release,
                public,
            )
        await self._pause(-training.seconds % public)

    async def _over(self, run: Run, operation: Operation) -> None:
        """Remove what is kept of the steps before a trained one, and of earlier attempts' sums of that step."""
        await asyncio.to_thread(run.drop_before, operation)
        whole, step = whole_of(operation.release), number_of(operation.release) or 0

        def earlier(name: str) -> bool:
            number = number_of(name)
            return number is not None and number < step and whole_of(name) == whole

        self._answers.forget(run.id, lambda name: earlier(name) or name == operation.release)
        self._sums.forget(run.id, earlier)

    async def _trained(self, run: Run, training: Training, job: Job, charge: Charge) -> None:
        """Run the job, and record in the ledger what it read, before anything of it counts.

        Where the accounts that share records with this one have nothing left to spend, the job is done without text.
        Only the party's log says so, because whether a record is in two shards is a fact about the record.

        A step whose process read the shard for an earlier step reads nothing and leaves no census: the earlier step's
        was taken, or its process no longer exists. Work that opens no shard leaves none either. Raises `Refusal` as
        `Training.run` does.
        """
        if not job.work.opens:
            await training.run(job, self._turn, charge, party=self._config.name)
            return
        may = partial(self._ledger.afford, run.id, partial(affordable, run.terms), release=charge_of(job).name)
        if await may():
            with_text = await training.run(job, self._turn, charge, party=self._config.name)
            if not with_text or (await self._noted(job) and await may()):
                return
        log.error(
            "%s in run %s is trained without this party's text: accounts that share its records have nothing left to "
            "spend (party budget), or what was read could not be noted.",
            training.release,
            run.id,
        )
        await training.without_text(job, self._turn, charge, party=self._config.name)
        await may()  # so that this charge costs those accounts nothing

    async def _noted(self, job: Job) -> bool:
        """Whether the ledger now has what a job read, so that its result may be used."""
        census = Path(job.census)
        if not census.exists() or not census.stat().st_size:
            return job.stays or census.exists()
        try:
            shared = await self._ledger.record(census)
        except (PartyError, OSError, sqlite3.Error) as error:
            log.error("what was read is not in the ledger: %s", error)
            return False
        if shared:
            known = ", ".join(shared)
            log.warning("%s shares records with accounts that were charged here: %s", self._config.lineage, known)
        return True

    async def _charge(self, run: Run, operation: Operation, release: plan_pb2.Release) -> str:
        """Charge a training in the ledger before the shard is opened for it; returns its noise key.

        A training that is begun again after a kill has its first noise key and is not charged again; `begin` says when.
        """
        key = await self._ledger.reserve(
            run.id,
            release.name,
            event_of(release),
            attempt=operation.attempt,
            most=times(release, run.terms),
            request=operation.training,
        )
        await self._metrics.refresh(self._ledger)
        if run.terms.privacy.insecure_reproducible_noise:
            key = insecure_key(run.terms.seed, self._config.name, release.name)
        return key.hex()
