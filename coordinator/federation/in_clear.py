"""A federation of parties that are simulated in this process: no admission, and no masks on sums."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from coordinator.federation.attendance import Attendance
from coordinator.federation.federation import Federation
from coordinator.plan.plan import Plan
from coordinator.pricing.release import PricedPlan, Release
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.transport.link import PartyLink
from protos.conclave.v1 import plan_pb2
from protos.digest import plan_hash


class InClear(Federation):
    """A federation of simulated parties. Its sums are those of a run: each party's part with its share of the noise."""

    def __init__(self, links: Sequence[PartyLink], plan: Plan, progress: Progress) -> None:
        super().__init__(links, None, plan.minimum_parties, Attendance(progress, None, 0.0))

    async def open(self, run_id: str, priced: PricedPlan[Any], *, spent: bool = False) -> None:
        """Join every party to this plan."""
        self._parties.run_id, self._parties.spent = run_id, spent
        digest = plan_hash(priced.binding)
        await self._parties.ask("join", lambda link: link.join(run_id, priced.binding, digest))

    async def sum_securely(
        self,
        release: Release,
        terms: plan_pb2.Terms,
        block_rows: int,
        store: RunStore,
        before: Callable[[int], Awaitable[None]] | None = None,
    ) -> int:
        """Compute the same sum without masks, in one attempt: a simulated party's part needs no hiding."""
        if before is not None:
            await before(0)
        return await self.aggregate(release.name, release.rows, release.columns, block_rows, store)
