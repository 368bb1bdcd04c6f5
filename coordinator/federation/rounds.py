"""One round of a secure sum put to one party: what it says is taken in, and why it went no further is kept apart."""

import asyncio
import contextlib

from aggregation.errors import Cheated
from coordinator.federation.asking import OnMessage
from coordinator.transport.link import Answered, Outcome, PartyLink, Refused
from protos.conclave.v1 import party_pb2
from protos.refusal import Reason, Refusal


async def said(
    link: PartyLink, request: party_pb2.SecureSumRequest, on_message: OnMessage, one_at_a_time: asyncio.Lock
) -> Outcome[Refusal | Cheated | None]:
    """A party's part of a round, message by message; what ended it early by the rules of the sum, None where nothing.

    Of all rounds but the masked blocks, which are counted as they arrive, a party has one message to say. Where a party
    refuses for another reason, or is lost, that is the outcome.
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
    """Why a party did not say its part, in words; empty where it did."""
    if isinstance(outcome, Refused):
        return outcome.refusal.sentence
    if not isinstance(outcome, Answered):
        return outcome.why
    ended = outcome.value
    return "" if ended is None else ended.sentence if isinstance(ended, Refusal) else str(ended)
