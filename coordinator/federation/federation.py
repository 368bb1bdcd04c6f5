"""The federation of all parties of a run: each request goes to every party at once.

A refusal ends the request and may end the run; the run may survive the loss of a party.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import PartyRefused, RunStopped
from coordinator.federation.admission import admit
from coordinator.federation.attendance import Attendance
from coordinator.federation.attestation import attested
from coordinator.federation.participants import Participants
from coordinator.federation.rounds import Rounds
from coordinator.federation.secure_sums import SecureSums
from coordinator.identity.identity import Own
from coordinator.plan.plan import Plan
from coordinator.pricing.release import PricedPlan, Release
from coordinator.progress.events import Observer
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.transport.grpc_link import GrpcLink
from coordinator.transport.launchers import PartyAddress
from coordinator.transport.link import Answered, Batch, Lost, Outcome, PartyLink, Refused
from coordinator.transport.retry import PatientLink, Retry
from coordinator.transport.traced import traced
from protos.computed import Computed
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity.signing import Signed
from protos.refusal import Refusal
from protos.steps import is_step_name

LAUNCHED_SECONDS: Final = 20.0
"""The most seconds to wait for a party that this run has started: if its process is gone, it does not come back by
itself.
"""


class Federation:
    """The parties of a run, all asked at once. Any verb may lose parties, but never goes below the plan's minimum.

    `Participants` says when a refusal or a loss ends the run; a link that reports a loss has retried before. Every verb
    raises `PartyRefused`, `PartyLost`, or `RunStopped` after `stop`.
    """

    def __init__(
        self,
        links: Sequence[PartyLink],
        own: Own | None,
        minimum: int,
        attendance: Attendance,
        processes: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """own: None where parties are neither admitted nor asked to attest. processes: as of `Participants`."""
        self._parties = Participants(links, minimum, attendance, processes)
        self._sums = SecureSums(self._parties, Rounds(self._parties), self._arrived)
        self._own = own
        self._attendance = attendance
        self._certificates: dict[str, bytes] = {}
        self.computed: dict[str, Computed] = {}

    @classmethod
    def at(
        cls,
        addresses: Sequence[PartyAddress],
        priced: PricedPlan[Plan],
        own: Own,
        progress: Progress,
        observer: Observer | None = None,
    ) -> "Federation":
        """A federation of gRPC links to these addresses, with the plan's deadlines and the coordinator's identity
        `own`.
        """
        settings = priced.plan.federation
        patience = settings.retry_seconds if settings.shards is None else min(settings.retry_seconds, LAUNCHED_SECONDS)
        attendance = Attendance(progress, observer, patience)
        retry = Retry(patience)
        links = [
            PatientLink(
                traced(
                    GrpcLink(
                        each.name,
                        each.address,
                        each.token,
                        identity=own.identity if own.tls else None,
                        way=each.way,
                        deadline=settings.deadline_seconds,
                        drop_after=settings.drop_after,
                        train_within=settings.train_within,
                        troubles=attendance,
                    )
                ),
                retry,
                attendance,
            )
            for each in addresses
        ]
        processes = {each.name: each.process for each in addresses if each.process}
        return cls(links, own, priced.plan.minimum_parties, attendance, processes)

    @property
    def present(self) -> tuple[str, ...]:
        """The names of the parties that take part now."""
        return self._parties.names

    @property
    def lost(self) -> Mapping[str, str]:
        """Why each lost party was lost, by its name."""
        return self._parties.lost

    @property
    def traffic(self) -> int:
        """Tensor and artefact bytes exchanged so far, both ways."""
        return sum(link.traffic for link in self._parties.all)

    @property
    def stopping(self) -> bool:
        """Whether the run is to stop."""
        return self._attendance.stopping

    def say(self, line: str) -> None:
        """Print a line for a person that stays on the screen."""
        self._attendance.say(line)

    def among(self, names: Collection[str]) -> AbstractContextManager[None]:
        """Ask some parties alone, inside this context; none named: all.

        The run goes on without one of them that is lost as long as enough of them, and of all parties, are left.
        """
        return self._parties.among(names)

    def stop(self) -> None:
        """Stop the run as soon as this wastes nothing that parties sent. Called on the loop's thread; idempotent.

        The block in hand is finished and stored, unless it waits for a party that is slow or away. Anything else stops
        at once; parties continue their training by themselves.
        """
        self._attendance.stop()

    async def open(self, run_id: str, priced: PricedPlan[Plan], *, spent: bool = False) -> None:
        """Find every party, check that it speaks our protocol and is the one the plan names, and have it join.

        spent: whether a ledger may hold a charge of this run, which is then resumed. If not, nothing has been spent
        when this raises.
        """
        self._parties.run_id, self._parties.spent = run_id, spent
        assert self._own is not None
        certificates, computed = await admit(self._parties, priced.binding, self._own)
        self._certificates |= certificates
        self.computed |= computed
        for name in self.present:
            self._attendance.state(name, "ready")

    async def provide(self, kind: str, content: bytes) -> None:
        """Send a public artefact to every party."""
        await self._parties.ask(f"take the {kind}", lambda link: link.provide(kind, content))

    async def train(
        self,
        request: party_pb2.TrainRequest | Mapping[str, party_pb2.TrainRequest],
        doing: str,
        *,
        then: str = "trained",
    ) -> None:
        """Have every party train; `doing` is the word that a person sees meanwhile, for example `counting`.

        A party charges the training before it opens its shard. request: the same for all, or each party's own. then:
        the word shown when a party has finished.
        """
        self._parties.spent = True
        for name in self.present:
            self._attendance.state(name, doing)

        def ask(link: PartyLink) -> Coroutine[Any, Any, Outcome[None]]:
            own = party_pb2.TrainRequest()
            own.CopyFrom(request if isinstance(request, party_pb2.TrainRequest) else request[link.name])

            def heard(percent: int | None) -> None:
                self._attendance.state(link.name, doing if percent is None else f"{doing} {percent}%")

            return link.train(own, heard)

        await self._parties.ask("train", ask)
        for name in self.present:
            self._attendance.state(name, then)

    def stepped(self, release: str, done: int, total: int, note: str = "") -> None:
        """Show how many steps of a release are stored."""
        self._attendance.stored(release, done, total, note)

    async def aggregate(
        self, release: str, rows: int, columns: int, block_rows: int, store: RunStore, note: str = ""
    ) -> int:
        """Sum a released matrix over the parties, block by block, into the store; returns how many parties are in it.

        One sum covers one matrix and one list of parties. Blocks that the store already keeps of this list's sum are
        not asked for again. When a party is lost midway, the sum starts again without it; the others send the same
        bytes as before, at no cost. Memory: one block per party and their sum.
        """
        batches = batches_of(rows, block_rows)
        while True:
            kept = await asyncio.to_thread(store.begin_sum, release, self.present)
            done = len(kept)

            async def keep(batch: Batch, blocks: list[NDArray[np.int32]]) -> None:
                nonlocal done
                total = await asyncio.to_thread(modular_sum, blocks)
                await asyncio.to_thread(store.put_block, release, batch.number, batch.start, batch.stop, total)
                done += 1
                self._shown(release, done, len(batches), note)

            if done:
                self._shown(release, done, len(batches), note)
            left = [batch for batch in batches if batch.number not in kept]
            if await self._blocks(release, left, len(batches), columns, keep, finish=True):
                return len(self._parties.links)
            self._attendance.say("  the sum starts again with the parties that are left; nothing is paid twice")

    async def sum_securely(
        self,
        release: Release,
        terms: plan_pb2.Terms,
        block_rows: int,
        store: RunStore,
        before: Callable[[int], Awaitable[None]] | None = None,
    ) -> int:
        """Sum a released matrix so that nobody sees one party's part; returns how many parties are in it.

        before: called before every attempt with its number, to prepare what the attempt needs, for example a sample of
        its own.

        An attempt that a killed coordinator left is continued. An attempt in which too many parties were lost is made
        again, where the plan pays for that; it costs nothing if no masked vector had been sent, or if enough parties
        disclaim it (`coordinator.federation.lost_attempts`). A party whose sealed shares most others could not open is
        left out of later attempts, as long as enough parties remain.
        """
        return await self._sums.sum(release, terms, block_rows, store, self._certificates, before)

    async def repay(self, store: RunStore, *, last: bool = False) -> None:
        """Have parties that are in no sum of an attempt take back what it charged them, as far as they can be reached.

        last: whether the run is about to end; then lost parties are asked too, for a few seconds.
        """
        await self._sums.repay(store, last=last)

    async def gather(
        self,
        release: str,
        rows: int,
        columns: int,
        block_rows: int,
        note: str = "",
        *,
        odd: Callable[[NDArray[np.int64]], str] = lambda matrix: "",
    ) -> dict[str, NDArray[np.int64]]:
        """Each party's own matrix [rows, columns], of a release whose noise the coordinator is trusted to add.

        odd: why a matrix cannot be used, empty where it can; a party whose matrix cannot be used counts as lost. The
        matrices are held in memory alone: they must never be stored or shown. Memory: all parties' matrices.
        """
        batches = batches_of(rows, block_rows)
        found: list[list[NDArray[np.int32]]] = []

        async def keep(batch: Batch, blocks: list[NDArray[np.int32]]) -> None:
            found.append(blocks)
            self._shown(release, len(found), len(batches), note)

        while not await self._blocks(release, batches, len(batches), columns, keep, finish=False):
            found.clear()
        whole = [np.concatenate(parts).astype(np.int64) for parts in zip(*found, strict=True)]
        each = dict(zip(self._parties.links, whole, strict=True))
        wrong = {name: Lost(why, passing=False) for name, matrix in each.items() if (why := odd(matrix))}
        self._parties.settle(wrong, f"give {release}")
        return {name: each[name] for name in self._parties.links}

    async def attest(self, digest: str, sums: Mapping[str, Sequence[Release]]) -> dict[str, Signed]:
        """Every party's signed attestation of what the run has cost it, checked against the releases in whose sums it
        is.

        digest: the plan hash, in hex. A party that is lost meanwhile attests nothing; a party whose attestation is not
        valid counts as lost, and `lost` says why.
        """

        async def ask(link: PartyLink) -> Outcome[Signed | Refusal]:
            outcome = await link.attest()
            if isinstance(outcome, Lost):
                return outcome
            return Answered(outcome.refusal if isinstance(outcome, Refused) else outcome.value)

        assert self._own is not None
        said = await self._parties.ask("attest", ask)
        signed, odd = {}, {}
        for name, each in said.items():
            if isinstance(each, Refusal):
                odd[name] = f"party {name} refused to attest what the run cost it: {each.sentence}"
                continue
            try:
                attested(name, each, self._parties.run_id, digest, sums.get(name, ()), self._own)
                signed[name] = each
            except PartyRefused as error:
                odd[name] = str(error)
        self.disbelieve(odd)
        return signed

    def disbelieve(self, odd: Mapping[str, str]) -> None:
        """Go on without parties whose attestation is not valid. odd: why, one sentence each.

        Raises `PartyLost` where too few are left.
        """
        self._parties.disbelieve(odd)

    async def leave(self) -> None:
        """Tell every party that still answers that the run has ended."""
        await asyncio.gather(*(link.leave() for link in self._parties.links.values()))

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(link.close() for link in self._parties.all))

    def _arrived(self, release: str, done: int, total: int) -> None:
        self._shown(release, done, total, "blocks of the secure sum")

    def _shown(self, release: str, done: int, total: int, note: str) -> None:
        """Show the progress of a sum; steps are counted, not shown one by one."""
        if not is_step_name(release):
            self._attendance.stored(release, done, total, note)

    async def _blocks(
        self,
        release: str,
        batches: Sequence[Batch],
        total: int,
        columns: int,
        keep: Callable[[Batch, list[NDArray[np.int32]]], Awaitable[None]],
        *,
        finish: bool,
    ) -> bool:
        """All parties' answers to every batch, one batch at a time; False as soon as a party was lost.

        finish: whether to wait for a block that parties are making when the run is to stop.
        """
        self._parties.spent = True
        streams = {name: link.answer(release, batches, columns) for name, link in self._parties.links.items()}
        try:
            for batch in batches:
                if self._attendance.stopping:
                    raise RunStopped("stopped")
                taken = {name: self._taken(release, name, stream) for name, stream in streams.items()}
                outcomes = await self._parties.together(taken, finish=finish)
                at = f"batch {batch.number + 1} of {total}"
                blocks = self._parties.settle(outcomes, f"answer {at}", f" at {at}")
                if len(blocks) < len(streams):
                    return False
                await keep(batch, list(blocks.values()))
        finally:
            for stream in streams.values():
                await stream.aclose()  # type: ignore[attr-defined]
        if self._attendance.stopping:
            raise RunStopped("stopped")
        return True

    async def _taken(
        self, release: str, party: str, stream: AsyncIterator[Outcome[NDArray[np.int32]]]
    ) -> Outcome[NDArray[np.int32]]:
        began = time.monotonic()
        outcome = await anext(stream)
        if isinstance(outcome, Answered):
            self._attendance.block(release, party, time.monotonic() - began, outcome.value.nbytes)
        return outcome


def batches_of(rows: int, block_rows: int) -> list[Batch]:
    """All rows in blocks, numbered from 0."""
    starts = range(0, rows, block_rows)
    return [Batch(number, start, min(start + block_rows, rows)) for number, start in enumerate(starts)]


def modular_sum(blocks: Sequence[NDArray[np.int32]]) -> NDArray[np.int64]:
    """The sum of int32 blocks modulo 2**32, read as a signed number in [-2**31, 2**31)."""
    total = np.zeros(blocks[0].shape, np.uint32)
    for block in blocks:
        total += block.view(np.uint32)
    return total.view(np.int32).astype(np.int64)
