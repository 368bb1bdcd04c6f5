"""Refunds for parties that were charged for a secure sum which went on without them: the evidence is stored and sent
later.

As with `coordinator.federation.lost_attempts`, this only spares the parties' ledgers: when it fails, the run goes on,
and a party that never returns stays charged (`aggregation.secure_sum.absence`).
"""

import base64
from collections.abc import Collection, Mapping
from typing import Any, Final

from aggregation.errors import Cheated
from coordinator.federation.rounds import OnMessage, Tries
from coordinator.store.store import RunStore
from protos.conclave.v1 import party_pb2

_OWED: Final = "left out of sums"


def owed(store: RunStore, release: str, attempt: int, names: Collection[str], shown: bytes) -> dict[str, Any]:
    """The facts that record that an attempt goes on without these parties, though it may have charged them.

    shown: the encoded `Absence`. It is stored once, before the last round; an entry that exists stays.
    """
    kept: list[list[Any]] = store.fact(_OWED) or []
    if not names or any(each[:2] == [release, attempt] for each in kept):
        return {}
    return {_OWED: [*kept, [release, attempt, sorted(names), base64.b64encode(shown).decode()]]}


class Refunds:
    """The refunds that a run owes to parties that it left out of sums.

    A party that did not take its charge back when it was asked is asked once more when the run is about to end.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._refused: set[tuple[str, int, str]] = set()

    @property
    def owed(self) -> frozenset[str]:
        """Parties that have not confirmed that they took their charge back."""
        return frozenset(name for _, _, names, _ in self._kept for name in names)

    async def settle(self, present: Collection[str], ask: Tries, *, last: bool = False) -> list[str]:
        """Show the parties that are present why they need not pay; returns what to report. last: also ask parties that
        refused.
        """
        told = []
        for release, attempt, names, shown in self._kept:
            asked = [name for name in names if name in present]
            asked = [name for name in asked if last or (release, attempt, name) not in self._refused]
            if not asked:
                continue
            free: set[str] = set()
            why = await ask(
                {name: self._request(release, attempt, base64.b64decode(shown)) for name in asked}, _hears(free)
            )
            self._refused |= {(release, attempt, name) for name in why}
            if free:
                left = [name for name in names if name not in free]
                others = [each for each in self._kept if each[:2] != [release, attempt]]
                # The entry stays, empty: a coordinator that resumes the attempt must not owe the refund again.
                self._store.note(**{_OWED: [*others, [release, attempt, left, shown if left else ""]]})
            told += _told(release, attempt, free, why)
        return told

    @property
    def _kept(self) -> list[list[Any]]:
        return list(self._store.fact(_OWED) or [])

    def _request(self, release: str, attempt: int, shown: bytes) -> party_pb2.SecureSumRequest:
        return party_pb2.SecureSumRequest(
            release=release, attempt=attempt, round=party_pb2.SUM_ROUND_REFUND, message=shown
        )


def _hears(free: set[str]) -> OnMessage:
    def hear(who: str, said: bytes) -> None:
        if said:
            raise Cheated(who, "did not say that it is not charged.")
        free.add(who)

    return hear


def _told(release: str, attempt: int, free: Collection[str], why: Mapping[str, str]) -> list[str]:
    at = f"attempt {attempt + 1} at the sum of {release}"
    told = [f"  {name} is not in {at} and is free of its cost" for name in sorted(free)]
    return told + [f"  {name} is not in {at} and may stay charged for it: {why[name]}" for name in sorted(why)]
