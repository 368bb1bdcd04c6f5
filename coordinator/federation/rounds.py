"""One round of a secure sum, put to many parties at once: takes in their messages, and records why a party stopped."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from aggregation.errors import Cheated
from coordinator.federation.participants import Participants
from coordinator.transport.link import Answered, Outcome, PartyLink, Refused
from protos.conclave.v1 import party_pb2
from protos.refusal import Reason, Refusal

OnMessage = Callable[[str, bytes], None]
"""A callback for a party's message; raises `Cheated` for a message that is not allowed."""


class Asks(Protocol):
    """Puts one round to parties at once; parties that are lost, or out of the attempt, do not answer.

    Returns the parties that stopped because of another party's message, with that party's name.
    """

    def __call__(
        self, requests: Mapping[str, party_pb2.SecureSumRequest], on_message: OnMessage, doing: str
    ) -> Awaitable[Mapping[str, str]]: ...


class Tries(Protocol):
    """Puts one round to parties at once and continues whatever they answer; returns why parties did not answer, by
    party.
    """

    def __call__(
        self, requests: Mapping[str, party_pb2.SecureSumRequest], on_message: OnMessage
    ) -> Awaitable[Mapping[str, str]]: ...


class Rounds:
    """Puts the rounds of a secure sum to the parties of a run: `ask` is an `Asks`, `attempt` is a `Tries`."""

    def __init__(self, parties: Participants) -> None:
        self._parties = parties

    async def ask(
        self, requests: Mapping[str, party_pb2.SecureSumRequest], on_message: OnMessage, doing: str
    ) -> dict[str, str]:
        """Put one round to all parties at once; returns who named another party as the reason for stopping, and whom.

        A party that cheats, or that lost its secrets, is out of the attempt. Raises as every verb does where a party
        refuses for another reason, or too few are left.
        """
        one_at_a_time = asyncio.Lock()

        async def ask(link: PartyLink) -> Outcome[Refusal | Cheated | None]:
            outcome = await said(link, requests[link.name], on_message, one_at_a_time)
            if isinstance(outcome, Answered) and outcome.value is not None:
                speaker = "" if isinstance(outcome.value, Cheated) else f"party {link.name}: "
                self._parties.attendance.say(f"  {speaker}{why(outcome)}")
            return outcome

        asked = {name: ask(link) for name, link in self._parties.links.items() if name in requests}
        found = self._parties.settle(await self._parties.together(asked, finish=True), doing)
        return {name: each.who for name, each in found.items() if isinstance(each, Refusal) and each.who in requests}

    async def attempt(
        self, requests: Mapping[str, party_pb2.SecureSumRequest], on_message: OnMessage
    ) -> dict[str, str]:
        """Put a round on which nothing depends; returns who did not answer, and why. No party is dropped for it."""
        one_at_a_time = asyncio.Lock()

        async def ask(link: PartyLink) -> Outcome[str]:
            return Answered(why(await said(link, requests[link.name], on_message, one_at_a_time)))

        links = {link.name: link for link in self._parties.all} | self._parties.links
        outcomes = await self._parties.together({name: ask(links[name]) for name in requests}, finish=False)
        return {name: each.value for name, each in outcomes.items() if isinstance(each, Answered) and each.value}


async def said(
    link: PartyLink, request: party_pb2.SecureSumRequest, on_message: OnMessage, one_at_a_time: asyncio.Lock
) -> Outcome[Refusal | Cheated | None]:
    """A party's messages in a round; returns what ended the round early by the rules of the sum, None where nothing
    did.

    In every round but that of the masked blocks, which are counted as they arrive, a party sends one message. Where a
    party refuses for another reason, or is lost, that is the outcome.
    """
    heard = 0
    async with contextlib.aclosing(link.sum_round(request)) as messages:  # type: ignore[type-var]
        async for outcome in messages:
            if isinstance(outcome, Refused) and outcome.refusal.reason == Reason.SECURE_SUM:
                return Answered(outcome.refusal)
            if not isinstance(outcome, Answered):
                return outcome
            heard += 1
            if heard > 1 and request.round != party_pb2.SUM_ROUND_MASK:
                return Answered(Cheated(link.name, "said more than one thing in a round of the sum."))
            try:
                async with one_at_a_time:
                    await asyncio.to_thread(on_message, link.name, outcome.value)
            except Cheated as error:
                return Answered(error)
    return Answered(None)


def why(outcome: Outcome[Refusal | Cheated | None]) -> str:
    """Why a party did not send its message, in words; empty where it did."""
    if isinstance(outcome, Refused):
        return outcome.refusal.sentence
    if not isinstance(outcome, Answered):
        return outcome.why
    ended = outcome.value
    return "" if ended is None else ended.sentence if isinstance(ended, Refusal) else str(ended)
