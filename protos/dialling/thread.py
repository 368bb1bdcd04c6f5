"""An event loop on a thread of its own, so that connections are kept alive whatever the program computes meanwhile."""

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


class LoopThread:
    """A context manager: a loop that runs on a thread; at the end its tasks are cancelled and the thread is gone."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)

    def __enter__(self) -> "LoopThread":
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.run(_all_cancelled())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Do this on the loop, and wait for it in the calling thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Begin this on the loop; it is cancelled at the end."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    async def done(self, work: Coroutine[Any, Any, Value]) -> Value:
        """Do this on the loop, and wait for it in another one."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))


async def _all_cancelled() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
