"""Draining a node before it ends: it takes no new work and finishes the work in hand."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import Final, TypeVar

from protos.refusal import Reason, Refusal

SENDING: Final = 20.0
"""Seconds in which blocks that are being made can be finished and sent, however long trainings get."""

Asked = TypeVar("Asked")


class Drain:
    """Whether a node still takes work, and which blocks it is making."""

    def __init__(self, party: str) -> None:
        self._party = party
        self._begun = asyncio.Event()
        self._blocks = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def begun(self) -> bool:
        """Whether the node is about to end."""
        return self._begun.is_set()

    def begin(self) -> None:
        """Make `check` refuse from now on. Idempotent."""
        self._begun.set()

    def refusal(self) -> Refusal:
        """The refusal for new work."""
        return Refusal(
            Reason.DRAINING, f"party {self._party} is about to end and takes no work. Ask again when it is back."
        )

    def check(self) -> None:
        """Raises `Refusal` (DRAINING) once the drain has begun."""
        if self.begun:
            raise self.refusal()

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Count a block as in hand, from its request until it is sent."""
        self._blocks += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._blocks -= 1
            if not self._blocks:
                self._empty.set()

    async def empty(self) -> None:
        """Wait until no block is in hand."""
        await self._empty.wait()

    async def each(self, requests: AsyncIterator[Asked]) -> AsyncGenerator[Asked, None]:
        """The requests of a stream; raises `Refusal` (DRAINING) instead of the next one when the drain begins."""
        begun = asyncio.ensure_future(self._begun.wait())
        reading: asyncio.Future[Asked | None] | None = None
        try:
            while True:
                reading = asyncio.ensure_future(anext(requests, None))
                await asyncio.wait({reading, begun}, return_when=asyncio.FIRST_COMPLETED)
                self.check()
                request = await reading
                if request is None:
                    return
                yield request
        finally:
            begun.cancel()
            if reading is not None:
                reading.cancel()
