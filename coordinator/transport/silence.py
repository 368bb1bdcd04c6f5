"""Whether a silent party is slow or dead: its node's health tells which, and its progress how long it is waited for."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from coordinator.transport.link import Troubles

Value = TypeVar("Value")
Clock = Callable[[], float]


class Unheard(Exception):
    """A call brought nothing usable, though gRPC reports no error."""


class Silent(Unheard):
    """A party was silent for so many seconds, and its node does not say that it serves."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Stuck(Exception):
    """A party made no progress in time. The message completes the sentence "party north was lost: ..."."""


class Patience:
    """How long one call waits, from when it is made. Progress is a block, or the answer to a call.

    drop_after: seconds without progress after which the party is given up; None waits.
    """

    def __init__(self, drop_after: float | None, clock: Clock = time.monotonic) -> None:
        self._limit = math.inf if drop_after is None else drop_after
        self._clock = clock
        self._moved = clock()

    @property
    def left(self) -> float:
        """Seconds until the party is given up; 0 or less when it is, infinite where it is waited for."""
        return self._limit - (self._clock() - self._moved)

    @property
    def alive(self) -> bool:
        """Whether the last sign of life is so recent that the node's health need not be asked."""
        return False

    def check(self) -> None:
        """Raises `Stuck` when the party is to be given up."""
        if self.left <= 0:
            raise Stuck(self._why())

    def _why(self) -> str:
        return f"no sign of its work for {self._limit:g} s, though its node serves"


class TrainingPatience(Patience):
    """How long a training waits. Progress is a percentage above all that were reported before.

    A training may report no percentage while it reads records whose number is secret; then signs of life are enough,
    for up to `train_within` in total.

    began: when this training was first asked for, by the clock; train_within: seconds from then. None: as long as a
    training takes whose every percent comes just in time, 100 times drop_after.
    """

    def __init__(
        self,
        drop_after: float | None,
        train_within: float | None,
        began: float | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(drop_after, clock)
        self._within = 100 * self._limit if train_within is None else train_within
        self._began = self._moved if began is None else began
        self._called = self._heard = self._moved
        self._furthest = -1
        self._known = False

    def told(self, percent: int | None) -> None:
        """Note a sign of life; percent: the training's reported progress, None where it reports none."""
        self._heard = self._clock()
        self._known = percent is not None
        if percent is not None and percent > self._furthest:
            self._furthest, self._moved = percent, self._heard

    @property
    def left(self) -> float:
        """As `Patience.left`."""
        now = self._clock()
        since = self._moved if self._known else self._heard
        return min(self._limit - (now - since), self._within - (now - self._began))

    @property
    def alive(self) -> bool:
        """As `Patience.alive`."""
        return self._heard > self._called and self._clock() - self._heard < self._limit

    def _why(self) -> str:
        if self._clock() - self._began >= self._within:
            return f"its training was not done after {self._within:g} s"
        if self.alive:
            return f"its training got no further than {self._furthest}% for {self._limit:g} s"
        return super()._why()


async def heard(
    call: Awaitable[Value],
    patience: Patience,
    party: str,
    deadline: float,
    serves: Callable[[], Awaitable[bool]],
    troubles: Troubles,
) -> Value:
    """The result of a call, or the next message of a stream, waited for as long as the party's node serves.

    deadline: seconds of silence after which `serves` is asked. Raises `Silent` or `Stuck`, and ends the call, when the
    node does not serve or the party is to be given up.
    """
    waiting = asyncio.ensure_future(call)
    waited, first = 0.0, True
    try:
        while True:
            pause = max(0.0, min(deadline, patience.left))
            await asyncio.wait([waiting], timeout=pause)
            waited += pause
            if not waiting.done() and patience.alive:
                patience.check()
            if not waiting.done() and not await serves() and not waiting.done():
                raise Silent(round(waited, 1))
            if waiting.done():
                if not first:
                    troubles.back(party)
                return waiting.result()
            patience.check()
            troubles.slow(party, round(waited, 1))
            first = False
    finally:
        if not waiting.done():
            waiting.cancel()
            await asyncio.wait([waiting])
            _ = waiting.cancelled() or waiting.exception()
