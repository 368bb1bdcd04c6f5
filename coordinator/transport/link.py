"""One party as the coordinator sees it: typed verbs that return an answer, a refusal or a loss.

A call does not raise for what a party or a network does; only bugs raise.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import PartyLost
from protos.computed import Computed
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity.signing import Signed
from protos.refusal import Refusal

Value = TypeVar("Value")
OnPercent = Callable[[int | None], None]
"""A callback at every sign of progress of a training: its percent, or None where that is not known."""


@dataclass(frozen=True, slots=True)
class Answered(Generic[Value]):
    """The party did what was asked."""

    value: Value


@dataclass(frozen=True, slots=True)
class Refused:
    """The party refused. The same call again would be refused again."""

    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Lost:
    """The party did not answer, or not with anything usable. `why` completes the sentence "party north was lost: ...".

    passing: whether asking again may help. code: of the page that says more, where it is known what is wrong.
    """

    why: str
    passing: bool = True
    code: str = PartyLost.CODE


Outcome = Answered[Value] | Refused | Lost


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows [start, stop) of a released matrix, with the number that they keep for the whole run."""

    number: int
    start: int
    stop: int


class Troubles(Protocol):
    """Is told by a link what is wrong with its party while a call goes on; never asks anything back."""

    def slow(self, party: str, seconds: float) -> None:
        """The party has been silent for this long, but its node says that it serves; it is waited for."""
        ...

    def away(self, party: str, doing: str, why: str) -> None:
        """A call was lost and will be made again."""
        ...

    def back(self, party: str) -> None:
        """A party that was slow or away answers again."""
        ...


class Way(Protocol):
    """How a party that has no address of its own is reached."""

    @property
    def address(self) -> str:
        """Where gRPC connects to on this machine."""
        ...

    @property
    def shown(self) -> str:
        """What sentences name in place of an address."""
        ...

    async def missing(self, within: float) -> str | None:
        """Wait up to so many seconds for the party. None where it is there, else why it is not."""
        ...


class Untroubled:
    """Ignores all troubles."""

    def slow(self, party: str, seconds: float) -> None: ...

    def away(self, party: str, doing: str, why: str) -> None: ...

    def back(self, party: str) -> None: ...


class PartyLink(Protocol):
    """The verbs of one party. `Way` is what differs for a party that dials the coordinator."""

    @property
    def name(self) -> str: ...

    @property
    def traffic(self) -> int: ...

    async def describe(self, nonce: bytes) -> Outcome[party_pb2.DescribeResponse]: ...

    async def join(
        self,
        run_id: str,
        plan: plan_pb2.Plan,
        plan_hash: bytes,
        *,
        peers: Sequence[party_pb2.Peer] = (),
        needs: party_pb2.Needs | None = None,
    ) -> Outcome[Computed]: ...

    async def leave(self) -> Outcome[None]: ...

    async def provide(self, kind: str, content: bytes) -> Outcome[None]: ...

    async def train(self, request: party_pb2.TrainRequest, on_percent: OnPercent) -> Outcome[None]: ...

    def answer(
        self, release: str, batches: Iterable[Batch], columns: int
    ) -> AsyncIterator[Outcome[NDArray[np.int32]]]: ...

    def sum_round(self, request: party_pb2.SecureSumRequest) -> AsyncIterator[Outcome[bytes]]: ...

    async def attest(self) -> Outcome[Signed]: ...

    async def close(self) -> None: ...
