"""The life of a party's node: started on its port, drained, and stopped with everything it started."""

import asyncio
import contextlib
import logging
import shutil
import sqlite3
from collections.abc import Awaitable
from pathlib import Path
from typing import Final, Self

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from learning.errors import ComputeError
from party.config import PartyConfig, split_address
from party.dialling.destination import Destination
from party.dialling.dialler import Dialler, dialling
from party.errors import PartyError
from party.ledger.ledger import Ledger
from party.ledger.protection import of_policy
from party.node.draining import SENDING
from party.node.guarding import GuardedHealth
from party.node.identity import is_tls, own_identity
from party.node.metrics import MetricsServer
from party.node.node import Node
from party.node.serving import MORE_CALLS, SERVER_OPTIONS, AsTheyCome, check_free, listen, listen_here, no_port
from party.node.traces import located_traces, tracer_of
from party.shard_table import located
from party.store.disk import is_full
from party.store.runs import Runs, private_folder, remove_parts
from party.store.shelf import Shelf
from party.tasks.machine import Machine
from party.tasks.worker import Trains
from protos.conclave.v1 import party_pb2, party_pb2_grpc
from protos.dialling.sockets import socket_folder
from protos.identity.identity import Identity

log = logging.getLogger("conclave.party")

GRACE: Final = 2.0
"""Seconds that calls have to end when a node is stopped."""


class ServedNode:
    """One party behind its port. `start` makes one; `stop` ends it and everything it started."""

    def __init__(self, verbs: Node, *, tls: bool, dials: Destination | None = None) -> None:
        """tls: whether it accepts only mutual TLS. dials: the gate that it dials, in place of a port of its own."""
        self.verbs = verbs
        self.config = verbs.config
        self.tls = tls
        self.port = 0
        self.dials = dials
        self._dialling = contextlib.ExitStack()
        self._dialler: Dialler | None = None
        self._health = GuardedHealth(verbs)
        self._server: grpc.aio.Server | None = None
        self._metrics_server: MetricsServer | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def metrics_port(self) -> int:
        """The port of the metrics; 0 when they are not served."""
        return 0 if self._metrics_server is None else self._metrics_server.port

    @property
    def draining(self) -> bool:
        """Whether it takes no more work."""
        return self.verbs.drain.begun

    @property
    def trouble(self) -> str:
        """Why a node that dials is not connected; empty where it is, and for one with a port."""
        return "" if self._dialler is None else self._dialler.trouble

    @property
    def address(self) -> str:
        """Host and port where this node listens, or those that it dials."""
        if self.dials is not None:
            return self.dials.address
        host, _ = split_address(self.config.listen)
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    async def serve(self) -> None:
        """Listen, or dial. Raises `PartyError` when the port is not available."""
        name, verbs = self.config.name, self.verbs
        host, port = split_address(self.config.listen)
        if self.dials is None:
            check_free(name, host, port)
        if self.config.metrics is not None:
            self._metrics_server = MetricsServer(verbs.metrics, name, self.config.metrics.listen)
            await verbs.metrics.refresh(verbs.ledger)
        verbs.tracer = await asyncio.to_thread(tracer_of, self.config)
        server = grpc.aio.server(options=SERVER_OPTIONS, maximum_concurrent_rpcs=MORE_CALLS * self.config.limits.calls)
        party_pb2_grpc.add_PartyServicer_to_server(verbs, AsTheyCome(server))  # type: ignore[arg-type]
        health_pb2_grpc.add_HealthServicer_to_server(self._health, AsTheyCome(server))  # type: ignore[arg-type]
        local = None
        if self.dials is not None:
            local = self._dialling.enter_context(socket_folder()) / "node.sock"
            listen_here(server, local, verbs.identity)
        else:
            try:
                self.port = listen(server, host, port, verbs.identity if self.tls else None)
            except RuntimeError:
                raise PartyError(no_port(name, host, port, "it is in use"), code="C305") from None
        for service in ("", party_pb2.DESCRIPTOR.services_by_name["Party"].full_name):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        await server.start()
        self._server = server
        if self.dials is not None and local is not None:
            self._dialler = self._dialling.enter_context(dialling(self.dials, verbs.identity, local))

    async def drain(self) -> None:
        """Take no more work, and return when the work in hand is done.

        Blocks in progress are finished and sent. Training gets the party file's `drain_seconds` to end, and begins
        again when it is next asked for. `stop` comes after this.
        """
        log.info("takes no more work, and ends when what it has is done", extra={"event": "draining"})
        self.verbs.drain.begin()
        await self._health.enter_graceful_shutdown()
        trainings = self.verbs.trainings.tasks()
        async with asyncio.TaskGroup() as waiting:
            waiting.create_task(_within(SENDING, self.verbs.drain.empty()))
            if trainings:
                waiting.create_task(_within(self.config.drain_seconds, asyncio.wait(trainings)))

    async def stop(self, grace: float = GRACE) -> None:
        """Stop calls, after at most `grace` seconds; training, at once; and the ledger, after pending writes.

        When it is called again, also while `drain` waits, the shorter grace counts.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace))
        elif self._server is not None:
            await self._server.stop(grace)
        await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> None:
        verbs = self.verbs
        verbs.drain.begin()
        await self._health.enter_graceful_shutdown()
        await verbs.trainings.cancel()
        await verbs.workers.end_all()
        if self._server is not None:
            await self._server.stop(grace)
        await asyncio.to_thread(self._dialling.close)
        if self._metrics_server is not None:
            await asyncio.to_thread(self._metrics_server.stop)
        if verbs.tracer is not None:
            await asyncio.to_thread(verbs.tracer.close)
        await verbs.ledger.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()


async def start(
    config: PartyConfig,
    *,
    token: str = "",
    issued: tuple[bytes, bytes] | None = None,
    base: Path,
    quiet: bool = False,
    nursery: Path | None = None,
    workers: Trains | None = None,
    shelf: Shelf | None = None,
    dials: Destination | None = None,
) -> ServedNode:
    """Start a party's node; returns it listening.

    base: the folder of the party file, against which its relative paths are resolved. token: what callers must show; a
    node with a token uses plain text, and was started by a launcher. issued: certificates and private keys (PEM) from a
    launcher. quiet: training logs to `training.log` in the party's folder, not to standard error. nursery: the
    socket of a process on this machine that forks training processes (`party.tasks.nursery`). workers: what does its
    jobs instead of processes of its own, where simulated parties share some (`party.tasks.pool`); shelf: of the files
    that they were provided. dials: the gate that the node dials; it then has no port. Raises `PartyError` (port in use,
    folder held by another node, a device that is not there), `SettingsError` (no such source).
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
        if dials is not None and not is_tls(identity, token):
            raise PartyError(
                f"party {config.name} has no [identity], and only a certificate shows its coordinator who dials. Run "
                "`party enroll`, and take plaintext out of its file.",
                code="C401",
            )
        machine = await asyncio.to_thread(_machine, config)
        log_file = home / "training.log" if quiet else None
        return await _started(config, home, identity, token, machine, log_file, nursery, workers, shelf, dials)
    except (OSError, sqlite3.Error) as error:
        if not is_full(error):
            raise
        raise PartyError(
            f"party {config.name} cannot write in {home}: the disk is full or read-only. Make room, or mount it for "
            "writing, and start the node again.",
            code="C301",
        ) from None


async def _started(
    config: PartyConfig,
    home: Path,
    identity: Identity,
    token: str,
    machine: Machine,
    training_log: Path | None,
    nursery: Path | None,
    workers: Trains | None,
    shelf: Shelf | None,
    dials: Destination | None,
) -> ServedNode:
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
        shutil.rmtree(home / "artefacts", ignore_errors=True)  # files that would stay when a run ends
        joined, runs = await ledger.runs(), Runs(home / "runs")
        if not policy.simulation:
            _check_is_newest(home, {run.id for run in joined}, runs)
        runs.tidy([run.id for run in joined if run.left_at is not None])
        verbs = Node(config, home, ledger, identity, token, machine, training_log, nursery, workers, shelf)
        node = ServedNode(verbs, tls=is_tls(identity, token), dials=dials)
    except BaseException:
        await ledger.close()
        raise
    try:
        await node.serve()
    except BaseException:
        await node.stop()
        raise
    return node


def _check_is_newest(home: Path, joined: set[str], runs: Runs) -> None:
    """Raises `PartyError` where files of a run are there that the ledger does not know: a run is in the ledger first,
    so this is an earlier ledger, put back, and charges are missing from it.
    """
    unknown = next((run for run in runs.kept() if run not in joined), None)
    if unknown is not None:
        raise PartyError(
            f"The ledger in {home} does not know run {unknown}, of which files are there: it is older than they are, "
            "and what was charged since is not in it. Move ledger.sqlite out of the folder, with ledger.sqlite-wal and "
            "-shm where they are there, and put it back on record: party account restore",
            code="C605",
        )


def _machine(config: PartyConfig) -> Machine:
    """Look up what trainings run on. Raises `PartyError`."""
    try:
        return Machine.looked_up(config.compute)
    except ComputeError as error:
        raise PartyError(f"party {config.name} cannot compute as its file says. {error}") from None


async def _within(seconds: float, waiting: Awaitable[object]) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(waiting, seconds)
