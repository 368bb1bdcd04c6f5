"""How the person who starts a run follows it: on the terminal, or as JSON lines, metrics and traces."""

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coordinator.progress.events import Observer
    from coordinator.progress.progress import Progress
    from coordinator.progress.terminal import Terminal


@contextmanager
def seen(metrics: str | None, traces: str | None, log_json: bool) -> Iterator[tuple["Progress", "Observer"]]:
    """Follow a run on the terminal, or as JSON lines on standard error; with metrics and traces where wanted."""
    from prometheus_client import CollectorRegistry

    from coordinator.progress import events
    from coordinator.progress.progress import Silent
    from coordinator.progress.terminal import Terminal
    from protos.telemetry.logs import json_lines

    observers: list[Observer] = []
    with ExitStack() as stack:
        if metrics is not None:
            registry = CollectorRegistry()
            stack.enter_context(events.serve_metrics(metrics, registry))
            observers.append(events.Metrics(registry))
        if traces is not None:
            stack.enter_context(events.traced_to(traces))
        if log_json:
            logger, handler = logging.getLogger("conclave.coordinator"), json_lines(sys.stderr)
            logger.setLevel(logging.INFO)
            logger.propagate = False
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)
            observers.append(events.Logged(logger))
            yield Silent(), events.Everyone(observers)
        else:
            terminal = Terminal()
            stack.callback(terminal.close)
            yield terminal, events.Everyone([*observers, terminal])


@contextmanager
def followed() -> Iterator["Terminal"]:
    """Follow anything that takes long on the terminal."""
    from coordinator.progress.terminal import Terminal

    terminal = Terminal()
    try:
        yield terminal
    finally:
        terminal.close()
