"""A Ray of this process with the actors of the parties, started in a thread while the run is still being prepared."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

GRACE: Final = 0.3
"""Seconds before the thread starts anything: a plan that cannot run mostly shows it by then."""


@dataclass(frozen=True, slots=True, eq=False)
class Actor:
    """An actor of Ray and the parties that it runs."""

    names: tuple[str, ...]
    handle: Any

    def __str__(self) -> str:
        """The party, or the first of them and how many more."""
        first, *others = self.names
        return f"{first} and {len(others):,} more in its actor" if others else first


Begun: TypeAlias = tuple[Any, list[Actor], Path | None]
"""A Ray, its actors, and the socket of a nursery where there is one."""


class Early:
    """`begin` begins, `taken` waits until it is there, `end` ends it, also where it was never taken.

    The thread lives as long as its Ray: the kernel ends Ray's processes with the thread that started them.
    """

    def __init__(self, start: Callable[[], AbstractContextManager[Begun]]) -> None:
        """start: makes the context that is opened and closed in the thread; it gives `Begun`."""
        self._start = start
        self._found: Begun | None = None
        self._failure: BaseException | None = None
        self._wanted, self._known, self._over = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ray", daemon=True)

    def begin(self) -> None:
        """Begin, soon."""
        self._thread.start()

    @contextmanager
    def taken(self) -> Iterator[Begun]:
        """What was begun. Raises what starting them raised.

        They begin to end when the context closes, and have ended then if it closes with an error.
        """
        self._wanted.set()
        try:
            self._known.wait()
            if self._failure is not None:
                raise self._failure
            assert self._found is not None
            yield self._found
        except BaseException:
            self.end()
            raise
        self._over.set()

    def end(self) -> None:
        """End what was started, and wait for its end. Idempotent."""
        self._over.set()
        self._wanted.set()
        self._thread.join()

    def _run(self) -> None:
        self._wanted.wait(GRACE)
        if self._over.is_set():
            return
        try:
            with self._start() as self._found:
                self._known.set()
                self._over.wait()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that takes it
            self._failure = error
        finally:
            self._known.set()
