"""The gRPC node of one party: it admits or refuses, has its text counted, and answers with what is bounded and noised.

The event loop does no work on data: SQLite has its own thread, noise is drawn in a thread, training is a subprocess.
Nothing here imports torch.
"""

import asyncio
import functools
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from party.answers import Answers
from party.artefacts import Artefacts
from party.config import SIZE_FACT, PartyConfig, located, split_address
from party.errors import PartyError
from party.job import Job, Teaching, release_of
from party.ledger import Ledger
from party.policy import admit, event_of
from party.runs import NAME, Operation, Run, Runs, check_run_id, private_folder
from party.tasks import TRAINS, Asks, check_fit, insecure_key, job_of
from party.training import Training
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2, party_pb2_grpc
from protos.credentials import shows
from protos.digest import operation_digest, plan_hash
from protos.framing import framed
from protos.refusal import Reason, Refusal, abort

log = logging.getLogger("conclave.party")

HEARTBEAT: Final = 1.0
GRACE: Final = 2.0
SERVER_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
)

Asked = TypeVar("Asked")
Said = TypeVar("Said")
Context = Any


def _guarded(verb: Callable[..., Awaitable[Said]]) -> Callable[..., Awaitable[Said]]:
    """Asks for the token first; turns refusals into statuses; lets no other failure say more than that it happened."""

    @functools.wraps(verb)
    async def guarded(node: "Node", request: Any, context: Context) -> Said:
        try:
            node.authenticate(context)
            return await verb(node, request, context)
        except Refusal as refusal:
            await abort(context, refusal)
        except grpc.aio.AbortError:
            raise
        except Exception:
            log.exception("%s failed", verb.__name__)
            await context.abort(grpc.StatusCode.INTERNAL, node.failed(verb.__name__))
        raise AssertionError("unreachable")

    return guarded


def _guarded_stream(verb: Callable[..., AsyncIterator[Said]]) -> Callable[..., AsyncIterator[Said]]:
    """The same for a verb that answers with a stream."""

    @functools.wraps(verb)
    async def guarded(node: "Node", request: Any, context: Context) -> AsyncIterator[Said]:
        try:
            node.authenticate(context)
            async for message in verb(node, request, context):
                yield message
        except Refusal as refusal:
            await abort(context, refusal)
        except grpc.aio.AbortError:
            raise
        except Exception:
            log.exception("%s failed", verb.__name__)
            await context.abort(grpc.StatusCode.INTERNAL, node.failed(verb.__name__))

    return guarded


class Node(party_pb2_grpc.PartyServicer):
    """One party behind its port. `start` makes one; `stop` ends it and everything it started."""

    def __init__(self, config: PartyConfig, home: Path, ledger: Ledger, token: str) -> None:
        self.config = config
        self.home = home
        self.port = 0
        self._ledger = ledger
        self._token = token
        self._runs = Runs(home / "runs")
        self._artefacts = Artefacts(home / "artefacts")
        self._answers = Answers(config.name, ledger)
        self._open: dict[str, Run] = {}
        self._trainings: dict[tuple[str, str], Training] = {}
        self._turn = asyncio.Semaphore(1)
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._stopped = False

    @property
    def address(self) -> str:
        """Host and port where this node listens."""
        host, _ = split_address(self.config.listen)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def authenticate(self, context: Context) -> None:
        """Raises `Refusal` (AUTHENTICATION) unless the call carries this node's token."""
        if not shows(context.invocation_metadata() or (), self._token):
            raise Refusal(
                Reason.AUTHENTICATION,
                f"party {self.config.name} wants the token of whoever started it; none, or "
                "another, came with this call.",
            )

    def failed(self, verb: str) -> str:
        """What a caller hears of a bug or a full disk here."""
        return f"party {self.config.name} failed in {verb}; its own log says why."

    @_guarded
    async def Describe(self, request: party_pb2.DescribeRequest, context: Context) -> party_pb2.DescribeResponse:  # noqa: N802
        policy = self.config.policy
        facts: dict[str, str] = {}
        if SIZE_FACT in policy.tell and policy.declared_size is not None:
            facts[SIZE_FACT] = str(round(policy.declared_size / 1000) * 1000)
        return party_pb2.DescribeResponse(
            name=self.config.name,
            protocol_version=PROTOCOL_VERSION,
            software_version=version("conclave-distill"),
            trains=TRAINS,
            facts=facts,
        )

    @_guarded
    async def Join(self, request: party_pb2.JoinRequest, context: Context) -> party_pb2.JoinResponse:  # noqa: N802
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
        run_id = request.run.run_id
        wanted = [(release.name, event_of(release)) for release in terms.releases]
        await self._ledger.join(run_id, computed, wanted)
        self._open[run_id] = await asyncio.to_thread(self._runs.make, run_id, computed, request.plan)
        log.info("joined run %s", run_id)
        return party_pb2.JoinResponse(party=name, protocol_version=PROTOCOL_VERSION)

    @_guarded
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
        self._answers.forget(run_id)
        await asyncio.to_thread(self._runs.drop, run_id)
        log.info("left run %s", run_id)
        return party_pb2.LeaveResponse()

    @_guarded
    async def Provide(  # noqa: N802
        self, requests: AsyncIterator[party_pb2.ProvideRequest], context: Context
    ) -> party_pb2.ProvideResponse:
        parts = aiter(requests)
        first = await anext(parts, None)
        if first is None or first.WhichOneof("part") != "header":
            raise Refusal(Reason.ARTEFACT, "an artefact starts with its header.")
        header = first.header
        await self._run(header.run)
        return party_pb2.ProvideResponse(known=await self._artefacts.take(header, parts))

    @_guarded_stream
    async def Train(  # noqa: N802
        self, request: party_pb2.TrainRequest, context: Context
    ) -> AsyncIterator[party_pb2.TrainProgress]:
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
            raise Refusal(Reason.NOT_JOINED, f"run {run.id} ended while it trained.")
        training.task.result()
        yield party_pb2.TrainProgress(percent=100, seconds=training.seconds, finished=True)

    @_guarded_stream
    async def Answer(  # type: ignore[override]  # noqa: N802
        self, requests: AsyncIterator[party_pb2.AnswerRequest], context: Context
    ) -> AsyncIterator[bytes]:
        """Yields messages that are serialised already; `serve` registers it so."""
        async for request in requests:
            run = await self._run(request.run)
            block = await self._answers.block(run, request)
            for message in framed(request.batch, block):
                yield message
            await self._ledger.answered(run.id, request.release)

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
        """The training that a request asks for, begun if it has not been; None when it was done before."""
        if not NAME.fullmatch(request.operation_id):
            raise Refusal(Reason.REQUEST, "an operation id has 1 to 64 small letters, digits and hyphens.")
        asks = Asks.of(request)
        release = run.release(asks.release)
        charged = await self._ledger.reserved(run.id, asks.charged(release))
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
            other for other, each in self._trainings.items() if other[0] == run.id and each.release == release.name
        ]
        if done is not None or rivals:
            raise Refusal(
                Reason.CONFLICT,
                f"release {release.name} is trained by operation {done.id if done else rivals[0][1]} in this run; one "
                "release is one result.",
            )
        if charged:
            raise Refusal(
                Reason.CONFLICT,
                f"release {asks.charged(release)} was charged already, and what it was charged for is gone; start a "
                "new run.",
            )
        job = job_of(request, run, self.config, self._artefacts, self.home)
        training = Training(digest, release.name)
        self._trainings[key] = training
        training.task = asyncio.create_task(self._train(run, request.operation_id, training, job))
        training.task.add_done_callback(lambda task: task.cancelled() or task.exception())
        return training

    async def _train(self, run: Run, operation: str, training: Training, job: Job) -> None:
        try:
            await asyncio.to_thread(check_fit, job)
            if job.teaching is not None and job.teaching.training:
                job = await self._paid(run, job, job.teaching)
            await training.run(job, self._turn, frank=self.config.policy.simulation)
            run.keep_operation(Operation(operation, training.digest, training.release))
        finally:
            self._trainings.pop((run.id, operation), None)

    async def _paid(self, run: Run, job: Job, teaching: Teaching) -> Job:
        """The job with the noise key of a private training, whose event is in the ledger when this returns."""
        release = release_of(teaching.training)
        key = await self._ledger.reserve(run.id, release.name, event_of(release))
        if run.terms.privacy.insecure_reproducible_noise:
            key = insecure_key(run.terms.seed, self.config.name, release.name)
        return replace(job, teaching=replace(teaching, training_key=key.hex()))

    async def _cancel(self, keys: list[tuple[str, str]]) -> None:
        tasks = [training.task for key in keys if (training := self._trainings.get(key)) and training.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def serve(self) -> None:
        """Listen. Raises `PartyError` when the port cannot be had."""
        host, port = split_address(self.config.listen)
        _check_free(self.config.name, host, port)
        server = grpc.aio.server(options=SERVER_OPTIONS)
        service = party_pb2.DESCRIPTOR.services_by_name["Party"].full_name
        party_pb2_grpc.add_PartyServicer_to_server(self, _AnswersInBytes(server))  # type: ignore[arg-type]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((service, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        try:
            self.port = server.add_insecure_port(f"[{host}]:{port}" if ":" in host else f"{host}:{port}")
        except RuntimeError:
            raise PartyError(_no_port(self.config.name, host, port, "it is in use")) from None
        for name in ("", service):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        self._server = server

    async def stop(self) -> None:
        """End calls, training and the ledger, in this order of patience: two seconds, none, what is being written."""
        if self._stopped:
            return
        self._stopped = True
        await self._health.enter_graceful_shutdown()
        await self._cancel(list(self._trainings))
        if self._server is not None:
            await self._server.stop(GRACE)
        await self._ledger.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()


class _AnswersInBytes:
    """Stands for the server when the stubs register their methods; `Answer` alone is not serialised once more."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Nothing: what is registered by name is enough."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Pass the methods on by both ways that servers know them."""
        own = handlers | {"Answer": handlers["Answer"]._replace(response_serializer=None)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, own),))
        self._server.add_registered_method_handlers(service, own)


async def start(config: PartyConfig, *, token: str = "", base: Path) -> Node:
    """Start a party's node and return it listening.

    base: where the party file is; relative paths in it start there. token: what callers must show; empty for nothing.
    Raises `PartyError` (port in use, folder held by another node), `SettingsError` (no such source).
    """
    home = config.home(base)
    config = config.model_copy(update={"shard": located(config.shard, base)})
    try:
        private_folder(home)
    except OSError as error:
        raise PartyError(f"party {config.name} cannot keep anything in {home}: {error.strerror}.") from None
    policy = config.policy
    ledger = await Ledger.open(
        home, config.lineage, epsilon=policy.epsilon, delta=policy.delta, simulation=policy.simulation
    )
    node = Node(config, home, ledger, token)
    try:
        await node.serve()
    except BaseException:
        await node.stop()
        raise
    return node


def _check_free(name: str, host: str, port: int) -> None:
    """Ask the system for the port first: it says why not, where gRPC only says that it failed."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PartyError(_no_port(name, host, port, (error.strerror or str(error)).lower())) from None


def _no_port(name: str, host: str, port: int, why: str) -> str:
    return f"party {name} cannot listen on {host}:{port}: {why}. Stop what is there, or set another port in listen."
