"""The stages of a run before it has a store: it is prepared and priced, and both take time that people see."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from coordinator.progress.events import Observer


class Beginning:
    """Tells an observer of the stages before a run has a store, and keeps their times for it.

    done: for each, its name, and when it started and finished, in seconds since the epoch.
    """

    def __init__(self, run: str, observer: Observer) -> None:
        observer.named(run)
        self.done: list[tuple[str, float, float]] = []
        self._observer = observer

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """A stage, as long as the context lasts; one that raises is not kept."""
        self._observer.stage(name, "began")
        started = time.time()
        yield
        self.done.append((name, started, time.time()))
        self._observer.stage(name, "finished")
