"""Round 6: for every neighbour a share of its seed or of its mask key, never both; the coordinator removes the masks.

**What must be on disk before.** `remember` stores, for the context's digest, the digest of the list of survivors, and
returns when that would survive a power cut; it must refuse another list for the same context. From then on this
attempt's vector may be open, and its charge can never be taken back (`disclaim`).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import combinations, islice

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregation.errors import COORDINATOR, AttemptLost, Cheated, IntegrityError
from aggregation.secure_sum.consistency import Survivors
from aggregation.secure_sum.field import SHARE_BYTES, combine, value_at
from aggregation.secure_sum.keys import agree, commitment, public_of
from aggregation.secure_sum.keystream import Cells, Mask, Masks
from aggregation.secure_sum.mask import Blocks, block_count, block_length, block_start, pair_mask, self_mask
from aggregation.secure_sum.opening import Group
from aggregation.secure_sum.share import Shares
from aggregation.secure_sum.wire import pack, pack_all, speaker, text, unpack, unpack_all

Remember = Callable[[bytes], None]
"""Takes the digest of the list of survivors; returns once it is on disk for this attempt, raises if another one is."""

_TAG = "conclave secure sum revealed v1"
_MOST_CHOICES = 5000


class Kind(StrEnum):
    """Which of a peer's two secrets a share is of."""

    SEED = "seed"
    MASK_KEY = "mask key"


@dataclass(frozen=True, slots=True)
class Revealed:
    """The shares that one survivor reveals: owner, kind and share, by owner in order."""

    survivors: bytes
    party: str
    shares: tuple[tuple[str, Kind, bytes], ...] = field(repr=False)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack(_TAG, self.survivors, self.party, pack_all(x for triple in self.shares for x in triple))

    @classmethod
    def decode(cls, data: bytes, who: str) -> "Revealed":
        """Read what `who` sent. Raises `Cheated` where these are not shares."""
        survivors, name, body = unpack(data, _TAG, (32, None, None), who)
        fields = unpack_all(body, who)
        kinds = {kind.encode(): kind for kind in Kind}
        if len(fields) % 3 or any(kind not in kinds for kind in fields[1::3]):
            raise Cheated(who, "sent shares without saying whose and of what.")
        triples = zip(fields[::3], fields[1::3], fields[2::3], strict=True)
        shares = tuple((text(owner, who), kinds[kind], share) for owner, kind, share in triples)
        return cls(survivors, speaker(name, who), shares)


def reveal(survivors: Survivors, who: str, held: Mapping[str, Shares]) -> Revealed:
    """The party's side, after `check_consents` and `remember`: seed shares of survivors, mask-key shares of the lost.

    held: the shares it holds, its own among them, by owner.
    Source: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning".
    """
    present = set(survivors.names)
    shares = tuple(
        (owner, Kind.SEED, held[owner].seed) if owner in present else (owner, Kind.MASK_KEY, held[owner].mask_key)
        for owner in sorted(held)
    )
    return Revealed(survivors.digest, who, shares)


class Recovery:
    """The coordinator's side: rebuilds each survivor's seed and each lost party's mask key, checked."""

    def __init__(self, group: Group, dealers: frozenset[str], survivors: Survivors) -> None:
        """dealers: the parties that dealt shares; those not among the survivors are lost."""
        self._group, self._dealers, self._survivors = group, dealers, survivors
        present = set(survivors.names)
        self._kinds = {owner: Kind.SEED if owner in present else Kind.MASK_KEY for owner in sorted(dealers)}
        self._shares: dict[str, dict[str, bytes]] = {owner: {} for owner in self._kinds}
        self.misfits: list[Cheated] = []

    def add(self, revealed: Revealed) -> None:
        """Raises `Cheated` for shares under another list, or not exactly those that the list asks of the party."""
        who = revealed.party
        if who not in self._survivors.names:
            raise Cheated(who, "revealed shares without being a survivor.")
        if revealed.survivors != self._survivors.digest:
            raise Cheated(who, "revealed shares for another attempt or another list of survivors.")
        owners = sorted((self._group.near[who] & self._dealers) | {who})
        asked = [(owner, self._kinds[owner]) for owner in owners]
        if [(owner, kind) for owner, kind, _ in revealed.shares] != asked:
            raise Cheated(who, "did not reveal the one share of each neighbour that the list of survivors asks for.")
        if any(len(share) != SHARE_BYTES for _, _, share in revealed.shares):
            raise Cheated(who, "revealed a share of the wrong length.")
        for owner, _, share in revealed.shares:
            self._shares[owner][who] = share

    @property
    def enough(self) -> bool:
        """Whether every secret has `threshold` shares."""
        return all(len(shares) >= self._group.threshold for shares in self._shares.values())

    def close(self) -> list[Mask]:
        """The masks to add to the sum of the survivors' masked vectors. Fills `misfits` with the parties whose share
        was wrong.

        Raises `AttemptLost` with too few shares, `Cheated` where shares do not reconstruct what was advertised.
        """
        short = [owner for owner, shares in self._shares.items() if len(shares) < self._group.threshold]
        if short:
            raise AttemptLost(
                f"Too few shares of {short[0]}'s {self._kinds[short[0]]} came back in {self._group.context.title}: "
                f"{len(self._shares[short[0]])} of {self._group.threshold}. The sum stays masked. Ask the survivors "
                "again, or start a new attempt."
            )
        remove = []
        for owner, kind in self._kinds.items():
            secret = self._rebuild(owner, kind)
            if kind is Kind.SEED:
                remove.append(self_mask(self._group, owner, secret).opposite)
            else:
                private = X25519PrivateKey.from_private_bytes(secret)
                for peer in sorted(self._group.near[owner] & set(self._survivors.names)):
                    agreed = agree(private, self._group.roster.by_party[peer].mask_key, peer)
                    remove.append(pair_mask(self._group, peer, owner, agreed).opposite)
        return remove

    def _rebuild(self, owner: str, kind: Kind) -> bytes:
        """The secret that fits the advertisement, from whichever `threshold` shares give it."""
        group, shares = self._group, self._shares[owner]
        for holders in islice(combinations(shares, group.threshold), _MOST_CHOICES):
            chosen = {group.points[holder]: shares[holder] for holder in holders}
            secret = combine(chosen)
            if secret is not None and self._fits(owner, kind, secret):
                for holder in shares.keys() - set(holders):
                    if value_at(chosen, group.points[holder]) != int.from_bytes(shares[holder], "big"):
                        self.misfits.append(
                            Cheated(
                                holder,
                                f"revealed a share of {owner}'s {kind} that does not fit the others, unless {owner} "
                                "dealt it so. The sum holds without it.",
                            )
                        )
                return secret
        others = ", ".join(sorted(shares.keys() - {owner}))
        raise Cheated(
            owner,
            f"dealt shares of its {kind} that do not reconstruct it, or one of {others} changed its share. The sum "
            "stays masked. Start a new attempt.",
        )

    def _fits(self, owner: str, kind: Kind, secret: bytes) -> bool:
        advertised = self._group.roster.by_party[owner]
        if kind is Kind.SEED:
            return commitment("seed", secret) == advertised.seed_hash
        return public_of(secret) == advertised.mask_key


def totals(group: Group, survivors: Survivors, remove: list[Mask], blocks: Blocks) -> Iterator[Cells]:
    """The sum of the survivors' vectors, block by block, `[cells]` modulo 2^32; memory of two blocks and one vector's.

    Raises `IntegrityError` where a survivor's block is no longer there.
    """
    wanted, masks = set(survivors.names), Masks(remove)
    for index in range(block_count(group.context)):
        total = np.zeros(block_length(group.context, index), dtype=np.uint32)
        added = set()
        for name, cells in blocks.blocks(index):
            if name in wanted:
                np.add(total, cells, out=total)
                added.add(name)
        if added != wanted:
            raise IntegrityError(
                f"{COORDINATOR.capitalize()} no longer has block {index} of {min(wanted - added)} in "
                f"{group.context.title}: the sum cannot be taken. Start a new attempt."
            )
        yield masks.cover(block_start(index), total)
