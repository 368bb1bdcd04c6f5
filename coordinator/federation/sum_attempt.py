"""One attempt at a secure sum from the coordinator's side: the messages of each round are on disk before the next
round.

A coordinator that was killed continues the attempt where it stopped: the messages are stored, parties send identical
ones again, and the list of survivors never changes once it was shown.
"""

import asyncio
import base64
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from numpy.typing import NDArray

from aggregation.errors import AttemptLost, Cheated
from aggregation.secure_sum.absence import absence
from aggregation.secure_sum.advertise import Advertisement
from aggregation.secure_sum.consistency import Consent, Survivors
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import drawn
from aggregation.secure_sum.keys import Verify
from aggregation.secure_sum.mask import MaskedBlock, block_count
from aggregation.secure_sum.opening import Opening
from aggregation.secure_sum.share import Parcels
from aggregation.secure_sum.summation import Summation
from aggregation.secure_sum.unmask import Revealed
from coordinator.federation.masked_vectors import MaskedFiles
from coordinator.federation.refunds import owed
from coordinator.federation.rounds import Asks, OnMessage
from coordinator.store.store import RunStore
from protos.conclave.v1 import party_pb2, plan_pb2

ADVERTISE, OPEN, SHARE, MASK, CONSENT, REVEAL = (
    party_pb2.SUM_ROUND_ADVERTISE,
    party_pb2.SUM_ROUND_OPEN,
    party_pb2.SUM_ROUND_SHARE,
    party_pb2.SUM_ROUND_MASK,
    party_pb2.SUM_ROUND_CONSENT,
    party_pb2.SUM_ROUND_REVEAL,
)
MASKED: Final = "masked"
_NAMES: Final = {ADVERTISE: "advertise", OPEN: "open", SHARE: "share", CONSENT: "consent"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """One release to be summed: its name, its shape, and how many of its rows take noise at a time."""

    release: str
    rows: int
    columns: int
    rows_at_once: int


def context_of(run: str, plan_hash: str, terms: plan_pb2.Terms, wanted: Wanted, attempt: int) -> Context:
    """The attempt's context, which every party derives for itself from the plan."""
    return Context.of(
        run=run,
        plan_hash=plan_hash,
        sum=wanted.release,
        attempt=attempt,
        parties=terms.parties,
        length=wanted.rows * wanted.columns,
        dropouts=terms.privacy.dropouts,
        colluders=terms.privacy.colluders,
    )


def suspected(named: Mapping[str, str], spoke: Collection[str]) -> dict[str, tuple[int, int]]:
    """Dealers named by at least two parties and more than half of their peers that answered; by how many of how many.

    named: which parties could not open whose shares. The coordinator relayed the shares and could have changed them,
    but it knows that it did not. spoke: all parties that opened their shares or named another. One party alone may
    itself be the liar.
    """
    found = {}
    for dealer in sorted(set(named.values())):
        by = [name for name, whom in named.items() if whom == dealer != name]
        peers = set(spoke) - {dealer}
        if len(by) >= 2 and 2 * len(by) > len(peers):
            found[dealer] = (len(by), len(peers))
    return found


def without(
    present: tuple[str, ...], out: Mapping[str, str], context: Context, minimum: int
) -> tuple[tuple[str, ...], list[str]]:
    """The parties of an attempt, and what to report: all present parties except those in `out`, for the reasons given,
    as long as the sum and the plan have enough.
    """
    rest, told = list(present), []
    needed = max(context.fewest, minimum)
    for name, why in out.items():
        if name in rest and len(rest) > needed:
            rest.remove(name)
            told.append(f"  {name} is left out of {context.title}: {why}")
        elif name in rest:
            told.append(f"  {name} takes part in {context.title}, which needs {needed} parties, although {why}")
    return tuple(rest), told


def forget_vectors(store: RunStore) -> None:
    """Remove the masked vectors of attempts that are over."""
    shutil.rmtree(store.folder / MASKED, ignore_errors=True)


def verifier(certificates: Mapping[str, bytes]) -> Verify:
    """A function that checks signatures with the keys in the parties' signing certificates (DER)."""
    keys = {name: x509.load_der_x509_certificate(each).public_key() for name, each in certificates.items()}

    def verify(name: str, statement: bytes, signature: bytes) -> bool:
        key = keys.get(name)
        try:
            if not isinstance(key, Ed25519PublicKey):
                return False
            key.verify(signature, statement)
        except InvalidSignature:
            return False
        return True

    return verify


class SumRun:
    """One attempt. `totals` may be read once, after `run`."""

    def __init__(self, context: Context, wanted: Wanted, verify: Verify, store: RunStore, ask: Asks) -> None:
        self._context = context
        self._wanted = wanted
        self._files = MaskedFiles(store.folder / MASKED / f"{wanted.release}.{context.attempt}", context)
        self._sum = Summation(context, verify, self._files)
        self._store = store
        self._ask = ask
        self._named: dict[str, str] = {}
        self._opened: set[str] = set()
        self.charged = store.fact(self._key(_NAMES[SHARE])) is not None
        """Whether parties may have been charged: they were asked for their vectors, perhaps before the coordinator was
        killed.
        """

    async def run(self, present: tuple[str, ...], arrived: Callable[[int, int], None]) -> tuple[str, ...]:
        """Run all rounds; returns the survivors. arrived: told how many of how many blocks have come.

        Raises `AttemptLost` when a round has too few parties left.
        """
        total, context = self._sum, self._context
        await self._round(
            ADVERTISE, dict.fromkeys(present, b""), lambda who, said: total.advertised(Advertisement.decode(said, who))
        )
        roster = total.roster()
        in_it, shown = [each.party for each in roster.advertisements], roster.encode()
        if drawn(context):
            await self._round(
                OPEN, dict.fromkeys(in_it, shown), lambda who, said: total.opened(Opening.decode(said, who))
            )
            openings = total.openings()
            in_it, shown = [each.party for each in openings.openings], openings.encode()
        await self._round(SHARE, dict.fromkeys(in_it, shown), lambda who, said: total.dealt(Parcels.decode(said, who)))
        inboxes = total.inboxes()
        await self._vectors({name: inbox.encode() for name, inbox in inboxes.items()}, arrived)
        survivors = self._survivors()
        await self._round(
            CONSENT,
            dict.fromkeys(survivors.names, survivors.encode()),
            lambda who, said: total.consented(Consent.decode(said, who)),
        )
        consents = total.consents().encode()
        await asyncio.to_thread(self._note_left_out, survivors)
        await self._ask(
            {name: self._request(REVEAL, consents) for name in survivors.names},
            lambda who, said: total.revealed(Revealed.decode(said, who)),
            "unmask the sum",
        )
        return survivors.names

    def rows(self) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """Yield the sum in blocks: start, stop, int64 `[rows, columns]`, signed modulo 2**32. Closes the last round."""
        wanted = self._wanted
        rest: NDArray[np.uint32] = np.empty(0, np.uint32)
        start, cells = 0, self._sum.totals()
        while start < wanted.rows:
            stop = min(start + wanted.rows_at_once, wanted.rows)
            need = (stop - start) * wanted.columns
            held = [rest]
            while sum(each.size for each in held) < need:
                held.append(next(cells))
            joined = np.concatenate(held)
            block, rest = joined[:need], joined[need:]
            yield start, stop, block.view(np.int32).astype(np.int64).reshape(stop - start, wanted.columns)
            start = stop

    @property
    def misfits(self) -> tuple[Cheated, ...]:
        """Parties whose share was wrong; known when all rows were read."""
        return self._sum.misfits

    @property
    def suspects(self) -> dict[str, tuple[int, int]]:
        """Parties whose sealed shares too many others could not open, as `suspected` counts them."""
        return suspected(self._named, self._opened | self._named.keys())

    def forget(self) -> None:
        """Remove the masked vectors."""
        self._files.remove()

    async def _round(
        self, kind: "party_pb2.SumRound.ValueType", messages: Mapping[str, bytes], hear: OnMessage
    ) -> None:
        """One round of single messages: from the store where it was done before, otherwise asked and stored."""
        key = f"sum {self._wanted.release} {self._context.attempt} {_NAMES[kind]}"
        kept = self._store.fact(key)
        if kept is not None:
            for who, said in kept.items():
                hear(who, base64.b64decode(said))
            return
        heard: dict[str, bytes] = {}

        def hears(who: str, said: bytes) -> None:
            hear(who, said)
            heard[who] = said

        await self._ask({name: self._request(kind, said) for name, said in messages.items()}, hears, "sum")
        packed = {who: base64.b64encode(said).decode() for who, said in heard.items()}
        await asyncio.to_thread(lambda: self._store.note(**{key: packed}))

    async def _vectors(self, inboxes: Mapping[str, bytes], arrived: Callable[[int, int], None]) -> None:
        """Receive every party's masked vector, from the first block that is missing."""
        self.charged = True
        count, files = block_count(self._context), self._files
        here = {name: files.kept(name) for name in inboxes}
        done = sum(here.values())
        self._opened = {name for name, have in here.items() if have}
        for name, have in here.items():
            for index in range(have):
                self._sum.masked(MaskedBlock(self._sum.group.digest, name, index, files.block(name, index)))
        if self._store.fact(self._key("survivors")) is not None:
            return

        def hear(who: str, said: bytes) -> None:
            nonlocal done
            self._sum.masked(MaskedBlock.decode(said, who))
            self._opened.add(who)
            done += 1
            arrived(done, count * len(inboxes))

        requests = {}
        for name, inbox in inboxes.items():
            if here[name] < count:
                requests[name] = self._request(MASK, inbox)
                requests[name].first_block = here[name]
                requests[name].rows_at_once = self._wanted.rows_at_once
        self._named = dict(await self._ask(requests, hear, "send its masked vector"))

    def _survivors(self) -> Survivors:
        """The list of survivors to show, stored first; the list that was shown before, if there was one."""
        survivors = self._sum.survivors()
        shown = self._store.fact(self._key("survivors"))
        if shown is not None and shown != list(survivors.names):
            raise AttemptLost("The masked vectors that are stored are not those of the survivors that were shown.")
        if shown is None:
            self._store.note(**{self._key("survivors"): list(survivors.names)})
        return survivors

    def _note_left_out(self, survivors: Survivors) -> None:
        """Store, before any share is opened, the evidence for parties that were asked for their vector and are in no
        sum.
        """
        total, context = self._sum, self._context
        lost = set(total.inboxes()) - set(survivors.names)
        openings = total.openings().encode() if drawn(context) else b""
        shown = absence(total.group, openings, survivors, total.consents()).encode()
        facts = owed(self._store, context.sum, context.attempt, lost, shown)
        if facts:
            self._store.note(**facts)

    def _key(self, what: str) -> str:
        return f"sum {self._wanted.release} {self._context.attempt} {what}"

    def _request(self, kind: "party_pb2.SumRound.ValueType", message: bytes) -> party_pb2.SecureSumRequest:
        return party_pb2.SecureSumRequest(
            release=self._wanted.release, attempt=self._context.attempt, round=kind, message=message
        )
