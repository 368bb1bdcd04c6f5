"""Round 4: every party sends its masked vector block by block; the coordinator stores each party's blocks separately.

**What must be on disk before.** The vector holds the party's noise, and its cost is charged in the ledger before the
first block leaves (`Masking.block`), under the context's digest: whatever happens later, the coordinator has a masked
vector that other parties' shares can open. From then on the charge stands.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import Cheated, IntegrityError
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.keys import Secrets, agree, derive
from aggregation.secure_sum.keystream import Cells, Mask, Masks
from aggregation.secure_sum.opening import Group
from aggregation.secure_sum.wire import pack, speaker, unpack

BLOCK_CELLS = 1 << 18  # 1 MiB
_TAG = "conclave secure sum block v1"


@dataclass(frozen=True, slots=True)
class MaskedBlock:
    """Cells index * BLOCK_CELLS onwards of a party's masked vector."""

    group: bytes
    party: str
    index: int
    cells: Cells = field(repr=False)

    def encode(self) -> bytes:
        """Canonical bytes; cells little-endian, beginning at a multiple of 4 bytes so that they need not be copied."""
        head = pack(_TAG, self.group, self.party, self.index, _padding(self.party))
        cells = np.ascontiguousarray(self.cells, dtype="<u4")
        return b"".join((head, cells.nbytes.to_bytes(4, "big"), cells.data.cast("B")))

    @classmethod
    def decode(cls, data: bytes, who: str) -> "MaskedBlock":
        """Read what `who` sent; the cells are a view of `data`. Raises `Cheated` where it is not a block."""
        group, name, index, padding, cells = unpack(memoryview(data), _TAG, (32, None, 8, None, None), who)
        party = speaker(bytes(name), who)
        if bytes(padding) != _padding(party) or len(cells) % 4:
            raise Cheated(who, "sent a block that is not whole 32-bit cells.")
        values = np.frombuffer(cells, dtype="<u4").astype(np.uint32, copy=False)
        return cls(bytes(group), party, int.from_bytes(index, "big"), values)


class Blocks(Protocol):
    """The coordinator's storage of masked blocks, separate for each party, until the survivors are known.

    A party lost in the middle of its blocks is then left out and nobody begins anew. That is safe because nothing is
    unmasked before every survivor's every block has arrived: the lost party's mask key is rebuilt for the whole vector
    and its seed for none of it, so whatever arrived of it stays under its self mask for ever. (Adding blocks up as they
    come would tie the sum to those who sent each block; opening seeds for early blocks and mask keys for later ones
    would lay the lost party's vector bare.)
    """

    def put(self, party: str, index: int, block: Cells) -> None:
        """Keep one block `[cells]`; each (party, index) comes once."""
        ...

    def blocks(self, index: int) -> Iterator[tuple[str, Cells]]:
        """Every party that sent this block, and its cells, one at a time."""
        ...


class MemoryBlocks:
    """Blocks in memory, for small sums: one array `[parties, cells]`, allocated whole so that its pages are large."""

    def __init__(self, context: Context) -> None:
        self._rows = {name: row for row, name in enumerate(context.parties)}
        self._cells = np.empty((len(context.parties), context.length), dtype=np.uint32)
        self._arrived: dict[int, list[str]] = {}

    def put(self, party: str, index: int, block: Cells) -> None:
        """Keep one block."""
        self._row(party, index)[: len(block)] = block
        self._arrived.setdefault(index, []).append(party)

    def blocks(self, index: int) -> Iterator[tuple[str, Cells]]:
        """Every party that sent this block, and its cells."""
        for party in self._arrived.get(index, []):
            yield party, self._row(party, index)

    def _row(self, party: str, index: int) -> Cells:
        return self._cells[self._rows[party], block_start(index) : block_start(index + 1)]


def block_count(context: Context) -> int:
    """The number of blocks in which a vector is sent."""
    return -(-context.length // BLOCK_CELLS)


def block_start(index: int) -> int:
    """The first cell of a block."""
    return index * BLOCK_CELLS


def block_length(context: Context, index: int) -> int:
    """Cells in one block: BLOCK_CELLS, fewer in the last."""
    return min(BLOCK_CELLS, context.length - block_start(index))


def self_mask(group: Group, party: str, seed: bytes) -> Mask:
    """The mask that only the party's seed gives.

    Source: double masking, Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine
    Learning".
    """
    return Mask(derive(seed, "self mask", group.digest, party))


def pair_mask(group: Group, party: str, peer: str, agreed: bytes) -> Mask:
    """The mask that the party adds for a peer, and the peer subtracts; `agreed` from either one's mask key.

    Source: double masking, Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine
    Learning".
    """
    first, second = sorted((party, peer))
    return Mask(derive(agreed, "pair mask", group.digest, first, second), negative=party == second)


class Masking:
    """The party's side: masks the vector in order, each block once.

    The masks hide nothing unless each block is masked only once. Sent twice over different values, the difference of
    the values would show; keep the encoded block to send it again.
    """

    def __init__(self, group: Group, party: str, secrets: Secrets, peers: Mapping[str, object]) -> None:
        """peers: the neighbours whose shares were opened; with each of them, and no other, a mask is shared."""
        self._group, self._party, self._next = group, party, 0
        masks = [self_mask(group, party, secrets.seed)]
        for peer in peers:
            agreed = agree(secrets.mask_key, group.roster.by_party[peer].mask_key, peer)
            masks.append(pair_mask(group, party, peer, agreed))
        self._masks = Masks(masks)

    @property
    def done(self) -> bool:
        """Whether every block was masked."""
        return self._next == block_count(self._group.context)

    def block(self, values: NDArray[np.integer]) -> MaskedBlock:
        """The next block of the vector, noise in it and charged, masked: integers `[cells]`, taken modulo 2^32.

        Raises `IntegrityError` for anything but integers of the block's length, and once every block was masked.
        """
        context, index = self._group.context, self._next
        if self.done:
            raise IntegrityError(f"Every block of {context.title} was masked already; a block is masked once.")
        length = block_length(context, index)
        if values.shape != (length,) or not np.issubdtype(values.dtype, np.integer):
            raise IntegrityError(
                f"Block {index} of {context.title} has {length} integers; these are {values.dtype}{list(values.shape)}."
            )
        self._next += 1
        return MaskedBlock(self._group.digest, self._party, index, self._masks.cover(block_start(index), values))


class Arrivals:
    """The coordinator's side: stores checked blocks and knows whose vector is complete."""

    def __init__(self, group: Group, senders: frozenset[str], blocks: Blocks) -> None:
        """senders: the parties that dealt shares."""
        self._group, self._senders, self._blocks = group, senders, blocks
        self._count = block_count(group.context)
        self._arrived = dict.fromkeys(sorted(senders), 0)

    def add(self, block: MaskedBlock) -> None:
        """Raises `Cheated` for a block of another attempt, out of turn, or of the wrong length."""
        who, context = block.party, self._group.context
        if who not in self._arrived:
            raise Cheated(who, "sent a masked block without having dealt shares in this attempt.")
        if block.group != self._group.digest:
            raise Cheated(
                who, f"sent a masked block of another run, attempt or list of parties; this is {context.title}."
            )
        if block.index != self._arrived[who] or block.index >= self._count:
            raise Cheated(who, f"sent masked block {block.index} where {self._arrived[who]} of {self._count} was due.")
        length = block_length(context, block.index)
        if block.cells.shape != (length,):
            raise Cheated(who, f"sent masked block {block.index} with {block.cells.size} cells; it has {length}.")
        self._blocks.put(who, block.index, block.cells)
        self._arrived[who] += 1

    def whole(self) -> tuple[str, ...]:
        """The parties whose every block has arrived, in order."""
        return tuple(name for name, arrived in self._arrived.items() if arrived == self._count)


def _padding(party: str) -> bytes:
    return bytes(-len(party.encode()) % 4)
