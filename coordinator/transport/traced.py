"""A party's link whose every call is a span: the verb, the number of the try, how much came, and how it ended.

It wraps the link instead of being a channel interceptor: gRPC reports OK for an answer that cannot be parsed, CANCELLED
for a party that fell silent and for a stream of blocks that is complete, and nothing for a failed handshake. The link
knows better.
"""

from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator.transport.link import Answered, Batch, Lost, OnPercent, Outcome, PartyLink, Refused
from protos.computed import Computed
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity.signing import Signed
from protos.telemetry import tracing

Value = TypeVar("Value")


def traced(link: PartyLink) -> PartyLink:
    """The link, wrapped in spans while a run is traced, otherwise unchanged."""
    return link if tracing.current() is tracing.OFF else TracedLink(link)


class TracedLink:
    """A party whose calls are spans under the current one. Each call is made once, so that retries are spans too."""

    def __init__(self, link: PartyLink) -> None:
        self._link = link
        self._failed: dict[str, int] = {}

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
        return await self._asked("Describe", self._link.describe(nonce))

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
        asked = self._link.join(run_id, plan, plan_hash, peers=peers, needs=needs)
        return await self._asked("Join", asked)

    async def leave(self) -> Outcome[None]:
        """Tell the party that the run is over."""
        return await self._asked("Leave", self._link.leave())

    async def provide(self, kind: str, content: bytes) -> Outcome[None]:
        """Send a public artefact."""
        return await self._asked("Provide", self._link.provide(kind, content))

    async def train(self, request: party_pb2.TrainRequest, on_percent: OnPercent) -> Outcome[None]:
        """Have something trained."""
        return await self._asked("Train", self._link.train(request, on_percent))

    def answer(self, release: str, batches: Iterable[Batch], columns: int) -> AsyncIterator[Outcome[NDArray[np.int32]]]:
        """Ask for row blocks."""
        return self._streamed(self._link.answer(release, batches, columns), "Answer", {"release": release})

    def sum_round(self, request: party_pb2.SecureSumRequest) -> AsyncIterator[Outcome[bytes]]:
        """One round of a secure sum."""
        what = {"release": request.release, "attempt": request.attempt, "round": tracing.round_name(request.round)}
        return self._streamed(self._link.sum_round(request), "SecureSum", what)

    async def attest(self) -> Outcome[Signed]:
        """Ask for the party's signed statement of what the run has cost it."""
        return await self._asked("Attest", self._link.attest())

    async def close(self) -> None:
        """Close the connection."""
        await self._link.close()

    async def _asked(self, verb: str, asking: Awaitable[Outcome[Value]]) -> Outcome[Value]:
        call, before = self._begin(verb, {}), self.traffic
        try:
            with tracing.within(call):
                outcome = await asking
        except BaseException as error:
            tracing.failed(call, error)
            raise
        self._end(call, verb, outcome, before)
        return outcome

    async def _streamed(
        self, stream: AsyncIterator[Outcome[Value]], verb: str, what: Mapping[str, object]
    ) -> AsyncIterator[Outcome[Value]]:
        call, before = self._begin(verb, what), self.traffic
        outcome: Outcome[Any] = Answered(None)
        try:
            async with aclosing(stream):  # type: ignore[type-var]
                while True:
                    # Not around the yield: the span would then cover the work of whoever iterates.
                    with tracing.within(call):
                        outcome = await anext(stream)
                    yield outcome
        except (StopAsyncIteration, GeneratorExit) as ended:
            self._end(call, verb, outcome, before)
            if isinstance(ended, GeneratorExit):
                raise
        except BaseException as error:
            tracing.failed(call, error)
            raise

    def _begin(self, verb: str, what: Mapping[str, object]) -> tracing.Part:
        told = {"verb": verb, "party": self.name, "try": self._failed.get(verb, 0) + 1, **what}
        return tracing.begin(f"call {verb}", **told)

    def _end(self, call: tracing.Part, verb: str, outcome: Outcome[Any], before: int) -> None:
        """End a call's span with its outcome; after a loss the next call of the same verb counts as another try."""
        self._failed[verb] = self._failed.get(verb, 0) + 1 if isinstance(outcome, Lost) else 0
        call.set({"bytes": self.traffic - before})
        match outcome:
            case Refused(refusal):
                call.end("refused", str(refusal.reason))
            case Lost():
                call.end("lost")
            case _:
                call.end("answered")
