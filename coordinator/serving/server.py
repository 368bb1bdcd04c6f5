"""A coordinator that stays up: its gate, queue, calls and status page, begun and ended together."""

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import grpc

from coordinator.errors import PlanError, RunError
from coordinator.identity import provisioning
from coordinator.serving.config import Located, ServeConfig
from coordinator.serving.runner import Runner
from coordinator.serving.service import Service
from coordinator.serving.status.http import StatusServer
from coordinator.serving.status.metrics import Figures, Metrics
from coordinator.serving.status.page import Status
from coordinator.serving.submissions import QUEUED, Submissions
from coordinator.serving.views import viewed
from coordinator.store.private_files import private_folder
from coordinator.transport.dialled.gate import Gate, Written
from coordinator.transport.dialled.standing import answering
from protos.conclave.v1.coordinator_pb2_grpc import add_CoordinatorServicer_to_server
from protos.console.checklist import free_disk
from protos.dialling.thread import LoopThread
from protos.identity.certificates import IdentityError, Role
from protos.identity.identity import Identity, load_identity
from protos.identity.tls import server_credentials
from protos.identity.validity import moment

log = logging.getLogger("conclave.coordinator")

HELD: Final = "held"
"""The file in the folder of a coordinator that is locked while one serves from it."""
MOST_SHOWN: Final = 50
"""How many submissions the page shows."""
GRACE: Final = 2.0
IN_FILE: Final = Written("[gate] listen", "in the coordinator's file. Give it dials = true in parties", "coordinator")

OPTIONS: Final = (
    ("grpc.max_receive_message_length", 2**20),
    ("grpc.max_metadata_size", 16 * 2**10),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
)
MOST_CALLS: Final = 256
THREADS: Final = 32
"""For reading stores and files, and for waiting: a cancellation waits for a run's process on one of them."""


@dataclass(frozen=True, slots=True)
class Serving:
    """Where a coordinator is reached. gate: None where no party dials."""

    submit: str
    gate: str | None
    status: str


async def serve(config: ServeConfig, base: Path, told: Callable[[Serving], None]) -> int:
    """Serve until a signal comes, and end in order; returns the signal. base: the folder of the file.

    told: is given the addresses once everything listens. SIGTERM and SIGINT take nothing new, have each run stop when
    its block in hand is stored, and end; the second signal ends the runs at once. Raises `RunError` and `PlanError`.
    """
    located = Located(config, base)
    coordinator, server = identities(located)
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "serving"))
    signals: asyncio.Queue[int] = asyncio.Queue()
    for each in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(each, signals.put_nowait, each)
    async with _everything(config, located, coordinator, server) as (where, runner, service, listening):
        told(where)
        number = await signals.get()
        log.info("takes no more runs, and ends when those it has are stopped", extra={"event": "draining"})
        service.ending.set()
        draining = asyncio.create_task(runner.drain())
        again = asyncio.create_task(signals.get())
        await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
        if not draining.done():
            runner.at_once()
        again.cancel()
        await draining
        await listening.stop(GRACE)
    return number


def identities(located: Located) -> tuple[Identity, Identity]:
    """The coordinator's identity towards parties, and towards submitters. Raises `PlanError`."""
    folder = located.identity
    try:
        own = load_identity(
            folder / provisioning.COORDINATOR,
            folder / provisioning.COORDINATOR_KEY,
            role=Role.COORDINATOR,
            authority=None,
            revoked=folder / provisioning.REVOKED,
        )
        server = load_identity(
            folder / provisioning.SERVER,
            folder / provisioning.SERVER_KEY,
            role=Role.SERVER,
            authority=None,
            revoked=folder / provisioning.REVOKED,
        )
    except IdentityError as error:
        raise PlanError(f"identity: {error}") from None
    for each in (own, server):
        end = min(each.transport.not_valid_after_utc, each.signing.not_valid_after_utc)
        if end - datetime.now(UTC) < provisioning.RENEWED_BEFORE:
            said = "the certificates of the %s end at %s: coordinator provision renew, and start anew"
            log.warning(said, each.role, moment(end), extra={"event": "expiring"})
    return own, server


@contextlib.asynccontextmanager
async def _everything(
    config: ServeConfig, located: Located, coordinator: Identity, server: Identity
) -> AsyncIterator[tuple[Serving, Runner, Service, grpc.aio.Server]]:
    async with AsyncExitStack() as stack:
        stack.enter_context(_held(located.keep))
        if not located.public.is_dir():
            raise PlanError(f"public: {located.public} is not a folder. Make it, and put the public files there.")
        submissions = Submissions(located.keep)
        stack.callback(submissions.close)
        runner = Runner(config, located, submissions)
        service = Service(config, located, submissions, runner, server)
        gate = await _gate(config, located, coordinator, stack)
        listening = grpc.aio.server(options=OPTIONS, maximum_concurrent_rpcs=MOST_CALLS)
        add_CoordinatorServicer_to_server(service, listening)
        try:
            port = listening.add_secure_port(config.submit.listen, server_credentials(server))
        except RuntimeError:
            raise RunError(
                f"the coordinator cannot listen on {config.submit.listen}: the port is in use, or the address is not "
                "one of this machine. Set another in [submit] listen.",
                code="C305",
            ) from None
        figures = _Figures(config, located, submissions, runner, service, gate, coordinator.name)
        metrics = Metrics(figures.figures)
        page = StatusServer(
            config.status.listen,
            figures.status,
            lambda: not runner.draining,
            metrics.registry,
            public=config.status.public,
        )
        stack.enter_context(page)
        stack.push_async_callback(runner.close)
        runner.recover()
        await listening.start()
        stack.push_async_callback(listening.stop, 0)
        running = asyncio.create_task(runner.run())
        stack.push_async_callback(_cancelled, running)
        host = config.submit.listen.rpartition(":")[0]
        yield (
            Serving(f"{host}:{port}", None if gate is None else gate.address, page.address),
            runner,
            service,
            listening,
        )


async def _cancelled(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _gate(config: ServeConfig, located: Located, identity: Identity, stack: AsyncExitStack) -> Gate | None:
    """The gate for the parties that dial, open on a thread of its own, with the sockets for the runs."""
    if config.gate is None:
        return None
    with _sentence(located.sockets):
        private_folder(located.sockets)
        if located.sockets.stat().st_uid != os.getuid() or located.sockets.is_symlink():
            raise RunError(
                f"{located.sockets} is not this user's own folder. Name another in [gate] sockets.", code="C302"
            )
        located.sockets.chmod(0o700)
    thread = stack.enter_context(LoopThread("gate"))
    gate = Gate(config.gate.listen, config.dialling, identity, located.sockets, IN_FILE)
    stack.callback(lambda: thread.run(gate.close()))
    thread.run(gate.open())
    asking = thread.run(answering(gate, located.sockets))
    stack.callback(lambda: thread.run(_closed(asking)))
    return gate


async def _closed(server: asyncio.Server) -> None:
    server.close()


@contextmanager
def _held(keep: Path) -> Iterator[None]:
    """Be the one coordinator that serves from a folder. Raises `RunError`."""
    with _sentence(keep):
        private_folder(keep)
        keep.chmod(0o700)
        held = os.open(keep / HELD, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"another `coordinator serve` keeps its runs in {keep}, and is up. End it first.", code="C704"
            ) from None
        yield
    finally:
        os.close(held)


@contextmanager
def _sentence(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"{folder} cannot be written: {error.strerror}.") from None


class _Figures:
    """What page and metrics show now; asked from threads of their own."""

    def __init__(
        self,
        config: ServeConfig,
        located: Located,
        submissions: Submissions,
        runner: Runner,
        service: Service,
        gate: Gate | None,
        name: str,
    ) -> None:
        self._config = config
        self._located = located
        self._submissions = submissions
        self._runner = runner
        self._service = service
        self._gate = gate
        self._name = name

    def figures(self) -> Figures:
        """For metrics."""
        refusals = dict(self._service.refusals)
        return Figures(self._submissions.counts(), self._dialled(), refusals, free_disk(self._located.keep))

    def status(self) -> Status:
        """For the page."""
        queued = self._submissions.in_states(QUEUED)
        shown = [
            viewed(each, self._runner.folder(each), queued, self._runner.hidden)
            for each in self._submissions.latest(MOST_SHOWN)
        ]
        direct = [party.name for party in self._config.parties if not party.dials]
        return Status(
            self._name,
            version("conclave-distill"),
            time.time(),
            shown,
            self._dialled(),
            direct,
            free_disk(self._located.keep),
            self._runner.draining,
        )

    def _dialled(self) -> Mapping[str, bool]:
        return {} if self._gate is None else {name: place.there for name, place in self._gate.places.items()}


def described(where: Serving) -> dict[str, Any]:
    """The addresses, for other programs."""
    return {"submit": where.submit, "gate": where.gate, "status": where.status}
