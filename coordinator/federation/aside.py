"""Long public work while the parties stay connected: in a thread, ended early where the run is to stop."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from coordinator.errors import RunStopped
from coordinator.federation.federation import Federation

Told: TypeAlias = Callable[[str, int, int], None]
"""A callback for progress: what is being done, how much of it, and of how much; raises where the run is to stop."""
Value = TypeVar("Value")


async def aside(federation: Federation, work: Callable[[Told], Value]) -> Value:
    """The result of public work that is told where it is, in a thread of its own.

    Raises what the work raises; it raises `RunStopped` at its next report where the run is to stop.
    """
    loop, over = asyncio.get_running_loop(), threading.Event()

    def told(what: str, done: int, total: int) -> None:
        if over.is_set() or federation.stopping:
            raise RunStopped("stopped")
        loop.call_soon_threadsafe(federation.stepped, what, done, total)

    try:
        return await asyncio.to_thread(work, told)
    finally:
        over.set()
