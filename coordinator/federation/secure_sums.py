"""Secure sums of releases: attempts are made until one succeeds, or five were lost."""

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final

from aggregation.errors import AttemptLost, Cheated
from coordinator.errors import PartyLost
from coordinator.federation.lost_attempts import LostAttempts
from coordinator.federation.participants import Participants
from coordinator.federation.refunds import Refunds
from coordinator.federation.rounds import Rounds
from coordinator.federation.sum_attempt import SumRun, Wanted, context_of, forget_vectors, verifier, without
from coordinator.pricing.release import Release
from coordinator.store.store import RunStore
from protos.conclave.v1 import plan_pb2
from protos.roster import among, roster_of
from protos.steps import whole_of

BACK_SECONDS: Final = 5.0
"""Seconds to wait for a lost party, so that it can take its charge back, before the run ends."""

MOST_TRIES: Final = 5
"""The most attempts at one secure sum in a row, charged or not."""


class SecureSums:
    """The secure sums of one run.

    rounds: puts a round to the parties. arrived: told, for a release, how many of how many masked blocks have come.
    """

    def __init__(self, parties: Participants, rounds: Rounds, arrived: Callable[[str, int, int], None]) -> None:
        self._parties = parties
        self._rounds = rounds
        self._arrived = arrived
        self._refunds: Refunds | None = None

    async def sum(
        self,
        release: Release,
        terms: plan_pb2.Terms,
        block_rows: int,
        store: RunStore,
        certificates: Mapping[str, bytes],
        before: Callable[[int], Awaitable[None]] | None = None,
    ) -> int:
        """Sum a release into the store; returns how many parties are in it. See `Federation.sum_securely`.

        certificates: the signing certificates (DER) of the parties that joined this time.
        """
        if store.fact(f"summed {release.name}"):
            forget_vectors(store)
            return len(store.summed(release.name))
        terms = _among_its_own(terms, release.name)
        known = {name: base64.b64encode(each).decode() for name, each in certificates.items()}
        await asyncio.to_thread(lambda: store.note(certificates=(store.fact("certificates") or {}) | known))
        verify = verifier({name: base64.b64decode(each) for name, each in store.fact("certificates").items()})
        wanted = Wanted(release.name, release.rows, release.columns, block_rows)
        parties, say = self._parties, self._parties.attendance.say
        parties.spent = True
        contexts = partial(context_of, store.joined_as, store.fact("plan_hash"), terms, wanted)
        lost = LostAttempts(release.name, contexts, verify, store, self._rounds.attempt, say)
        await lost.settle(parties.names)
        await self.repay(store)
        for _ in range(MOST_TRIES):
            attempt = store.fact(f"attempt {release.name}") or 0
            out: dict[str, str] = store.fact(f"left out {release.name}") or {}
            context = contexts(attempt)
            if before is not None:
                await before(attempt)
            run = SumRun(context, wanted, verify, store, self._rounds.ask)
            asked, told = without(parties.names, out, context, parties.fewest)
            for line in told:
                say(line)
            try:
                survivors = await run.run(asked, partial(self._arrived, release.name))
                await asyncio.to_thread(self._store_rows, run, survivors, wanted, store)
            except (AttemptLost, Cheated) as error:
                say(f"  {error}")
                run.forget()
                if isinstance(error, Cheated) and error.who in context.parties:
                    out[error.who] = "what it dealt could not be put together"
                out |= {
                    name: f"{by} of {of} parties could not open the shares that it dealt"
                    for name, (by, of) in run.suspects.items()
                }
                facts = {f"attempt {release.name}": attempt + 1, f"left out {release.name}": out}
                store.note(**facts | (lost.with_(attempt) if run.charged else {}))
                await lost.settle(parties.names)
                continue
            for misfit in run.misfits:
                say(f"  {misfit}")
            run.forget()
            await self.repay(store)
            return len(survivors)
        raise PartyLost(
            f"{MOST_TRIES} attempts at the sum of {release.name} were lost.\n  The run is stored. When its parties "
            f"stay:  coordinator resume {parties.run_id}"
        )

    async def repay(self, store: RunStore, *, last: bool = False) -> None:
        """Have parties that are in no sum of an attempt take back what it charged them, as far as they can be reached.

        last: whether the run is about to end; then lost parties are asked too, for a few seconds.
        """
        refunds = self._refunds = self._refunds or Refunds(store)
        told = await refunds.settle(self._parties.names, self._rounds.attempt, last=last)
        if last and (away := refunds.owed - set(self._parties.names)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BACK_SECONDS):
                    told += await refunds.settle(away, self._rounds.attempt, last=True)
        for line in told:
            self._parties.attendance.say(line)

    def _store_rows(self, run: SumRun, survivors: Sequence[str], wanted: Wanted, store: RunStore) -> None:
        """Unmask the sum into the store; it counts only once it is complete."""
        store.begin_sum(wanted.release, survivors)
        for number, (start, stop, block) in enumerate(run.rows()):
            store.put_block(wanted.release, number, start, stop, block)
        store.note(**{f"summed {wanted.release}": True})


def _among_its_own(terms: plan_pb2.Terms, name: str) -> plan_pb2.Terms:
    """The terms as the parties of one sum have them."""
    found = [each for each in terms.releases if each.name == whole_of(name)]
    return among(terms, roster_of(found[0], terms)) if found else terms
