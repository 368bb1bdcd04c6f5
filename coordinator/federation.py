"""All parties of a run as one: what a recipe asks is put to every party at once; a refusal ends it, a loss need not."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import PartyLost, PartyRefused
from coordinator.launchers import PartyAddress
from coordinator.link import Answered, Batch, GrpcLink, Lost, Outcome, PartyLink, Refused
from coordinator.progress import Progress
from coordinator.store import RunStore
from coordinator.terms import Bound
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2
from protos.digest import plan_hash

Value = TypeVar("Value")


class Federation:
    """The parties that take part. Any verb may shrink it, never below the plan's minimum.

    A refusal ends the run: it is a decision, and a run without that party would be another plan. A loss does not, as
    long as enough parties stay for the minimum and for the noise.
    """

    def __init__(self, links: Sequence[PartyLink], minimum: int, progress: Progress) -> None:
        self._links = {link.name: link for link in links}
        self._minimum = minimum
        self._progress = progress
        self.lost: dict[str, str] = {}

    @classmethod
    def at(cls, addresses: Sequence[PartyAddress], bound: Bound, progress: Progress) -> "Federation":
        """A federation of gRPC links to these addresses."""
        deadline = bound.plan.federation.deadline_seconds
        links = [GrpcLink(each.name, each.address, each.token, deadline=deadline) for each in addresses]
        return cls(links, bound.plan.minimum_parties, progress)

    @property
    def present(self) -> tuple[str, ...]:
        """The names of the parties that take part now."""
        return tuple(self._links)

    @property
    def traffic(self) -> int:
        """Tensor and artefact bytes exchanged so far, both ways."""
        links = [link for link in self._links.values() if isinstance(link, GrpcLink)]
        return sum(link.bytes_received + link.bytes_sent for link in links)

    async def open(self, run_id: str, bound: Bound) -> None:
        """Find every party, check that it speaks our protocol and is who the plan says, and have it join.

        Raises `PartyRefused` or `PartyLost`; in either case nothing has been spent.
        """
        described = await self._ask("be described", lambda link: link.describe())
        for name, answer in described.items():
            if answer.protocol_version != PROTOCOL_VERSION:
                older = "an older" if answer.protocol_version < PROTOCOL_VERSION else "a newer"
                raise PartyRefused(
                    f"party {name} speaks {older} protocol ({answer.protocol_version}; here {PROTOCOL_VERSION}). "
                    f"It runs Conclave {answer.software_version}: install the same version at both ends. "
                    "Nothing was spent."
                )
            if answer.name != name:
                raise PartyRefused(
                    f'the plan calls it "{name}", but the node at that address is party "{answer.name}". '
                    "Mend the addresses in [federation] parties. Nothing was spent."
                )
        digest = plan_hash(bound.binding)
        await self._ask("join", lambda link: link.join(run_id, bound.binding, digest), spent=False)
        for name in self.present:
            self._progress.party(name, "ready")

    async def provide(self, kind: str, content: bytes) -> None:
        """Send a public artefact to every party."""
        await self._ask(f"take the {kind}", lambda link: link.provide(kind, content), spent=False)

    async def train(self, request: party_pb2.TrainRequest, doing: str) -> None:
        """Have every party train the same thing; `doing` is the word a person sees, for example `counting`."""

        for name in self.present:
            self._progress.party(name, doing)

        def ask(link: PartyLink) -> Awaitable[Outcome[None]]:
            own = party_pb2.TrainRequest()
            own.CopyFrom(request)
            return link.train(own, lambda percent: self._progress.party(link.name, f"{doing} {percent}%"))

        await self._ask("train", ask, spent=False)
        for name in self.present:
            self._progress.party(name, "trained")

    async def aggregate(
        self, release: str, rows: int, columns: int, block_rows: int, store: RunStore, note: str = ""
    ) -> int:
        """Sum a released matrix over the parties, block by block, into the store; returns how many parties are in it.

        One sum covers one matrix under one list of parties: when a party is lost midway the sum starts again without
        it, and the others send the same bytes as before, at no cost. Memory: one block a party and their sum.
        """
        batches = batches_of(rows, block_rows)

        async def keep(batch: Batch, blocks: list[NDArray[np.int32]]) -> None:
            await asyncio.to_thread(
                store.put_block, release, batch.number, batch.start, batch.stop, modular_sum(blocks)
            )

        while not await self._blocks(release, batches, columns, keep, note):
            self._progress.say("  the sum starts again with the parties that are left; nothing is paid twice")
        return len(self._links)

    async def gather(
        self, release: str, rows: int, columns: int, block_rows: int, note: str = ""
    ) -> dict[str, NDArray[np.int64]]:
        """Each party's own matrix [rows, columns], of a release whose noise the coordinator is trusted to draw.

        Held in memory alone: it must never be stored or shown. Memory: all parties' matrices.
        """
        batches = batches_of(rows, block_rows)
        found: list[list[NDArray[np.int32]]] = []

        async def keep(batch: Batch, blocks: list[NDArray[np.int32]]) -> None:
            found.append(blocks)

        while not await self._blocks(release, batches, columns, keep, note):
            found.clear()
        whole = [np.concatenate(parts).astype(np.int64) for parts in zip(*found, strict=True)]
        return dict(zip(self._links, whole, strict=True))

    async def leave(self) -> None:
        """End the run at every party that still answers."""
        await asyncio.gather(*(link.leave() for link in self._links.values()))

    async def close(self) -> None:
        """Close all connections."""
        await asyncio.gather(*(link.close() for link in self._links.values()))

    async def _blocks(
        self,
        release: str,
        batches: Sequence[Batch],
        columns: int,
        keep: Callable[[Batch, list[NDArray[np.int32]]], Awaitable[None]],
        note: str,
    ) -> bool:
        """All parties' answers to every batch, one batch at a time; False as soon as a party was lost."""
        streams = {name: link.answer(release, batches, columns) for name, link in self._links.items()}
        try:
            for done, batch in enumerate(batches):
                outcomes = dict(
                    zip(streams, await asyncio.gather(*(anext(stream) for stream in streams.values())), strict=True)
                )
                blocks = self._settle(outcomes, f"answer batch {batch.number + 1} of {len(batches)}")
                if len(blocks) < len(streams):
                    return False
                await keep(batch, list(blocks.values()))
                self._progress.bar(release, done + 1, len(batches), note)
        finally:
            for stream in streams.values():
                await stream.aclose()  # type: ignore[attr-defined]
        return True

    async def _ask(
        self, doing: str, verb: Callable[[PartyLink], Awaitable[Outcome[Value]]], *, spent: bool | None = False
    ) -> dict[str, Value]:
        links = list(self._links.values())
        outcomes = await asyncio.gather(*(verb(link) for link in links))
        return self._settle(dict(zip((link.name for link in links), outcomes, strict=True)), doing, spent=spent)

    def _settle(
        self, outcomes: dict[str, Outcome[Value]], doing: str, *, spent: bool | None = True
    ) -> dict[str, Value]:
        """The answers; lost parties are dropped. Raises when a party refused or too few are left."""
        money = "" if spent else " Nothing was spent."
        for name, outcome in outcomes.items():
            if isinstance(outcome, Refused):
                raise PartyRefused(f"party {name} refused to {doing}: {outcome.refusal.sentence}{money}")
        for name, outcome in outcomes.items():
            if isinstance(outcome, Lost):
                self.lost[name] = outcome.why
                self._links.pop(name, None)
                self._progress.party(name, "lost")
        if len(self._links) < self._minimum:
            reasons = "; ".join(f"party {name} was lost: {why}" for name, why in self.lost.items())
            needs = f"The plan needs {self._minimum} of its parties and {len(self._links)} are left."
            raise PartyLost(
                f"{reasons}. {needs}{money} See that the node runs (`party serve`), then run the plan again."
            )
        for name in [name for name, outcome in outcomes.items() if isinstance(outcome, Lost)]:
            self._progress.say(f"  party {name} was lost ({self.lost[name]}); the run goes on without it")
        return {name: outcome.value for name, outcome in outcomes.items() if isinstance(outcome, Answered)}


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
