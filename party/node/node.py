"""The verbs of one party over gRPC: it admits or refuses runs, has its text processed, and answers with noisy sums.

The event loop does no work on data: SQLite has its own thread, noise is drawn in a thread, training is a subprocess.
Nothing here imports torch.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

from party.admission.limits import Limits, Quieter
from party.admission.needs import Capacity
from party.config import SIZE_FACT, PartyConfig
from party.ledger.attesting import attestation, described
from party.ledger.ledger import Ledger
from party.node.draining import Drain
from party.node.guarding import Context, guarded, guarded_stream
from party.node.identity import check_caller
from party.node.joined import JoinedRuns
from party.node.metrics import Metrics
from party.node.trainings import Trainings
from party.releasing.answers import Answers
from party.releasing.secure_sums import Sums
from party.store.artefacts import PARAMETERS, Intake, drop_parameters
from party.store.runs import Run
from party.store.shelf import Shelf
from party.tasks.machine import Machine
from party.tasks.task import TRAINS
from party.tasks.worker import Trains, Workers
from protos import PROTOCOL_VERSION, software_version
from protos.conclave.v1 import party_pb2, party_pb2_grpc
from protos.console.checklist import size as shown_size
from protos.console.mistakes import printable
from protos.framing import framed
from protos.identity.certificates import subject_of
from protos.identity.identity import Identity
from protos.identity.tls import caller
from protos.refusal import Reason, Refusal
from protos.telemetry import tracing

log = logging.getLogger("conclave.party")


class Node(party_pb2_grpc.PartyServicer):
    """The verbs of one party. `party.node.lifecycle` serves it on a port, drains it and ends what it started."""

    def __init__(
        self,
        config: PartyConfig,
        home: Path,
        ledger: Ledger,
        identity: Identity,
        token: str,
        machine: Machine,
        training_log: Path | None = None,
        nursery: Path | None = None,
        workers: Trains | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        """workers: what does its jobs; None for processes of its own. shelf: as of `Intake`."""
        self.config = config
        self.machine = machine
        self.identity = identity
        self.ledger = ledger
        self.limits = Limits(config.name, config.limits)
        self.quieter = Quieter()
        self.drain = Drain(config.name)
        self.metrics = Metrics()
        self.workers: Trains = workers or Workers(training_log, config.compute.threads, nursery)
        self.tracer: tracing.Tracer | None = None
        self._token = token
        capacity = Capacity.of(home, frank=config.policy.simulation)
        self._runs = JoinedRuns(config, home / "runs", ledger, self.limits, capacity)
        self._intake = Intake(config.limits, capacity.disk // 2, shelf)
        self._answers = Answers(config.name, ledger, self.limits)
        self._sums = Sums(identity, ledger, self._answers)
        self.trainings = Trainings(
            config, home, ledger, self.workers, self._answers, self._sums, self.drain, self.metrics, machine
        )
        self._charged: set[tuple[str, str]] = set()

    @property
    def name(self) -> str:
        """The party's name."""
        return self.config.name

    def authenticate(self, context: Context) -> None:
        """Raises `Refusal` (AUTHENTICATION) unless the call comes from this federation's coordinator."""
        check_caller(self.name, self.identity, self._token, context)

    def refused(self, reason: Reason) -> None:
        """Count a refusal."""
        self.metrics.refused(reason)

    @guarded
    async def Describe(self, request: party_pb2.DescribeRequest, context: Context) -> party_pb2.DescribeResponse:  # noqa: N802
        policy = self.config.policy
        facts: dict[str, str] = {}
        if SIZE_FACT in policy.tell and policy.declared_size is not None:
            facts[SIZE_FACT] = str(round(policy.declared_size / 1000) * 1000)
        return party_pb2.DescribeResponse(
            name=self.name,
            protocol_version=PROTOCOL_VERSION,
            software_version=software_version(),
            trains=TRAINS,
            facts=facts,
            clock=time.time(),
            identity=described(self.identity, request.nonce),
        )

    @guarded
    async def Join(self, request: party_pb2.JoinRequest, context: Context) -> party_pb2.JoinResponse:  # noqa: N802
        self.drain.check()
        await self._runs.check(request)
        if request.check_only:
            await self._runs.can_join(request)
        else:
            await self._runs.join(request)
            _log_joined(request, context)
            await self.metrics.refresh(self.ledger)
        computed = self.machine.computed(request.plan.terms, spread=self.config.cluster is not None)
        return party_pb2.JoinResponse(party=self.name, protocol_version=PROTOCOL_VERSION, **computed.fields)

    @guarded
    async def Leave(self, request: party_pb2.LeaveRequest, context: Context) -> party_pb2.LeaveResponse:  # noqa: N802
        run_id = request.run.run_id
        if await self._runs.leave(request.run):
            await self.trainings.cancel(run_id)
            await self.workers.end(run_id)
            self._answers.forget(run_id)
            self._sums.forget(run_id)
            await self._runs.drop(run_id)
            await self.metrics.refresh(self.ledger)
        return party_pb2.LeaveResponse()

    @guarded
    async def Attest(self, request: party_pb2.AttestRequest, context: Context) -> party_pb2.AttestResponse:  # noqa: N802
        run = await self._runs.find(request.run)
        charged = await self.ledger.charged(run.id)
        signed = attestation(self.identity, run, charged, self.ledger.account, simulation=self.config.policy.simulation)
        log.info("attested run %s", run.id, extra={"event": "attested", "run": run.id})
        return party_pb2.AttestResponse(statement=signed)

    @guarded
    async def Provide(  # noqa: N802
        self, requests: AsyncIterator[party_pb2.ProvideRequest], context: Context
    ) -> party_pb2.ProvideResponse:
        self.drain.check()
        parts = aiter(requests)
        first = await anext(parts, None)
        if first is None or first.WhichOneof("part") != "header":
            raise Refusal(Reason.ARTEFACT, "an artefact starts with its header.")
        header = first.header
        run = await self._runs.find(header.run)
        known = await self._intake.take(header, parts, run.folder)
        if header.kind == PARAMETERS and not self.trainings.any_of(run.id):
            await asyncio.to_thread(drop_parameters, run.folder, header.sha256)
        return party_pb2.ProvideResponse(known=known)

    @guarded_stream
    async def Train(  # noqa: N802
        self, request: party_pb2.TrainRequest, context: Context
    ) -> AsyncIterator[party_pb2.TrainProgress]:
        self.drain.check()
        run = await self._runs.find(request.run)
        training = await self.trainings.begin(run, request)
        if training is not None:
            async with contextlib.aclosing(self.trainings.watched(run, training)) as said:
                async for progress in said:
                    yield progress
        seconds = 0.0 if training is None else training.seconds
        yield party_pb2.TrainProgress(percent=100, seconds=seconds, finished=True)

    @guarded_stream
    async def Answer(  # type: ignore[override]  # noqa: N802
        self, requests: AsyncIterator[party_pb2.AnswerRequest], context: Context
    ) -> AsyncIterator[bytes]:
        """Yield messages that are already serialised; `serve` registers it so."""
        async with contextlib.aclosing(self.drain.each(aiter(requests))) as asked:
            async for request in asked:
                with self.drain.block():
                    run = await self._runs.find(request.run)
                    begun = time.monotonic()
                    with tracing.span("block", run=run.id, release=request.release, batch=request.batch) as made:
                        block = await self._answers.block(run, request)
                        made.set({"bytes": block.rows.nbytes, "made": block.made})
                    if block.made:
                        self.metrics.made(time.monotonic() - begun)
                    size = 0
                    for message in framed(request.batch, block.rows):
                        yield message
                        size += len(message)
                    await self.ledger.answered(run.id, request.release)
                    await self._told(run, request, size, made=block.made)

    @guarded_stream
    async def SecureSum(  # noqa: N802
        self, request: party_pb2.SecureSumRequest, context: Context
    ) -> AsyncIterator[party_pb2.SecureSumResponse]:
        if request.round == party_pb2.SUM_ROUND_ADVERTISE:
            self.drain.check()
        run = await self._runs.find(request.run)
        what = {"release": request.release, "attempt": request.attempt, "round": tracing.round_name(request.round)}
        tracing.current().set(what)
        with self.drain.block():
            async with contextlib.aclosing(self._sums.round(run, request)) as said:
                async for message in said:
                    yield party_pb2.SecureSumResponse(message=message)
        if request.round == party_pb2.SUM_ROUND_MASK:
            log.info(
                "sent the masked vector of %s in run %s", request.release, run.id,
                extra={"event": "masked", "run": run.id, "release": request.release, "attempt": request.attempt},
            )  # fmt: skip
        if request.round in (party_pb2.SUM_ROUND_MASK, party_pb2.SUM_ROUND_REFUND):
            await self.metrics.refresh(self.ledger)

    async def _told(self, run: Run, request: party_pb2.AnswerRequest, size: int, *, made: bool) -> None:
        """Count a block that was sent."""
        what = {"event": "answered", "run": run.id, "release": request.release, "batch": request.batch, "bytes": size}
        sent = (request.batch, request.release, run.id, shown_size(size))
        log.info("sent batch %d of %s in run %s: a noisy sum of %s", *sent, extra=what)
        self.metrics.sent(size, made=made)
        if (run.id, request.release) not in self._charged:
            self._charged.add((run.id, request.release))
            await self.metrics.refresh(self.ledger)


def _log_joined(request: party_pb2.JoinRequest, context: Context) -> None:
    """Tell the administrator who asked for what: the public terms, nothing of the party's own text."""
    terms, run = request.plan.terms, request.run.run_id
    certificate = caller(context)
    subject = None if certificate is None else subject_of(certificate)
    who = "a coordinator without a certificate" if subject is None else f"coordinator {subject[1]}"
    privacy = terms.privacy
    price = f"epsilon {privacy.epsilon:g} at delta {privacy.delta:g}" if privacy.epsilon else "no guarantee"
    asked = ", ".join(release.name for release in terms.releases)
    log.info(
        "joined run %s of %s: %s", run, who, printable(f"{terms.recipe}, {price}, releases {asked}"),
        extra={"event": "joined", "run": run, "epsilon": privacy.epsilon},
    )  # fmt: skip
