"""What a secure sum asks of parties, as whoever drives it sees it: one round, put to many of them at once."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from protos.conclave.v1 import party_pb2

OnMessage = Callable[[str, bytes], None]
"""Told what a party said; raises `Cheated` for what it may not say."""


class Asks(Protocol):
    """Puts one round to parties at once; those that are lost, or out of the attempt, simply do not answer.

    Gives the parties that went no further because of what another one sent, and that one's name.
    """

    def __call__(
        self, requests: Mapping[str, party_pb2.SecureSumRequest], on_message: OnMessage, doing: str
    ) -> Awaitable[Mapping[str, str]]: ...


class Tries(Protocol):
    """Puts one round to parties at once and goes on whatever becomes of it; why parties did not answer, by party."""

    def __call__(
        self, requests: Mapping[str, party_pb2.SecureSumRequest], on_message: OnMessage
    ) -> Awaitable[Mapping[str, str]]: ...
