"""Follows what simulated parties release while they run: the sums of steps, which a run's store does not keep."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from coordinator.transport.link import Answered, Batch, OnPercent, Outcome, PartyLink
from protos.computed import Computed
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity.signing import Signed

PARAMETERS: Final = "parameters"


class Watch(Protocol):
    """Is told of every release as an attacker sees it."""

    def released(self, release: str, point: NDArray[np.float32], values: NDArray[np.int32]) -> None:
        """All parties' noisy rows of a release together, modulo 2**32, [rows, columns].

        point: the parameters that were provided last, [parameters].
        """
        ...

    def alone(self, release: str, party: str, point: NDArray[np.float32], values: NDArray[np.int32]) -> None:
        """One party's own noisy rows, before those of all are added up."""
        ...


class _Totals:
    """The rows of each release, as the parties give them."""

    def __init__(self, watch: Watch, parties: int) -> None:
        self._watch, self._parties = watch, parties
        self._given: dict[str, list[NDArray[np.int32]]] = {}
        self.point = np.empty(0, np.float32)

    def add(self, release: str, party: str, values: NDArray[np.int32]) -> None:
        self._watch.alone(release, party, self.point, values)
        given = self._given.setdefault(release, [])
        given.append(values)
        if len(given) == self._parties:
            total = np.zeros(values.shape, np.uint32)
            for each in self._given.pop(release):
                total += each.view(np.uint32)
            self._watch.released(release, self.point, total.view(np.int32))


def watched(links: Sequence[PartyLink], watch: Watch) -> list[PartyLink]:
    """The links, with what their parties release told to `watch`. Memory: the rows of one release."""
    totals = _Totals(watch, len(links))
    return [_Watched(link, totals) for link in links]


class _Watched:
    """A `PartyLink` that asks another, and tells what it released."""

    def __init__(self, link: PartyLink, totals: _Totals) -> None:
        self._link, self._totals = link, totals

    @property
    def name(self) -> str:
        return self._link.name

    @property
    def traffic(self) -> int:
        return self._link.traffic

    async def describe(self, nonce: bytes) -> Outcome[party_pb2.DescribeResponse]:
        return await self._link.describe(nonce)

    async def join(self, run_id: str, plan: plan_pb2.Plan, plan_hash: bytes, **more: Any) -> Outcome[Computed]:
        return await self._link.join(run_id, plan, plan_hash, **more)

    async def leave(self) -> Outcome[None]:
        return await self._link.leave()

    async def provide(self, kind: str, content: bytes) -> Outcome[None]:
        if kind == PARAMETERS:
            self._totals.point = np.frombuffer(content, "<f4").astype(np.float32)
        return await self._link.provide(kind, content)

    async def train(self, request: party_pb2.TrainRequest, on_percent: OnPercent) -> Outcome[None]:
        return await self._link.train(request, on_percent)

    async def answer(
        self, release: str, batches: Iterable[Batch], columns: int
    ) -> AsyncIterator[Outcome[NDArray[np.int32]]]:
        wanted, found = list(batches), []
        async for outcome in self._link.answer(release, wanted, columns):
            if isinstance(outcome, Answered):
                found.append(outcome.value)
                if len(found) == len(wanted):
                    self._totals.add(release, self.name, np.concatenate(found))
            yield outcome

    def sum_round(self, request: party_pb2.SecureSumRequest) -> AsyncIterator[Outcome[bytes]]:
        return self._link.sum_round(request)

    async def attest(self) -> Outcome[Signed]:
        return await self._link.attest()

    async def close(self) -> None:
        await self._link.close()
