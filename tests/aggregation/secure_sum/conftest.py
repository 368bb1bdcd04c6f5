"""All ends of one secure sum, driven by hand, with identities that need no curve arithmetic."""

import hmac
from collections.abc import Collection

import numpy as np
import pytest

from aggregation.secure_sum import mask
from aggregation.secure_sum.advertise import Advertisement, Roster
from aggregation.secure_sum.consistency import Consent, Consents, Survivors
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import drawn
from aggregation.secure_sum.mask import MaskedBlock, MemoryBlocks
from aggregation.secure_sum.opening import Opening, Openings
from aggregation.secure_sum.participant import Attempts, Participant
from aggregation.secure_sum.share import Inbox, Parcels
from aggregation.secure_sum.summation import Summation
from aggregation.secure_sum.unmask import Revealed

BLOCK = 16


class Signing:
    """A signing key for each name: a MAC under a key that only this object knows."""

    def __init__(self, label: str = "pinned") -> None:
        self._label = label

    def sign(self, name: str, statement: bytes) -> bytes:
        return hmac.digest(f"{self._label}:{name}".encode(), statement, "sha256")

    def signer(self, name):
        return lambda statement: self.sign(name, statement)

    def verify(self, name: str, statement: bytes, signature: bytes) -> bool:
        return hmac.compare_digest(self.sign(name, statement), signature)


class Scene:
    """A coordinator and its parties in one attempt; every message crosses as bytes.

    sent: everything the coordinator received by round: sender and bytes. remembered: lists each party wrote down.
    """

    def __init__(self, count=5, *, length=40, dropouts=1, colluders=1, run="run", attempt=0, seed=0, vectors=None):
        self.signing = Signing()
        self.names = [f"p{i:02}" for i in range(count)]
        self.context = Context.of(
            run=run,
            plan_hash="ab" * 32,
            sum="votes",
            attempt=attempt,
            parties=self.names,
            length=length,
            dropouts=dropouts,
            colluders=colluders,
        )
        rng = np.random.default_rng(seed)
        self.vectors = vectors or {n: rng.integers(-(2**40), 2**40, length) for n in self.names}
        self.remembered: dict[str, list[bytes]] = {n: [] for n in self.names}
        self.blocks = MemoryBlocks(self.context)  # untouched pages cost nothing
        self.sent: dict[str, list[tuple[str, bytes]]] = {}
        self.parties = {n: self.participant(n) for n in self.names}
        self.server = Summation(self.context, self.signing.verify, self.blocks)

    def participant(self, name, context=None, signing=None):
        return Participant(
            context or self.context,
            name,
            attempts=Attempts(),
            sign=(signing or self.signing).signer(name),
            verify=self.signing.verify,
            remember=self.remembered[name].append,
        )

    def _cross(self, stage, kind, message, name):
        data = message.encode()
        self.sent.setdefault(stage, []).append((name, data))
        decoded = kind.decode(data, name)
        assert decoded.encode() == data
        return decoded

    def advertise(self, names):
        for n in names:
            self.server.advertised(self._cross("advertise", Advertisement, self.parties[n].advertise(), n))

    def open(self, names):
        roster = self.server.roster().encode()
        if drawn(self.context):
            for n in names:
                message = self.parties[n].open(Roster.decode(roster))
                self.server.opened(self._cross("open", Opening, message, n))

    def share(self, names):
        if drawn(self.context):
            shown, kind = self.server.openings().encode(), Openings
        else:
            shown, kind = self.server.roster().encode(), Roster
        for n in names:
            message = self.parties[n].share(kind.decode(shown))
            self.server.dealt(self._cross("share", Parcels, message, n))

    def receive(self, names):
        inboxes = self.server.inboxes()
        for n in names:
            self.parties[n].receive(Inbox.decode(inboxes[n].encode()))

    def block(self, name, index):
        values = self.vectors[name][mask.block_start(index) :][: mask.block_length(self.context, index)]
        self.server.masked(self._cross("mask", MaskedBlock, self.parties[name].block(values), name))

    def mask(self, names, until=None):
        """Blocks of each named party, all of them or those before `until`."""
        count = mask.block_count(self.context) if until is None else until
        for index in range(count):
            for n in names:
                self.block(n, index)

    def consent(self, names):
        survivors = self.server.survivors().encode()
        for n in names:
            message = self.parties[n].consent(Survivors.decode(survivors))
            self.server.consented(self._cross("consent", Consent, message, n))

    def reveal(self, names):
        consents = self.server.consents().encode()
        for n in names:
            message = self.parties[n].reveal(Consents.decode(consents))
            self.server.revealed(self._cross("reveal", Revealed, message, n))

    def total(self):
        return np.concatenate(list(self.server.totals()))

    def expected(self, names):
        return sum(self.vectors[n].astype(np.uint32) for n in names).astype(np.uint32)

    ROUNDS = ("advertise", "open", "share", "receive", "mask", "consent", "reveal")

    def up_to(self, last, lost: Collection[str] = (), at: str | None = None):
        """Run the rounds up to and with `last`; those in `lost` fall silent at round `at` ("mask": in mid-vector)."""
        left = list(self.names)
        for stage in self.ROUNDS[: self.ROUNDS.index(last) + 1]:
            if stage == at and stage == "mask":
                for n in lost:
                    self.block(n, 0)
            if stage == at:
                left = [n for n in left if n not in lost]
            getattr(self, stage)(left)
        return left


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    monkeypatch.setattr(mask, "BLOCK_CELLS", BLOCK)


@pytest.fixture
def scene():
    """Makes a `Scene`."""
    return Scene


@pytest.fixture
def signing():
    """Makes a `Signing`."""
    return Signing
