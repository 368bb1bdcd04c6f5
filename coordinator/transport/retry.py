"""When a lost party is asked again: one policy for every verb, with exponential back-off, jitter and an overall limit.

Asking again is safe because every verb is idempotent: a training has an operation id, a batch a number and a digest,
and neither is charged more than once.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator.transport.link import Answered, Batch, Lost, OnPercent, Outcome, PartyLink, Troubles
from protos.computed import Computed
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity.signing import Signed

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Retry:
    """The policy. After n failed tries it waits for 0 to `first * factor**(n - 1)` seconds (full jitter).

    limit: seconds that a party may be away before it is given up; 0 gives it up at once. longest: maximum wait, in
    seconds.
    """

    limit: float
    first: float = 0.5
    factor: float = 2.0
    longest: float = 15.0
    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic

    def pause(self, tries: int) -> float:
        """Seconds to wait after this many failed tries, 1 or more, since the party last made progress."""
        most = self.longest
        # Over days, a growing power would overflow.
        if tries < 64:
            most = min(most, self.first * self.factor ** (tries - 1))
        return float(self.rng.uniform(0.0, most))


class Absence:
    """How long one party has been away in one call.

    Time away adds up until the party makes progress, so that a node which restarts only to fail again is not waited for
    without end.
    """

    def __init__(self, retry: Retry) -> None:
        self._retry = retry
        self._before = 0.0
        self._since: float | None = None
        self.tries = 0

    @property
    def seconds(self) -> float:
        """Seconds away since the party last made progress."""
        now = 0.0 if self._since is None else self._retry.clock() - self._since
        return self._before + now

    def seen(self) -> bool:
        """Note a sign of life; returns whether the party was away until now."""
        was_away = self._since is not None
        self._before, self._since = self.seconds, None
        return was_away

    def moved(self) -> bool:
        """Note that the party made progress, which resets its absence. Returns whether it was away until now."""
        was_away = self.seen()
        self._before, self.tries = 0.0, 0
        return was_away

    def lost(self) -> float | None:
        """Note a loss; returns how long to wait before the next try, or None when the limit is reached."""
        self.tries += 1
        if self._since is None:
            self._since = self._retry.clock()
        left = self._retry.limit - self.seconds
        return min(self._retry.pause(self.tries), left) if left > 0 else None


class PatientLink:
    """A link that asks a lost party again until the policy's limit. A refusal is passed on as it is."""

    def __init__(self, link: PartyLink, retry: Retry, troubles: Troubles) -> None:
        self._link = link
        self._retry = retry
        self._troubles = troubles

    @property
    def name(self) -> str:
        """The party's name in the plan."""
        return self._link.name

    @property
    def traffic(self) -> int:
        """Tensor and artefact bytes exchanged so far, both ways."""
        return self._link.traffic

    async def describe(self, nonce: bytes) -> Outcome[party_pb2.DescribeResponse]:
        """Ask who is there."""
        return await self._asked("be described", lambda: self._link.describe(nonce))

    async def join(
        self,
        run_id: str,
        plan: plan_pb2.Plan,
        plan_hash: bytes,
        *,
        peers: Sequence[party_pb2.Peer] = (),
        needs: party_pb2.Needs | None = None,
    ) -> Outcome[Computed]:
        """Bind this party to a run."""
        return await self._asked("join", lambda: self._link.join(run_id, plan, plan_hash, peers=peers, needs=needs))

    async def leave(self) -> Outcome[None]:
        """Tell the party once that the run is over; nothing depends on it."""
        return await self._link.leave()

    async def provide(self, kind: str, content: bytes) -> Outcome[None]:
        """Send a public artefact."""
        return await self._asked(f"take the {kind}", lambda: self._link.provide(kind, content))

    async def train(self, request: party_pb2.TrainRequest, on_percent: OnPercent) -> Outcome[None]:
        """Have the party train. Its training continues while nobody listens; after a restart it begins again."""
        absence, furthest = Absence(self._retry), 0

        def heard(percent: int | None) -> None:
            nonlocal furthest
            further = percent is not None and percent > furthest
            if absence.moved() if further else absence.seen():
                self._troubles.back(self.name)
            furthest = max(furthest, percent or 0)
            on_percent(percent)

        return await self._asked("train", lambda: self._link.train(request, heard), absence)

    def answer(self, release: str, batches: Iterable[Batch], columns: int) -> AsyncIterator[Outcome[NDArray[np.int32]]]:
        """Ask for row blocks; after a loss for those that have not come yet, under the same numbers."""
        wanted = list(batches)
        return self._streamed("answer", lambda have: self._link.answer(release, wanted[have:], columns), len(wanted))

    def sum_round(self, request: party_pb2.SecureSumRequest) -> AsyncIterator[Outcome[bytes]]:
        """One round of a secure sum; after a loss from the first missing block, which is the same as before."""

        def again(have: int) -> AsyncIterator[Outcome[bytes]]:
            own = party_pb2.SecureSumRequest()
            own.CopyFrom(request)
            own.first_block = request.first_block + have
            return self._link.sum_round(own)

        # In other calls a party answers once, and nothing after that answer is waited for.
        return self._streamed("sum", again, None if request.round == party_pb2.SUM_ROUND_MASK else 1)

    async def attest(self) -> Outcome[Signed]:
        """Ask for the party's signed statement of what the run has cost it."""
        return await self._asked("attest", self._link.attest)

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def _streamed(
        self, doing: str, start: Callable[[int], AsyncIterator[Outcome[Value]]], total: int | None
    ) -> AsyncIterator[Outcome[Value]]:
        """The messages of a stream, which is continued after a loss; total: None where unknown."""
        absence, have = Absence(self._retry), 0
        while total is None or have < total:
            stream = start(have)
            try:
                async for outcome in stream:
                    if isinstance(outcome, Lost):
                        given_up = await self._given_up(absence, doing, outcome)
                        if given_up is None:
                            break
                        outcome = given_up
                    elif absence.moved():
                        self._troubles.back(self.name)
                    have += isinstance(outcome, Answered)
                    yield outcome
                    if not isinstance(outcome, Answered):
                        return
                else:
                    return
            finally:
                await stream.aclose()  # type: ignore[attr-defined]

    async def _asked(
        self, doing: str, call: Callable[[], Awaitable[Outcome[Value]]], absence: Absence | None = None
    ) -> Outcome[Value]:
        absence = absence or Absence(self._retry)
        while True:
            outcome = await call()
            if not isinstance(outcome, Lost):
                if absence.moved():
                    self._troubles.back(self.name)
                return outcome
            given_up = await self._given_up(absence, doing, outcome)
            if given_up is not None:
                return given_up

    async def _given_up(self, absence: Absence, doing: str, lost: Lost) -> Lost | None:
        """None when it is time to ask again; otherwise the loss to report of the party."""
        if not lost.passing:
            return lost
        pause = absence.lost()
        if pause is not None:
            self._troubles.away(self.name, doing, lost.why)
            await self._retry.sleep(pause)
            return None
        if absence.tries == 1:
            return lost
        return Lost(f"{lost.why}; asked {absence.tries} times in {absence.seconds:.0f} s", False, lost.code)
