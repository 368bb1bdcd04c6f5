"""Runs a coroutine so that interrupts end it in order: the first asks it to stop, the second cancels it."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

Value = TypeVar("Value")


def waited(
    make: Callable[[Callable[[Callable[[], None]], None]], Coroutine[Any, Any, Value]], stopping: Callable[[], None]
) -> Value:
    """Run a coroutine to its end in a thread of its own, so that it also works where a loop is already running.

    make: returns the coroutine; it is given a function with which to register what is called, on the loop's thread, at
    the first interrupt; `stopping` is called too. The second interrupt, or the first where nothing is registered,
    cancels the coroutine and waits for its clean-up. However it ended, an interrupt of the waiting thread is raised
    again.
    """
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[Any]]] = []
    stops: list[Callable[[], None]] = []
    outcome: list[Value] = []
    failure: list[BaseException] = []

    async def main() -> Value:
        task = asyncio.current_task()
        assert task is not None
        loops.append((asyncio.get_running_loop(), task))
        return await make(stops.append)

    def target() -> None:
        try:
            outcome.append(asyncio.run(main()))
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            failure.append(error)
        finally:
            ended.set()

    # After an interrupt, Thread.join treats the thread as ended, so wait for an event instead.
    ended = threading.Event()
    thread = threading.Thread(target=copy_context().run, args=(target,), name="run")
    thread.start()
    interrupts = 0
    while True:
        try:
            while not ended.wait(0.2):
                pass
            break
        except KeyboardInterrupt:
            interrupts += 1
            with suppress(RuntimeError):  # the loop may have ended just now
                for loop, task in loops:
                    if interrupts == 1 and stops:
                        loop.call_soon_threadsafe(stops[0])
                        stopping()
                    else:
                        loop.call_soon_threadsafe(task.cancel)
    if interrupts:
        raise KeyboardInterrupt
    if failure:
        raise failure[0]
    return outcome[0]
