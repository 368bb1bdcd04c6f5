"""The gRPC node of one party: it admits or refuses, has its text counted, and answers with what is bounded and noised.

The event loop does no work on data: SQLite has its own thread, noise is drawn in a thread, training is a subprocess.
Nothing here imports torch.
"""

import asyncio
import contextlib
import logging
import shutil
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from party.admission.admit import admit, affordable, event_of, times
from party.admission.company import admit_peers
from party.admission.limits import Limits, Quieter
from party.admission.protection import admit_unit, of_policy
from party.config import SIZE_FACT, PartyConfig, located, split_address
from party.console.checking import Room, fits
from party.errors import PartyError
from party.ledger.attesting import attestation, described
from party.ledger.ledger import Ledger
from party.node.draining import SENDING, Drain
from party.node.guarding import Context, GuardedHealth, guarded, guarded_stream
from party.node.metrics import Metrics, MetricsServer
from party.node.serving import MORE_CALLS, SERVER_OPTIONS, AsTheyCome, check_free, listen, no_port, own_identity
from party.node.traces import located_traces, tracer_of
from party.node.training import Training
from party.releasing.answers import Answers
from party.releasing.secure_sums import Sums
from party.store.artefacts import PARAMETERS, Artefacts, Intake, drop_parameters
from party.store.disk import is_full
from party.store.keys import insecure_key
from party.store.runs import NAME, Operation, Run, Runs, check_run_id, private_folder, remove_parts
from party.tasks.job import Job
from party.tasks.operations import charge_of, check_step, is_claimed, training_digest
from party.tasks.task import TRAINS, Asks, check_fit, job_of
from party.tasks.worker import Charge, Workers
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2, party_pb2_grpc, plan_pb2
from protos.digest import operation_digest, plan_hash
from protos.framing import framed
from protos.identity.certificates import IdentityError, Role, Use, check_certificate
from protos.identity.credentials import shows
from protos.identity.identity import Identity
from protos.identity.tls import caller
from protos.refusal import Reason, Refusal
from protos.steps import is_step, number_of, whole_of
from protos.telemetry import tracing

log = logging.getLogger("conclave.party")

HEARTBEAT: Final = 1.0
GRACE: Final = 2.0
SOFTWARE_VERSION: Final = version("conclave-distill")
"""Looked up once: that reads and parses a file, which takes a millisecond."""


class Node(party_pb2_grpc.PartyServicer):
    """One party behind its port. `start` makes one; `stop` ends it and everything it started."""

    def __init__(
        self,
        config: PartyConfig,
        home: Path,
        ledger: Ledger,
        identity: Identity,
        token: str,
        training_log: Path | None = None,
    ) -> None:
        self.config = config
        self.identity = identity
        self.home = home
        self.port = 0
        self._ledger = ledger
        self._token = token
        self._runs = Runs(home / "runs")
        self._room = Room.of(home, frank=config.policy.simulation)
        self._intake = Intake(config.limits, self._room.disk // 2)
        self.limits = Limits(config.name, config.limits)
        self.quieter = Quieter()
        self._answers = Answers(config.name, ledger, self.limits)
        self._sums = Sums(identity, ledger, self._answers)
        self._workers = Workers(training_log)
        self._drain = Drain(config.name)
        self._metrics = Metrics()
        self._metrics_server: MetricsServer | None = None
        self.tracer: tracing.Tracer | None = None
        self._open: dict[str, Run] = {}
        self._charged: set[tuple[str, str]] = set()
        self._trainings: dict[tuple[str, str], Training] = {}
        self._turn = asyncio.Semaphore(1)
        self._pause = asyncio.sleep
        self._health = GuardedHealth(self)
        self._server: grpc.aio.Server | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The party's name."""
        return self.config.name

    @property
    def tls(self) -> bool:
        """Whether this node speaks mutual TLS alone."""
        return not self.identity.self_made and not self._token

    @property
    def metrics_port(self) -> int:
        """Where the metrics are served; 0 when they are not."""
        return 0 if self._metrics_server is None else self._metrics_server.port

    @property
    def address(self) -> str:
        """Host and port where this node listens."""
        host, _ = split_address(self.config.listen)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def authenticate(self, context: Context) -> None:
        """Raises `Refusal` (AUTHENTICATION) unless the call comes from this federation's coordinator.

        That is whoever holds a coordinator's certificate of the pinned authority, neither expired nor revoked; at a
        node that a launcher started, whoever knows its token.
        """
        if not shows(context.invocation_metadata() or (), self._token):
            raise Refusal(
                Reason.AUTHENTICATION,
                f"party {self.config.name} wants the token of whoever started it; none, or "
                "another, came with this call.",
            )
        if not self.tls:
            return
        certificate = caller(context)
        if certificate is None:
            raise Refusal(Reason.AUTHENTICATION, f"party {self.name} answers a coordinator that shows its certificate.")
        own = self.identity
        try:
            check_certificate(
                certificate, authority=own.authority, role=Role.COORDINATOR, use=Use.TRANSPORT, revoked=own.revoked
            )
        except IdentityError as error:
            raise Refusal(Reason.AUTHENTICATION, f"party {self.name} does not answer this caller: {error}") from None

    def refused(self, reason: Reason) -> None:
        """Count a refusal."""
        self._metrics.refused(reason)

    @guarded
    async def Describe(self, request: party_pb2.DescribeRequest, context: Context) -> party_pb2.DescribeResponse:  # noqa: N802
        policy = self.config.policy
        facts: dict[str, str] = {}
        if SIZE_FACT in policy.tell and policy.declared_size is not None:
            facts[SIZE_FACT] = str(round(policy.declared_size / 1000) * 1000)
        return party_pb2.DescribeResponse(
            name=self.config.name,
            protocol_version=PROTOCOL_VERSION,
            software_version=SOFTWARE_VERSION,
            trains=TRAINS,
            facts=facts,
            clock=time.time(),
            identity=described(self.identity, request.nonce),
        )

    @guarded
    async def Join(self, request: party_pb2.JoinRequest, context: Context) -> party_pb2.JoinResponse:  # noqa: N802
        self._drain.check()
        name = self.config.name
        if request.protocol_version != PROTOCOL_VERSION:
            older = "an older" if request.protocol_version < PROTOCOL_VERSION else "a newer"
            raise Refusal(
                Reason.PROTOCOL,
                f"the coordinator speaks {older} protocol ({request.protocol_version}); party {name} speaks "
                f"{PROTOCOL_VERSION}. Install the same version of Conclave at both ends.",
            )
        check_run_id(request.run.run_id)
        try:
            computed = plan_hash(request.plan)
        except ValueError:
            raise Refusal(Reason.PLAN, "a number in the plan is not finite.") from None
        if computed != request.run.plan_hash:
            raise Refusal(
                Reason.PLAN,
                f"the plan that came has hash {computed.hex()[:12]}, the call says "
                f"{request.run.plan_hash.hex()[:12] or 'none'}; it was changed on its way.",
            )
        terms = request.plan.terms
        await asyncio.to_thread(admit, terms, self.config)
        admit_peers(request.peers, terms, self.config)
        admit_unit(terms, self.config)
        run_id = request.run.run_id
        wanted = affordable(terms)
        if request.check_only:
            await self._ledger.can_pay(wanted)
            if (lacking := fits(request.needs, self._room)) is not None:
                raise Refusal(Reason.STORAGE, lacking)
            return party_pb2.JoinResponse(party=name, protocol_version=PROTOCOL_VERSION)
        if run_id not in (going := [run.id for run in await self._ledger.runs() if run.left_at is None]):
            self.limits.check_runs(len(going))
        await self._ledger.join(run_id, computed, wanted)
        self._open[run_id] = await asyncio.to_thread(
            self._runs.make, run_id, computed, request.plan, list(request.peers)
        )
        log.info("joined run %s", run_id, extra={"event": "joined", "run": run_id})
        await self._count()
        return party_pb2.JoinResponse(party=name, protocol_version=PROTOCOL_VERSION)

    @guarded
    async def Leave(self, request: party_pb2.LeaveRequest, context: Context) -> party_pb2.LeaveResponse:  # noqa: N802
        run_id = request.run.run_id
        check_run_id(run_id)
        bound = await self._ledger.joined(run_id)
        if bound is None:
            return party_pb2.LeaveResponse()
        if bound != request.run.plan_hash:
            raise Refusal(Reason.CONFLICT, f"run {run_id} is bound to another plan here.")
        await self._ledger.leave(run_id)
        self._open.pop(run_id, None)
        await self._cancel([key for key in self._trainings if key[0] == run_id])
        await self._workers.end(run_id)
        self._answers.forget(run_id)
        self._sums.forget(run_id)
        await asyncio.to_thread(self._runs.drop, run_id)
        log.info("left run %s", run_id, extra={"event": "left", "run": run_id})
        await self._count()
        return party_pb2.LeaveResponse()

    @guarded
    async def Attest(self, request: party_pb2.AttestRequest, context: Context) -> party_pb2.AttestResponse:  # noqa: N802
        run = await self._run(request.run)
        charged = await self._ledger.charged(run.id)
        signed = attestation(
            self.identity, run, charged, self._ledger.account, simulation=self.config.policy.simulation
        )
        log.info("attested run %s", run.id, extra={"event": "attested", "run": run.id})
        return party_pb2.AttestResponse(statement=signed)

    @guarded
    async def Provide(  # noqa: N802
        self, requests: AsyncIterator[party_pb2.ProvideRequest], context: Context
    ) -> party_pb2.ProvideResponse:
        self._drain.check()
        parts = aiter(requests)
        first = await anext(parts, None)
        if first is None or first.WhichOneof("part") != "header":
            raise Refusal(Reason.ARTEFACT, "an artefact starts with its header.")
        header = first.header
        run = await self._run(header.run)
        known = await self._intake.take(header, parts, run.folder)
        if header.kind == PARAMETERS and not any(run_id == run.id for run_id, _ in self._trainings):
            await asyncio.to_thread(drop_parameters, run.folder, header.sha256)
        return party_pb2.ProvideResponse(known=known)

    @guarded_stream
    async def Train(  # noqa: N802
        self, request: party_pb2.TrainRequest, context: Context
    ) -> AsyncIterator[party_pb2.TrainProgress]:
        self._drain.check()
        run = await self._run(request.run)
        training = await self._training(run, request)
        if training is None:
            yield party_pb2.TrainProgress(percent=100, seconds=0.0, finished=True)
            return
        assert training.task is not None
        while not training.task.done():
            yield party_pb2.TrainProgress(percent=training.percent, seconds=training.seconds)
            await asyncio.wait([training.task], timeout=HEARTBEAT)
        if training.task.cancelled():
            self._drain.check()
            raise Refusal(Reason.NOT_JOINED, f"run {run.id} ended while it trained.")
        training.task.result()
        yield party_pb2.TrainProgress(percent=100, seconds=training.seconds, finished=True)

    @guarded_stream
    async def Answer(  # type: ignore[override]  # noqa: N802
        self, requests: AsyncIterator[party_pb2.AnswerRequest], context: Context
    ) -> AsyncIterator[bytes]:
        """Yields messages that are serialised already; `serve` registers it so."""
        async with contextlib.aclosing(self._drain.each(aiter(requests))) as asked:
            async for request in asked:
                with self._drain.block():
                    run = await self._run(request.run)
                    begun = time.monotonic()
                    with tracing.span("block", run=run.id, release=request.release, batch=request.batch) as made:
                        block = await self._answers.block(run, request)
                        made.set({"bytes": block.rows.nbytes, "made": block.made})
                    if block.made:
                        self._metrics.made(time.monotonic() - begun)
                    size = 0
                    for message in framed(request.batch, block.rows):
                        yield message
                        size += len(message)
                    await self._ledger.answered(run.id, request.release)
                    await self._told(run, request, size, made=block.made)

    @guarded_stream
    async def SecureSum(  # noqa: N802
        self, request: party_pb2.SecureSumRequest, context: Context
    ) -> AsyncIterator[party_pb2.SecureSumResponse]:
        if request.round == party_pb2.SUM_ROUND_ADVERTISE:
            self._drain.check()
        run = await self._run(request.run)
        what = {"release": request.release, "attempt": request.attempt, "round": tracing.round_name(request.round)}
        tracing.current().set(what)
        with self._drain.block():
            async with contextlib.aclosing(self._sums.round(run, request)) as said:
                async for message in said:
                    yield party_pb2.SecureSumResponse(message=message)
        if request.round == party_pb2.SUM_ROUND_MASK:
            log.info(
                "sent the masked vector of %s in run %s", request.release, run.id,
                extra={"event": "masked", "run": run.id, "release": request.release, "attempt": request.attempt},
            )  # fmt: skip
            await self._count()
        elif request.round == party_pb2.SUM_ROUND_REFUND:
            await self._count()

    async def _told(self, run: Run, request: party_pb2.AnswerRequest, size: int, *, made: bool) -> None:
        """Count a block that was sent."""
        what = {"event": "answered", "run": run.id, "release": request.release, "batch": request.batch, "bytes": size}
        log.info("sent batch %d of %s in run %s", request.batch, request.release, run.id, extra=what)
        self._metrics.sent(size, made=made)
        if (run.id, request.release) not in self._charged:
            self._charged.add((run.id, request.release))
            await self._count()

    async def _count(self) -> None:
        """Bring the figures of budget and runs up to date."""
        if self._metrics_server is not None:
            self._metrics.budget(await self._ledger.budget())

    async def _run(self, context: party_pb2.RunContext) -> Run:
        """The run a call is about. Raises `Refusal` when it is not joined or bound to another plan."""
        check_run_id(context.run_id)
        run = self._open.get(context.run_id)
        if run is None:
            bound = await self._ledger.joined(context.run_id)
            run = None if bound is None else await asyncio.to_thread(self._runs.find, context.run_id, bound)
            if run is None:
                raise Refusal(
                    Reason.NOT_JOINED, f"party {self.config.name} is not in run {context.run_id}, or it ended here."
                )
            self._open[run.id] = run
        if run.plan_hash != context.plan_hash:
            raise Refusal(
                Reason.PLAN,
                f"run {run.id} is bound to plan {run.plan_hash.hex()[:12]} here, the call says "
                f"{context.plan_hash.hex()[:12] or 'none'}.",
            )
        return run

    async def _training(self, run: Run, request: party_pb2.TrainRequest) -> Training | None:
        """The training that a request asks for, begun if it has not been; None when it was done before.

        Every training is charged before the shard is opened for it, and one charge is one request. What a killed node
        left of a training is nothing, and the same request begins it again under the noise key that the ledger keeps,
        not charged again, provided that no result is stored and nothing was ever sent of it. That leaks nothing: all
        that leaves of a training leaves through its answers, so nobody has seen anything of the one that was lost, and
        what will be seen is a single run of the charged mechanism under a single draw of its noise. Once something was
        sent the result must be the very one that was answered from, so there is no other.

        Of a step every attempt has a result of its own, which takes the place of the last attempt's, until something of
        that very attempt was sent; and the steps before the last one that was trained are over.
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
        going = self._trainings.get(key)
        if going is not None and going.digest != digest:
            raise Refusal(
                Reason.CONFLICT, f"operation {request.operation_id} stands for something else already; use a new id."
            )
        if going is not None:
            return going
        done = run.operation(release.name)
        if done is not None and (done.id, done.digest) == (request.operation_id, digest):
            return None
        rivals = [
            other
            for other, each in self._trainings.items()
            if other[0] == run.id and whole_of(each.release) == whole_of(release.name)
        ]
        replaced = done is not None and is_step(release) and asks.attempt > done.attempt
        if (done is not None and not replaced) or rivals:
            raise Refusal(
                Reason.CONFLICT,
                f"release {release.name} is trained by operation {rivals[0][1] if rivals or not done else done.id} in "
                "this run; one release is one result.",
            )
        if is_step(release):
            check_step(run, release, asks.attempt)
        if claimed:
            raise Refusal(
                Reason.CONFLICT,
                f"release {release.name} was answered from already, and what it was answered from is gone; start a "
                "new run.",
            )
        job = job_of(request, run, self.config, Artefacts(run.folder), self.home, self._ledger.census_key)
        training = Training(digest, release.name, self._workers, run.id)
        self._trainings[key] = training
        kept = Operation(request.operation_id, digest, release.name, asks.attempt, training_digest(request))
        training.task = asyncio.create_task(self._train(run, kept, training, job))
        training.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return training

    async def _train(self, run: Run, operation: Operation, training: Training, job: Job) -> None:
        what: dict[str, Any] = {"run": run.id, "release": training.release, "operation": operation.id}
        try:
            with self._metrics.training(), tracing.span("training", run=run.id, release=training.release):
                await asyncio.to_thread(check_fit, job)
                if not await self._serves_again(run, operation):
                    await self._trained(run, training, job, partial(self._charge, run, operation, charge_of(job)))
                await self._padded(job, training)  # before anybody can see, by asking for more, that it is done
                await asyncio.to_thread(run.keep_operation, operation)
                if number_of(operation.release) is not None:
                    await self._over(run, operation)
        except BaseException as error:
            if job.stays:  # what it read may not be in the ledger: the next step reads it again
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
            self._trainings.pop((run.id, operation.id), None)

    async def _serves_again(self, run: Run, operation: Operation) -> bool:
        """Whether what was trained for an earlier attempt at a step is this one's too, with its charge.

        So it is where nothing of the earlier one left and the request is the same: the text is not opened again, and
        the sample that was drawn is seen by nobody else.
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
        """Have a step take a public time, where the party's file says which: a whole number of `step_seconds`.

        What a step takes beside it tells how many units its secret sample has.
        """
        public = self.config.policy.step_seconds
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
        """Drop what is kept of the steps before one that was trained, and of its own earlier attempts' sums."""
        await asyncio.to_thread(run.drop_before, operation)
        whole, step = whole_of(operation.release), number_of(operation.release) or 0

        def earlier(name: str) -> bool:
            number = number_of(name)
            return number is not None and number < step and whole_of(name) == whole

        self._answers.forget(run.id, lambda name: earlier(name) or name == operation.release)
        self._sums.forget(run.id, earlier)

    async def _trained(self, run: Run, training: Training, job: Job, charge: Charge) -> None:
        """Have the job done, and what it read in the ledger, before anything of it counts.

        Where the accounts that share records with this one have no more to spend, the job is done without text: the
        party's log says so, and nobody else, for whether a record is in two shards is a fact about the record.

        A step whose process read the shard for an earlier one reads nothing, and leaves no census: that of the earlier
        one was taken, or else its process is no more. Raises `Refusal` like `Training.run`.
        """
        may = partial(self._ledger.afford, run.id, partial(affordable, run.terms), release=charge_of(job).name)
        if await may():
            with_text = await training.run(job, self._turn, charge, party=self.name)
            if not with_text or (await self._noted(job) and await may()):
                return
        log.error(
            "%s in run %s is trained without this party's text: accounts that share its records have nothing left to "
            "spend (party budget), or what was read could not be noted.",
            training.release,
            run.id,
        )
        await training.without_text(job, self._turn, charge, party=self.name)
        await may()  # so that what was charged now costs those accounts nothing

    async def _noted(self, job: Job) -> bool:
        """Whether what a job read is in the ledger now, so that something may come of it."""
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
            log.warning("%s shares records with accounts that were charged here: %s", self.config.lineage, known)
        return True

    async def _charge(self, run: Run, operation: Operation, release: plan_pb2.Release) -> str:
        """Have what is to be trained in the ledger, before the shard is opened for it; its noise key.

        A training begun again, after a kill, has the key of its first time and is not charged again; `_training` says
        when.
        """
        key = await self._ledger.reserve(
            run.id,
            release.name,
            event_of(release),
            attempt=operation.attempt,
            most=times(release, run.terms),
            request=operation.training,
        )
        await self._count()
        if run.terms.privacy.insecure_reproducible_noise:
            key = insecure_key(run.terms.seed, self.config.name, release.name)
        return key.hex()

    async def _cancel(self, keys: list[tuple[str, str]]) -> None:
        tasks = [training.task for key in keys if (training := self._trainings.get(key)) and training.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(self) -> None:
        """Listen. Raises `PartyError` when the port cannot be had."""
        host, port = split_address(self.config.listen)
        check_free(self.config.name, host, port)
        if self.config.metrics is not None:
            self._metrics_server = MetricsServer(self._metrics, self.name, self.config.metrics.listen)
            await self._count()
        self.tracer = await asyncio.to_thread(tracer_of, self.config)
        server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=MORE_CALLS * self.config.limits.calls)
        service = party_pb2.DESCRIPTOR.services_by_name["Party"].full_name
        party_pb2_grpc.add_PartyServicer_to_server(self, AsTheyCome(server))  # type: ignore[arg-type]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, AsTheyCome(server))  # type: ignore[arg-type]
        try:
            self.port = listen(server, host, port, self.identity if self.tls else None)
        except RuntimeError:
            raise PartyError(no_port(self.config.name, host, port, "it is in use")) from None
        for name in ("", service):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        self._server = server

    async def drain(self) -> None:
        """Take no more work and return when there is none in hand.

        Blocks in the making are finished and sent. Training gets the party file's `drain_seconds` to end, and is begun
        again when it is next asked for. `stop` comes after this.
        """
        patience = self.config.drain_seconds
        log.info("takes no more work, and ends when what it has is done", extra={"event": "draining"})
        self._drain.begin()
        await self._health.enter_graceful_shutdown()
        trainings = [training.task for training in self._trainings.values() if training.task]
        async with asyncio.TaskGroup() as waiting:
            waiting.create_task(_within(SENDING, self._drain.empty()))
            if trainings:
                waiting.create_task(_within(patience, asyncio.wait(trainings)))

    async def stop(self, grace: float = GRACE) -> None:
        """End calls, training and the ledger, in this order of patience: `grace` seconds, none, what is being written.

        Called again, also while `drain` waits, it is the shorter patience that counts.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace))
        elif self._server is not None:
            await self._server.stop(grace)
        await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> None:
        self._drain.begin()
        await self._health.enter_graceful_shutdown()
        await self._cancel(list(self._trainings))
        await self._workers.end_all()
        if self._server is not None:
            await self._server.stop(grace)
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.stop)
        if self.tracer is not None:
            await asyncio.to_thread(self.tracer.close)
        await self._ledger.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()


async def start(
    config: PartyConfig, *, token: str = "", issued: tuple[bytes, bytes] | None = None, base: Path, quiet: bool = False
) -> Node:
    """Start a party's node and return it listening.

    base: where the party file is; relative paths in it start there. token: what callers must show; a node with a token
    speaks plain text, and is a launcher's. issued: certificates and private keys (PEM) that a launcher gave it.
    quiet: training writes what it has to say to `training.log` in the party's folder, not to standard error.
    Raises `PartyError` (port in use, folder held by another node), `SettingsError` (no such source).
    """
    home = config.home(base)
    traces = located_traces(config.traces, base)
    config = config.model_copy(update={"shard": located(config.shard, base), "traces": traces})
    try:
        private_folder(home)
    except OSError as error:
        raise PartyError(f"party {config.name} cannot keep anything in {home}: {error.strerror}.") from None
    try:
        identity = own_identity(config, home, base, token, issued)
        return await _started(config, home, identity, token, home / "training.log" if quiet else None)
    except (OSError, sqlite3.Error) as error:
        if not is_full(error):
            raise
        raise PartyError(
            f"party {config.name} cannot write in {home}: the disk is full or read-only. Make room, or mount it for "
            "writing, and start the node again."
        ) from None


async def _started(config: PartyConfig, home: Path, identity: Identity, token: str, training_log: Path | None) -> Node:
    policy = config.policy
    ledger = await Ledger.open(
        home,
        config.lineage,
        epsilon=policy.epsilon,
        delta=policy.delta,
        simulation=policy.simulation,
        protection=of_policy(policy),
    )
    try:
        remove_parts(home)
        shutil.rmtree(home / "artefacts", ignore_errors=True)  # files that no run would take along when it ends
        Runs(home / "runs").tidy([run.id for run in await ledger.runs() if run.left_at is not None])
        node = Node(config, home, ledger, identity, token, training_log)
    except BaseException:
        await ledger.close()
        raise
    try:
        await node.serve()
    except BaseException:
        await node.stop()
        raise
    return node


async def _within(seconds: float, waiting: Awaitable[object]) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(waiting, seconds)
