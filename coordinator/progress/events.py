"""The events of a run, reported to observers: metrics and logs. Never text, answers, keys or losses of a model."""

import logging
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from aggregation.mechanisms.mechanism import HEURISTIC
from coordinator.errors import PlanError, RunError
from protos.telemetry import tracers, tracing

SECONDS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper edges of the histogram's buckets for the time of a block."""


class Observer(Protocol):
    """Is told by the federation and the run what happened; never asks anything back, never raises."""

    def named(self, run: str) -> None:
        """The id of the run that is prepared from now on, before any other event."""
        ...

    def opened(self, run: str, epsilon: float | None, budget: float | None) -> None:
        """A run begins or is resumed: its id, the epsilon it guarantees (None: nothing), and what its plan allows.

        budget: None of a plan without a guarantee.
        """
        ...

    def stage(self, name: str, state: str) -> None:
        """A stage of the run began ("began") or ended ("finished")."""
        ...

    def block(self, release: str, party: str, seconds: float, size: int) -> None:
        """A party's block came: the seconds since it was asked for, and its bytes."""
        ...

    def stored(self, release: str, done: int, total: int) -> None:
        """The sum of a block is on disk: how many of how many are stored."""
        ...

    def retry(self, party: str, doing: str, why: str) -> None:
        """A call to a party failed and will be made again."""
        ...

    def lost(self, party: str, why: str) -> None:
        """A party was given up."""
        ...

    def spent(self, epsilon: float) -> None:
        """What the run has cost a party so far came to this epsilon, at most, at the plan's delta."""
        ...


class Unobserved:
    """Ignores all events."""

    def named(self, run: str) -> None: ...

    def opened(self, run: str, epsilon: float | None, budget: float | None) -> None: ...

    def stage(self, name: str, state: str) -> None: ...

    def block(self, release: str, party: str, seconds: float, size: int) -> None: ...

    def stored(self, release: str, done: int, total: int) -> None: ...

    def retry(self, party: str, doing: str, why: str) -> None: ...

    def lost(self, party: str, why: str) -> None: ...

    def spent(self, epsilon: float) -> None: ...


class Metrics:
    """Counts events for Prometheus in the given registry; docs/metrics.md explains each figure."""

    def __init__(self, registry: CollectorRegistry) -> None:
        party, release = ["party"], ["release"]
        self._epsilon = Gauge("conclave_run_epsilon", "Epsilon that the run promises.", registry=registry)
        self._budget = Gauge("conclave_run_epsilon_budget", "Epsilon that the plan allows.", registry=registry)
        self._spent = Gauge("conclave_run_epsilon_spent", "Epsilon spent so far, at most.", registry=registry)
        # 0 would be a promise: until anything is known, these are NaN.
        self._epsilon.set(math.nan)
        self._budget.set(math.nan)
        self._spent.set(math.nan)
        self._stage = Gauge("conclave_run_stage", "1 while the stage goes on, else 0.", ["stage"], registry=registry)
        self._stored = Gauge("conclave_run_blocks_stored", "Blocks on disk.", release, registry=registry)
        self._expected = Gauge("conclave_run_blocks_expected", "Blocks of the release.", release, registry=registry)
        self._bytes = Counter("conclave_run_block_bytes", "Bytes of blocks received.", party, registry=registry)
        self._seconds = Histogram(
            "conclave_run_block_seconds",
            "From asking for a block to having it.",
            party,
            registry=registry,
            buckets=SECONDS,
        )
        self._retries = Counter("conclave_run_retries", "Calls made again.", party, registry=registry)
        self._lost = Counter("conclave_run_parties_lost", "Parties given up.", party, registry=registry)

    def named(self, run: str) -> None: ...

    def opened(self, run: str, epsilon: float | None, budget: float | None) -> None:
        if budget is None:  # without a guarantee both stay NaN: infinity would be a figure, too
            return
        self._epsilon.set(math.inf if epsilon is None else epsilon)
        self._budget.set(budget)

    def stage(self, name: str, state: str) -> None:
        self._stage.labels(name).set(state == "began")

    def block(self, release: str, party: str, seconds: float, size: int) -> None:
        self._seconds.labels(party).observe(seconds)
        self._bytes.labels(party).inc(size)

    def stored(self, release: str, done: int, total: int) -> None:
        self._stored.labels(release).set(done)
        self._expected.labels(release).set(total)

    def retry(self, party: str, doing: str, why: str) -> None:
        self._retries.labels(party).inc()

    def lost(self, party: str, why: str) -> None:
        self._lost.labels(party).inc()

    def spent(self, epsilon: float) -> None:
        self._spent.set(epsilon)


class Logged:
    """Writes every event to the log with the run's id; blocks at DEBUG level, since there are many."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._run: dict[str, object] = {}

    def named(self, run: str) -> None:
        self._run = {"run": run}

    def opened(self, run: str, epsilon: float | None, budget: float | None) -> None:
        self.named(run)
        fields = {"event": "opened", "epsilon": epsilon}
        without = f"; {HEURISTIC}" if budget is None else ""
        self._logger.info("run %s is driven from here%s", run, without, extra=self._run | fields)

    def stage(self, name: str, state: str) -> None:
        fields = {"event": "stage", "stage": name, "state": state}
        self._logger.info("stage %s %s", name, state, extra=self._run | fields)

    def block(self, release: str, party: str, seconds: float, size: int) -> None:
        fields = {"event": "block", "release": release, "party": party, "seconds": round(seconds, 3), "bytes": size}
        self._logger.debug("party %s sent a block of %s", party, release, extra=self._run | fields)

    def stored(self, release: str, done: int, total: int) -> None:
        fields = {"event": "stored", "release": release, "done": done, "total": total}
        self._logger.info("%d of %d blocks of %s are stored", done, total, release, extra=self._run | fields)

    def retry(self, party: str, doing: str, why: str) -> None:
        fields = {"event": "retry", "party": party, "doing": doing, "reason": _own_words(why)}
        self._logger.warning("party %s is asked again to %s", party, doing, extra=self._run | fields)

    def lost(self, party: str, why: str) -> None:
        fields = {"event": "lost", "party": party, "reason": _own_words(why)}
        self._logger.error("party %s was lost", party, extra=self._run | fields)

    def spent(self, epsilon: float) -> None:
        fields = {"event": "spent", "epsilon": round(epsilon, 4)}
        self._logger.info("epsilon %.2f is spent so far", epsilon, extra=self._run | fields)


class Everyone:
    """Passes every event to several observers, in order."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)

    def named(self, run: str) -> None:
        for each in self._observers:
            each.named(run)

    def opened(self, run: str, epsilon: float | None, budget: float | None) -> None:
        for each in self._observers:
            each.opened(run, epsilon, budget)

    def stage(self, name: str, state: str) -> None:
        for each in self._observers:
            each.stage(name, state)

    def block(self, release: str, party: str, seconds: float, size: int) -> None:
        for each in self._observers:
            each.block(release, party, seconds, size)

    def stored(self, release: str, done: int, total: int) -> None:
        for each in self._observers:
            each.stored(release, done, total)

    def retry(self, party: str, doing: str, why: str) -> None:
        for each in self._observers:
            each.retry(party, doing, why)

    def lost(self, party: str, why: str) -> None:
        for each in self._observers:
            each.lost(party, why)

    def spent(self, epsilon: float) -> None:
        for each in self._observers:
            each.spent(epsilon)


@contextmanager
def serve_metrics(address: str, registry: CollectorRegistry) -> Iterator[str]:
    """Serve a registry over HTTP at "host:port" (port 0: any free one); yields the address.

    The figures are for whoever runs the coordinator: choose a loopback host, unless everyone on the network may see
    them. Raises `PlanError` for an invalid address, `RunError` when it cannot be listened on.
    """
    host, port = _host_and_port(address)
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise RunError(
            f"metrics cannot be served at {address}: {error.strerror}. Name a free port of this machine.", code="C305"
        ) from None
    try:
        shown = f"[{host}]" if ":" in host else host
        yield f"{shown}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def traced_to(where: str) -> Iterator[None]:
    """Trace the runs inside the context, to the URL of a collector or into a file.

    Raises `PlanError` for an invalid URL and without OpenTelemetry, `RunError` for a file that cannot be written.
    """
    try:
        tracer = tracers.tracer(where, Path.cwd(), "conclave-coordinator")
    except (ValueError, ImportError) as error:
        raise PlanError(f"--traces: {error}") from None
    except OSError as error:
        raise RunError(f"{where} cannot be written: {error.strerror}. Name another file for --traces.") from None
    with tracing.on(tracer):
        yield


def _host_and_port(address: str) -> tuple[str, int]:
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\s\[\]]+)):(\d{1,5})", address)
    if found is None or int(found[3]) > 65535:
        raise PlanError(f'"{address}" is not an address to serve metrics at. Write host:port, like 127.0.0.1:9464.')
    return found[1] or found[2], int(found[3])


def _own_words(why: str) -> str:
    """Our own words on a loss: after a colon or in brackets come the node's own words, which may quote text."""
    return re.split(r": | \(", why, maxsplit=1)[0]
