"""Figures of a coordinator that stays up, for Prometheus: its queue, its parties' connections, its disk."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.registry import Collector

from coordinator.serving.submissions import CANCELLED, FAILED, FINISHED, QUEUED, RUNNING, STOPPED

STATES: Final = (QUEUED, RUNNING, STOPPED, FINISHED, FAILED, CANCELLED)


@dataclass(frozen=True, slots=True)
class Figures:
    """submissions: by state. dialled: whether each party that dials is connected. refusals: of calls, by reason."""

    submissions: Mapping[str, int]
    dialled: Mapping[str, bool]
    refusals: Mapping[str, int]
    free: int


class Metrics(Collector):
    """Reads the figures when they are asked for."""

    def __init__(self, figures: Callable[[], Figures]) -> None:
        self._figures = figures
        self.registry = CollectorRegistry()
        self.registry.register(self)

    def describe(self) -> list[Metric]:
        """Nothing in advance."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The figures now."""
        now = self._figures()
        states = GaugeMetricFamily("conclave_coordinator_submissions", "Submissions, by state.", labels=["state"])
        for state in STATES:
            states.add_metric([state], now.submissions.get(state, 0))
        yield states
        there = GaugeMetricFamily(
            "conclave_coordinator_party_connected", "1 while a party that dials is connected.", labels=["party"]
        )
        for party, connected in now.dialled.items():
            there.add_metric([party], float(connected))
        yield there
        refusals = CounterMetricFamily(
            "conclave_coordinator_refusals", "Calls of submitters refused, by reason.", labels=["reason"]
        )
        for reason, count in now.refusals.items():
            refusals.add_metric([reason], count)
        yield refusals
        yield GaugeMetricFamily("conclave_coordinator_disk_free_bytes", "Free disk where runs are kept.", now.free)
