"""Lost attempts at a secure sum: parties sign that they reveal nothing of them, and charges are taken back.

This only spares the parties' ledgers: when it fails, the run goes on and the attempt stays charged. What parties signed
is stored, so that a coordinator that was killed in between can continue, and a party that returns later can be asked
then.
"""

import base64
from collections.abc import Callable, Mapping
from typing import Any

from aggregation.errors import Cheated
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.disclaim import Disclaimer, Disclaimers, check_disclaimer, least_signers
from aggregation.secure_sum.graph import drawn
from aggregation.secure_sum.keys import Verify
from coordinator.federation.rounds import OnMessage, Tries
from coordinator.store.store import RunStore
from protos.conclave.v1 import party_pb2

DISCLAIM, REFUND = party_pb2.SUM_ROUND_DISCLAIM, party_pb2.SUM_ROUND_REFUND


class LostAttempts:
    """The lost attempts at one release's sum, each kept until every party says that it is not charged for it.

    contexts: each attempt's context, by its number.
    """

    def __init__(
        self,
        release: str,
        contexts: Callable[[int], Context],
        verify: Verify,
        store: RunStore,
        ask: Tries,
        say: Callable[[str], None],
    ) -> None:
        self._release = release
        self._contexts = contexts
        self._verify = verify
        self._store = store
        self._ask = ask
        self._say = say

    def with_(self, attempt: int) -> dict[str, Any]:
        """The facts that mark an attempt as lost, to be stored in the same transaction as the rest."""
        return {self._pending_key: [*self._pending, attempt]}

    async def settle(self, present: tuple[str, ...]) -> None:
        """Ask the parties that are present for the disclaimers still missing, and show these to parties that may be
        charged.
        """
        for attempt in self._pending:
            context = self._contexts(attempt)
            await self._settle(context, present)
            if set(context.parties) <= set(self._fact(attempt, "refunded", [])):
                self._store.note(**{self._pending_key: [each for each in self._pending if each != attempt]})

    async def _settle(self, context: Context, present: tuple[str, ...]) -> None:
        attempt = context.attempt
        signed: dict[str, str] = self._fact(attempt, "disclaimers", {})
        free: list[str] = self._fact(attempt, "refunded", [])
        before = (len(signed), len(free)) if self._store.fact(self._key(attempt, "disclaimers")) is not None else None

        def disclaimed(who: str, said: bytes) -> None:
            check_disclaimer(context, Disclaimer.decode(said, who), self._verify)
            signed[who] = base64.b64encode(said).decode()

        why = await self._round(DISCLAIM, context, [name for name in present if name not in signed], b"", disclaimed)
        self._note(attempt, "disclaimers", signed)
        # Above 16 parties each knows its own neighbours, and how many of those it takes.
        needed = 1 if drawn(context) else least_signers(context, context.parties)
        if len(signed) >= needed:
            shown = Disclaimers(
                tuple(Disclaimer.decode(base64.b64decode(signed[name]), name) for name in sorted(signed))
            )

            def refunded(who: str, said: bytes) -> None:
                if said:
                    raise Cheated(who, "did not say that it is not charged.")
                free.append(who)

            asked = [name for name in present if name in signed and name not in free]
            why |= await self._round(REFUND, context, asked, shown.encode(), refunded)
            self._note(attempt, "refunded", free)
        if before != (len(signed), len(free)):
            self._tell(context, len(signed), len(free), needed, why)

    async def _round(
        self,
        kind: "party_pb2.SumRound.ValueType",
        context: Context,
        names: list[str],
        message: bytes,
        hear: OnMessage,
    ) -> dict[str, str]:
        requests = {
            name: party_pb2.SecureSumRequest(
                release=self._release, attempt=context.attempt, round=kind, message=message
            )
            for name in names
        }
        return dict(await self._ask(requests, hear)) if requests else {}

    def _tell(self, context: Context, signed: int, free: int, needed: int, why: Mapping[str, str]) -> None:
        said = f"  attempt {context.attempt + 1} at the sum of {self._release}: {_parties(signed)} signed to reveal "
        said += f"nothing of it; {'none is' if not free else f'{free} are' if free > 1 else '1 is'} free of its cost"
        said += f", which takes {needed} signatures" if signed < needed else ""
        for reason in sorted(set(why.values())):
            said += f"; {', '.join(sorted(name for name in why if why[name] == reason))}: {reason}"
        self._say(said)

    @property
    def _pending_key(self) -> str:
        return f"lost {self._release}"

    @property
    def _pending(self) -> list[int]:
        return list(self._store.fact(self._pending_key) or [])

    def _fact(self, attempt: int, what: str, default: Any) -> Any:
        return self._store.fact(self._key(attempt, what)) or default

    def _note(self, attempt: int, what: str, value: Any) -> None:
        self._store.note(**{self._key(attempt, what): value})

    def _key(self, attempt: int, what: str) -> str:
        return f"sum {self._release} {attempt} {what}"


def _parties(count: int) -> str:
    return f"{count} part{'y' if count == 1 else 'ies'}"
