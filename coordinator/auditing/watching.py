"""Follows what simulated parties release while they run: the sums of steps, which a run's store does not keep."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from coordinator.federation.federation import modular_sum
from coordinator.transport.link import Answered, Batch, OnPercent, Outcome, PartyLink
from protos.computed import Computed
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity.signing import Signed
from protos.steps import number_of, whole_of

PARAMETERS: Final = "parameters"
TILT: Final = "tilt"

Floats: TypeAlias = NDArray[np.float32]


@dataclass(slots=True)
class Watch:
    """What simulated parties released, beside the public parameters that each release began at.

    sums: by the release's name, the parameters [parameters] and all parties' noisy rows, int64 [rows, columns]. alone:
    each party's own rows, int32 [rows, columns], of releases that are in no sum. tilt: float32 [tokens], what was
    provided for a language model's logits. Memory: all of it.
    """

    own: frozenset[str]
    parties: int
    sums: dict[str, tuple[Floats, NDArray[np.int64]]] = field(default_factory=dict)
    alone: dict[str, dict[str, NDArray[np.int32]]] = field(default_factory=dict)
    tilt: Floats | None = None
    _point: Floats = field(default_factory=lambda: np.empty(0, np.float32))
    _given: dict[str, list[NDArray[np.int32]]] = field(default_factory=dict)

    def provided(self, kind: str, content: bytes) -> None:
        """Is told of every public file that parties are sent."""
        if kind == PARAMETERS:
            self._point = np.frombuffer(content, "<f4").astype(np.float32)
        elif kind == TILT:
            self.tilt = np.frombuffer(content, "<f4").astype(np.float32)

    def answered(self, release: str, party: str, values: NDArray[np.int32]) -> None:
        """Is told of all of a party's rows of a release."""
        if whole_of(release) in self.own:
            self.alone.setdefault(release, {})[party] = values
            return
        given = self._given.setdefault(release, [])
        given.append(values)
        if len(given) == self.parties:
            self.sums[release] = self._point, modular_sum(self._given.pop(release))

    def steps(self, release: str) -> list[tuple[Floats, NDArray[np.int64]]]:
        """The parameters and the noisy sum of each step of a release, in order."""
        found = {number_of(name): each for name, each in self.sums.items() if whole_of(name) == release}
        return [found[number] for number in sorted(number for number in found if number is not None)]


def watched(links: Sequence[PartyLink], watch: Watch) -> list[PartyLink]:
    """The links, with what their parties release told to `watch`."""
    return [_Watched(link, watch) for link in links]


class _Watched:
    """A `PartyLink` that asks another, and tells what it released."""

    def __init__(self, link: PartyLink, watch: Watch) -> None:
        self._link, self._watch = link, watch

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
        self._watch.provided(kind, content)
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
                    self._watch.answered(release, self.name, np.concatenate(found))
            yield outcome

    def sum_round(self, request: party_pb2.SecureSumRequest) -> AsyncIterator[Outcome[bytes]]:
        return self._link.sum_round(request)

    async def attest(self) -> Outcome[Signed]:
        return await self._link.attest()

    async def close(self) -> None:
        await self._link.close()
