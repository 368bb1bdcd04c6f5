"""Metrics for the party's own administrator: budget, work and traffic, never its text."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from party.config import split_address
from party.errors import PartyError
from party.ledger.ledger import Ledger
from party.ledger.lineages import Budget
from protos.refusal import Reason

_SECONDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Metrics in a registry of their own. None is a count of records, words or users, or computed from one."""

    def __init__(self) -> None:
        self.served = False
        self.registry = own = CollectorRegistry()
        self._cap = Gauge(
            "conclave_party_epsilon_cap",
            "Epsilon of the account's cap, for life and for its unit (party budget).",
            registry=own,
        )
        self._spent = Gauge(
            "conclave_party_epsilon_spent",
            "Epsilon, at the cap's delta and for its unit, of one Gaussian release that is worth all that this account "
            "was charged itself; party budget adds what accounts that share records were charged.",
            registry=own,
        )
        self._left = Gauge(
            "conclave_party_epsilon_left",
            "Epsilon, at the cap's delta and for its unit, of the largest Gaussian release that the cap still admits "
            "after this account's own charges.",
            registry=own,
        )
        self._runs = Gauge("conclave_party_runs_open", "Runs that were joined and have not ended.", registry=own)
        self._running = Gauge("conclave_party_trainings_running", "Trainings begun and not ended.", registry=own)
        self._trainings = Counter(
            "conclave_party_trainings", "Trainings that ended, by how.", ["outcome"], registry=own
        )
        self._blocks = Counter(
            "conclave_party_blocks", "Blocks sent: made for it, or sent again from disk.", ["origin"], registry=own
        )
        self._bytes = Counter("conclave_party_sent_bytes", "Bytes of answers sent.", registry=own)
        self._seconds = Histogram(
            "conclave_party_block_seconds",
            "Seconds to charge, draw and store a block.",
            buckets=_SECONDS,
            registry=own,
        )
        self._refusals = Counter("conclave_party_refusals", "Calls refused, by reason.", ["reason"], registry=own)
        for outcome in ("finished", "failed"):
            self._trainings.labels(outcome)
        for origin in ("made", "resent"):
            self._blocks.labels(origin)

    async def refresh(self, ledger: Ledger) -> None:
        """Update the metrics of budget and runs, where they are served."""
        if self.served:
            self.budget(await ledger.budget())

    def budget(self, budget: Budget) -> None:
        """Set the account's metrics; without a cap they are NaN, since 0 and infinity would both be claims."""
        for gauge, figure in ((self._cap, budget.cap), (self._spent, budget.spent), (self._left, budget.left)):
            gauge.set(math.nan if figure is None else figure)
        self._runs.set(budget.runs)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Count a training from its request to its end; one that ends with the node counts as neither finished nor
        failed.
        """
        self._running.inc()
        try:
            yield
        except Exception:
            self._trainings.labels("failed").inc()
            raise
        else:
            self._trainings.labels("finished").inc()
        finally:
            self._running.dec()

    def made(self, seconds: float) -> None:
        """Count a block that was charged, made and stored."""
        self._seconds.observe(seconds)

    def sent(self, size: int, *, made: bool) -> None:
        """Count a sent block and its bytes."""
        self._blocks.labels("made" if made else "resent").inc()
        self._bytes.inc(size)

    def refused(self, reason: Reason) -> None:
        """Count a refused call."""
        self._refusals.labels(str(reason)).inc()


class MetricsServer:
    """The metrics over HTTP, served by a daemon thread."""

    def __init__(self, metrics: Metrics, party: str, listen: str) -> None:
        """Listen. Raises `PartyError` when the port is not available."""
        host, port = split_address(listen)
        try:
            self._server, self._thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise PartyError(
                f"party {party} cannot serve metrics on {listen}: {why}. Stop what is there, or set another port in "
                "[metrics] listen.",
                code="C305",
            ) from None
        self.port = self._server.server_port
        metrics.served = True

    def stop(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
