"""All parties of a run as one: what a recipe asks is put to every party at once; a refusal ends it, a loss need not."""

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import AttemptLost, Cheated
from coordinator.errors import PartyLost, PartyRefused, RunStopped
from coordinator.federation import rounds
from coordinator.federation.asking import OnMessage
from coordinator.federation.attendance import Attendance
from coordinator.federation.lost_attempts import LostAttempts
from coordinator.federation.refunds import Refunds
from coordinator.federation.sum_attempt import SumRun, Wanted, context_of, forget_vectors, verifier, without
from coordinator.identity.identity import Own, attested, new_nonce, proven
from coordinator.plan.plan import Plan
from coordinator.pricing.release import Bound, Release
from coordinator.progress.events import Observer
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.transport.launchers import PartyAddress
from coordinator.transport.link import Answered, Batch, GrpcLink, Lost, Outcome, PartyLink, Refused
from coordinator.transport.retry import PatientLink, Retry
from coordinator.transport.traced import traced
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import plan_hash
from protos.identity.signing import Signed
from protos.refusal import Reason, Refusal
from protos.steps import is_step_name

Value = TypeVar("Value")

LAUNCHED_SECONDS: Final = 20.0
"""How long a party of this run's own is waited for at most: its process, once gone, does not come back by itself."""

BACK_SECONDS: Final = 5.0
"""How long a party that was lost may take to be back for the charge that it can take back, before the run ends."""

MOST_TRIES: Final = 5
"""Attempts at one secure sum in a row, charged or not."""

_MENDABLE: Final = frozenset(
    {
        Reason.POLICY,
        Reason.BUDGET,
        Reason.NOT_JOINED,
        Reason.ARTEFACT,
        Reason.SHARD,
        Reason.TRAINING,
        Reason.AUTHENTICATION,
        Reason.STORAGE,
        Reason.MEMORY,
    }
)
"""Refusals after which the same run may get another answer, once somebody did something about them."""


class Federation:
    """The parties that take part. Any verb may shrink it, never below the plan's minimum.

    A refusal ends the run before anything was spent: it is a decision, and people may agree on another plan. A loss
    does not, as long as enough parties stay for the minimum and for the noise, nor does a refusal once something was
    spent; what a link returns as lost was asked again and again before. Every verb raises `PartyRefused`, `PartyLost`,
    or `RunStopped` after `stop`.
    """

    def __init__(self, links: Sequence[PartyLink], own: Own, minimum: int, attendance: Attendance) -> None:
        self._all = tuple(links)
        self._links = {link.name: link for link in links}
        self._own = own
        self._minimum = minimum
        self._attendance = attendance
        self._run_id = ""
        self._spent = False
        self._certificates: dict[str, bytes] = {}
        self._where: dict[str, str] = {}
        self._refunds: Refunds | None = None
        self.lost: dict[str, str] = {}

    @classmethod
    def at(
        cls,
        addresses: Sequence[PartyAddress],
        bound: Bound[Plan],
        own: Own,
        progress: Progress,
        observer: Observer | None = None,
    ) -> "Federation":
        """A federation of gRPC links to these addresses, as patient as the plan says, asked as whom `own` says."""
        settings = bound.plan.federation
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
        return cls(links, own, bound.plan.minimum_parties, attendance)

    @property
    def present(self) -> tuple[str, ...]:
        """The names of the parties that take part now."""
        return tuple(self._links)

    @property
    def traffic(self) -> int:
        """Tensor and artefact bytes exchanged so far, both ways."""
        return sum(link.traffic for link in self._all)

    @property
    def stopping(self) -> bool:
        """Whether the run is to stop."""
        return self._attendance.stopping

    def say(self, line: str) -> None:
        """A line that a person is to read, and that stays."""
        self._attendance.say(line)

    def stop(self) -> None:
        """End the run as soon as nothing that parties sent is wasted. Called on the loop's thread; idempotent.

        The block in hand is finished and stored, unless it waits for a party that is slow or away. Anything else ends
        at once: parties go on with their training by themselves.
        """
        self._attendance.stop()

    async def open(self, run_id: str, bound: Bound[Plan], *, spent: bool = False) -> None:
        """Find every party, check that it speaks our protocol and is who the plan says, and have it join.

        spent: whether a ledger may hold a charge of this run, which is resumed. If not, nothing has been spent when
        this raises.
        """
        self._run_id, self._spent = run_id, spent
        nonces = {name: new_nonce() for name in self.present}
        described = await self._ask("be described", lambda link: link.describe(nonces[link.name]))
        peers: dict[str, party_pb2.Peer] = {}
        for name, answer in described.items():
            if answer.protocol_version != PROTOCOL_VERSION:
                older = "an older" if answer.protocol_version < PROTOCOL_VERSION else "a newer"
                raise PartyRefused(
                    f"party {name} speaks {older} protocol ({answer.protocol_version}; here {PROTOCOL_VERSION}). "
                    f"It runs Conclave {answer.software_version}: install the same version at both ends."
                    f"{self._money}"
                )
            if answer.name != name:
                raise PartyRefused(
                    f'the plan calls it "{name}", but the node at that address is party "{answer.name}". '
                    f"Mend the addresses in [federation] parties.{self._money}"
                )
            try:
                certificate = proven(name, answer, nonces[name], self._own)
            except PartyRefused as error:
                raise PartyRefused(f"{error}{self._money}") from None
            peers[name] = party_pb2.Peer(name=name, certificate=certificate)
            self._certificates[name] = certificate
        digest = plan_hash(bound.binding)

        def join(link: PartyLink) -> Coroutine[Any, Any, Outcome[None]]:
            others = [peer for name, peer in peers.items() if name != link.name]
            return link.join(run_id, bound.binding, digest, peers=others)

        await self._ask("join", join)
        for name in self.present:
            self._attendance.state(name, "ready")

    async def provide(self, kind: str, content: bytes) -> None:
        """Send a public artefact to every party."""
        await self._ask(f"take the {kind}", lambda link: link.provide(kind, content))

    async def train(
        self,
        request: party_pb2.TrainRequest | Mapping[str, party_pb2.TrainRequest],
        doing: str,
        *,
        then: str = "trained",
    ) -> None:
        """Have every party train something; `doing` is the word a person sees, for example `counting`.

        A party charges it before it opens its shard. request: the same for all, or every party's own. then: the word
        when it has.
        """
        self._spent = True
        for name in self.present:
            self._attendance.state(name, doing)

        def ask(link: PartyLink) -> Coroutine[Any, Any, Outcome[None]]:
            own = party_pb2.TrainRequest()
            own.CopyFrom(request if isinstance(request, party_pb2.TrainRequest) else request[link.name])

            def heard(percent: int | None) -> None:
                self._attendance.state(link.name, doing if percent is None else f"{doing} {percent}%")

            return link.train(own, heard)

        await self._ask("train", ask)
        for name in self.present:
            self._attendance.state(name, then)

    def stepped(self, release: str, done: int, total: int, note: str = "") -> None:
        """Show how many steps of a release are stored."""
        self._attendance.stored(release, done, total, note)

    async def aggregate(
        self, release: str, rows: int, columns: int, block_rows: int, store: RunStore, note: str = ""
    ) -> int:
        """Sum a released matrix over the parties, block by block, into the store; returns how many parties are in it.

        One sum covers one matrix under one list of parties: blocks that the store keeps of these very parties' sum are
        not asked for again, and when a party is lost midway the sum starts again without it; the others send the same
        bytes as before, at no cost. Memory: one block a party and their sum.
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
                return len(self._links)
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

        before: what every attempt needs, by its number, for example a sample of its own.

        An attempt that a killed coordinator left goes on where it was. One in which too many parties were lost is made
        anew, where the plan pays for that; what was lost before any masked vector was sent costs nothing, nor what
        enough parties disclaim (`coordinator.federation.lost_attempts`). A party whose sealed shares most others could
        not open is left out of the attempts that follow, as long as enough are left.
        """
        if store.fact(f"summed {release.name}"):
            forget_vectors(store)
            return len(store.summed(release.name))
        certificates = {name: base64.b64encode(each).decode() for name, each in self._certificates.items()}
        await asyncio.to_thread(lambda: store.note(certificates=(store.fact("certificates") or {}) | certificates))
        verify = verifier({name: base64.b64decode(each) for name, each in store.fact("certificates").items()})
        wanted = Wanted(release.name, release.rows, release.columns, block_rows)
        self._spent = True
        contexts = partial(context_of, store.id, store.fact("plan_hash"), terms, wanted)
        lost = LostAttempts(release.name, contexts, verify, store, self._sum_try, self._attendance.say)
        await lost.settle(self.present)
        await self.repay(store)
        for _ in range(MOST_TRIES):
            attempt = store.fact(f"attempt {release.name}") or 0
            out: dict[str, str] = store.fact(f"left out {release.name}") or {}
            context = contexts(attempt)
            if before is not None:
                await before(attempt)
            run = SumRun(context, wanted, verify, store, self._sum_round)
            asked, told = without(self.present, out, context, self._minimum)
            for line in told:
                self._attendance.say(line)
            try:
                survivors = await run.run(asked, partial(self._arrived, release.name))
                await asyncio.to_thread(self._store_rows, run, survivors, wanted, store)
            except (AttemptLost, Cheated) as error:
                self._attendance.say(f"  {error}")
                run.forget()
                if isinstance(error, Cheated) and error.who in context.parties:
                    out[error.who] = "what it dealt could not be put together"
                out |= {
                    name: f"{by} of {of} parties could not open the shares that it dealt"
                    for name, (by, of) in run.suspects.items()
                }
                facts = {f"attempt {release.name}": attempt + 1, f"left out {release.name}": out}
                store.note(**facts | (lost.with_(attempt) if run.charged else {}))
                await lost.settle(self.present)
                continue
            for misfit in run.misfits:
                self._attendance.say(f"  {misfit}")
            run.forget()
            await self.repay(store)
            return len(survivors)
        raise PartyLost(
            f"{MOST_TRIES} attempts at the sum of {release.name} were lost.\n  The run is stored. When its parties "
            f"stay:  coordinator resume {self._run_id}"
        )

    async def repay(self, store: RunStore, *, last: bool = False) -> None:
        """Have parties that are in no sum of an attempt take back what it charged them, as far as they are there.

        last: whether the run is about to end; then those that were lost are asked too, for a few seconds.
        """
        refunds = self._refunds = self._refunds or Refunds(store)
        told = await refunds.settle(self.present, self._sum_try, last=last)
        if last and (away := refunds.owed - set(self.present)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BACK_SECONDS):
                    told += await refunds.settle(away, self._sum_try, last=True)
        for line in told:
            self._attendance.say(line)

    def _store_rows(self, run: SumRun, survivors: Sequence[str], wanted: Wanted, store: RunStore) -> None:
        """Unmask the sum into the store, whole before it counts."""
        store.begin_sum(wanted.release, survivors)
        for number, (start, stop, block) in enumerate(run.rows()):
            store.put_block(wanted.release, number, start, stop, block)
        store.note(**{f"summed {wanted.release}": True})

    def _arrived(self, release: str, done: int, total: int) -> None:
        self._shown(release, done, total, "masked")

    def _shown(self, release: str, done: int, total: int, note: str) -> None:
        """Show how much of a sum is there; steps are counted, not shown one by one."""
        if not is_step_name(release):
            self._attendance.stored(release, done, total, note)

    async def _sum_round(
        self, requests: Mapping[str, party_pb2.SecureSumRequest], on_message: OnMessage, doing: str
    ) -> dict[str, str]:
        """One round of a secure sum, at all parties at once. Who cheats, or lost its secrets, is out of the attempt;
        who named another party as the reason, and whom.

        Raises as every verb does where a party refuses for another reason, or too few are left.
        """
        one_at_a_time = asyncio.Lock()

        async def ask(link: PartyLink) -> Outcome[Refusal | Cheated | None]:
            outcome = await rounds.said(link, requests[link.name], on_message, one_at_a_time)
            if isinstance(outcome, Answered) and outcome.value is not None:
                speaker = "" if isinstance(outcome.value, Cheated) else f"party {link.name}: "
                self._attendance.say(f"  {speaker}{rounds.why(outcome)}")
            return outcome

        asked = {name: ask(link) for name, link in self._links.items() if name in requests}
        said = self._settle(await self._together(asked, finish=True), doing)
        return {name: each.who for name, each in said.items() if isinstance(each, Refusal) and each.who in requests}

    async def _sum_try(
        self, requests: Mapping[str, party_pb2.SecureSumRequest], on_message: OnMessage
    ) -> dict[str, str]:
        """A round of a secure sum that nothing depends on: who did not answer, and why. No party is dropped for it."""
        one_at_a_time = asyncio.Lock()

        async def ask(link: PartyLink) -> Outcome[str]:
            return Answered(rounds.why(await rounds.said(link, requests[link.name], on_message, one_at_a_time)))

        links = {link.name: link for link in self._all} | self._links
        outcomes = await self._together({name: ask(links[name]) for name in requests}, finish=False)
        return {name: each.value for name, each in outcomes.items() if isinstance(each, Answered) and each.value}

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
        """Each party's own matrix [rows, columns], of a release whose noise the coordinator is trusted to draw.

        odd: why a matrix is of no use, empty where it is; a party whose is not is lost, and left out. Held in memory
        alone: it must never be stored or shown. Memory: all parties' matrices.
        """
        batches = batches_of(rows, block_rows)
        found: list[list[NDArray[np.int32]]] = []

        async def keep(batch: Batch, blocks: list[NDArray[np.int32]]) -> None:
            found.append(blocks)
            self._shown(release, len(found), len(batches), note)

        while not await self._blocks(release, batches, len(batches), columns, keep, finish=False):
            found.clear()
        whole = [np.concatenate(parts).astype(np.int64) for parts in zip(*found, strict=True)]
        each = dict(zip(self._links, whole, strict=True))
        wrong = {name: Lost(why, passing=False) for name, matrix in each.items() if (why := odd(matrix))}
        self._settle(wrong, f"give {release}")
        return {name: each[name] for name in self._links}

    async def attest(self, digest: str, sums: Mapping[str, Sequence[Release]]) -> dict[str, Signed]:
        """Every party's signed word on what the run has cost it, checked against the releases in whose sums it is.

        digest: the plan hash, in hex. A party that is lost meanwhile attests nothing, and one whose word does not
        count is lost; `lost` says why.
        """

        async def ask(link: PartyLink) -> Outcome[Signed | Refusal]:
            outcome = await link.attest()
            if isinstance(outcome, Lost):
                return outcome
            return Answered(outcome.refusal if isinstance(outcome, Refused) else outcome.value)

        said = await self._ask("attest", ask)
        signed, odd = {}, {}
        for name, each in said.items():
            if isinstance(each, Refusal):
                odd[name] = f"party {name} refused to attest what the run cost it: {each.sentence}"
                continue
            try:
                attested(name, each, self._run_id, digest, sums.get(name, ()), self._own)
                signed[name] = each
            except PartyRefused as error:
                odd[name] = str(error)
        self.disbelieve(odd)
        return signed

    def disbelieve(self, odd: Mapping[str, str]) -> None:
        """Go on without parties whose signed word does not count. odd: why, a sentence each.

        Raises `PartyLost` where too few are left.
        """
        for name, why in odd.items():
            self.lost[name], self._where[name] = "it signed nothing that counts about the run's cost", ""
            self._links.pop(name, None)
            self._attendance.gone(name, why)
        if odd and len(self._links) < self._minimum:
            raise PartyLost("\n  ".join([*odd.values(), self._too_few()]))
        for why in odd.values():
            self._attendance.say(f"  {why} The run goes on without it")

    async def leave(self) -> None:
        """End the run at every party that still answers."""
        await asyncio.gather(*(link.leave() for link in self._links.values()))

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(link.close() for link in self._all))

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

        finish: whether a block that parties are making is worth waiting for when the run is to stop.
        """
        self._spent = True
        streams = {name: link.answer(release, batches, columns) for name, link in self._links.items()}
        try:
            for batch in batches:
                if self._attendance.stopping:
                    raise RunStopped("stopped")
                taken = {name: self._taken(release, name, stream) for name, stream in streams.items()}
                outcomes = await self._together(taken, finish=finish)
                at = f"batch {batch.number + 1} of {total}"
                blocks = self._settle(outcomes, f"answer {at}", f" at {at}")
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

    async def _ask(
        self, doing: str, verb: Callable[[PartyLink], Coroutine[Any, Any, Outcome[Value]]]
    ) -> dict[str, Value]:
        outcomes = await self._together({name: verb(link) for name, link in self._links.items()}, finish=False)
        return self._settle(outcomes, doing)

    async def _together(
        self, calls: dict[str, Coroutine[Any, Any, Outcome[Value]]], *, finish: bool
    ) -> dict[str, Outcome[Value]]:
        """Every party's outcome, or those that are there as soon as they end the run. Raises `RunStopped`."""
        tasks = {name: asyncio.create_task(call) for name, call in calls.items()}
        stopped = asyncio.create_task(self._attendance.stopped(finish=finish))
        pending = set(tasks.values())
        try:
            while pending and not self._decided([task.result() for task in tasks.values() if task.done()]):
                await asyncio.wait({*pending, stopped}, return_when=asyncio.FIRST_COMPLETED)
                pending = {task for task in pending if not task.done()}
                if stopped.done() and pending:
                    raise RunStopped("stopped")
            return {name: task.result() for name, task in tasks.items() if task.done()}
        finally:
            for task in (*tasks.values(), stopped):
                task.cancel()
            await asyncio.gather(*tasks.values(), stopped, return_exceptions=True)

    def _decided(self, outcomes: list[Outcome[Value]]) -> bool:
        """Whether the run ends here whatever the other parties say."""
        out = sum(isinstance(outcome, Lost | Refused) for outcome in outcomes)
        refused = any(isinstance(outcome, Refused) for outcome in outcomes)
        return len(self._links) - out < self._minimum or (refused and not self._spent)

    def _settle(self, outcomes: Mapping[str, Outcome[Value]], doing: str, at: str = "") -> dict[str, Value]:
        """The answers; lost parties are dropped, and once something is spent those that refuse. Raises when too few are
        left, or a party refused before.
        """
        gone = {name: outcome.why for name, outcome in outcomes.items() if isinstance(outcome, Lost)}
        refused = {name: outcome for name, outcome in outcomes.items() if isinstance(outcome, Refused)}
        for name, no in refused.items():
            if not self._spent or len(self._links) - len(gone) - len(refused) < self._minimum:
                raise PartyRefused(self._refused(name, doing, no))
            gone[name] = f"it refused to {doing}"  # why it is lost is published, and its words are not
        for name, why in gone.items():
            self.lost[name], self._where[name] = why, at
            self._links.pop(name, None)
            self._attendance.gone(name, why)
        if len(self._links) < self._minimum:
            raise PartyLost(self._too_few())
        for name in gone:
            words = f": {refused[name].refusal.sentence}" if name in refused else ""
            self._attendance.say(f"  {self._loss(name)}{words}; the run goes on without it")
        return {name: outcome.value for name, outcome in outcomes.items() if isinstance(outcome, Answered)}

    @property
    def _money(self) -> str:
        return "" if self._spent else " Nothing was spent."

    def _refused(self, name: str, doing: str, refused: Refused) -> str:
        said = f"party {name} refused to {doing}: {refused.refusal.sentence}{self._money}"
        if not self._spent or refused.refusal.reason not in _MENDABLE:
            return said
        return f"{said} The run is stored. When that is mended:  coordinator resume {self._run_id}"

    def _too_few(self) -> str:
        reasons = "; ".join(self._loss(name) for name in self.lost)
        *others, last = self.lost
        back = f"{', '.join(others)} and {last} are" if others else f"{last} is"
        kept = "The run is stored and nothing was paid twice." if self._spent else "Nothing was spent."
        return (
            f"{reasons}. The plan needs {self._minimum} of its parties and {len(self._links)} are left.\n"
            f"  {kept} When {back} back (`party serve`):  coordinator resume {self._run_id}"
        )

    def _loss(self, name: str) -> str:
        why, at = self.lost[name], self._where[name]
        return f"party {name} was lost{at} ({why})" if at else f"party {name} was lost: {why}"


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
