"""Round 3: every party deals shares of its mask key and its seed, each pair sealed for one neighbour."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from aggregation.errors import COORDINATOR, AttemptLost, Cheated
from aggregation.secure_sum.field import SHARE_BYTES, split
from aggregation.secure_sum.keys import Secrets, agree, derive
from aggregation.secure_sum.opening import Group
from aggregation.secure_sum.wire import pack, pack_all, speaker, text, unpack, unpack_all

_TAG = "conclave secure sum parcels v1"
_INBOX = "conclave secure sum inbox v1"
_NONCE_BYTES = 12
_SEALED_BYTES = _NONCE_BYTES + 2 * SHARE_BYTES + 16


@dataclass(frozen=True, slots=True)
class Parcels:
    """One party's sealed shares, by receiver in order; the coordinator relays them and cannot open them.

    sealed: receiver and bytes, AES-256-GCM under a key of this group, sender and receiver.
    """

    group: bytes
    party: str
    sealed: tuple[tuple[str, bytes], ...]

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack(_TAG, self.group, self.party, pack_all(x for pair in self.sealed for x in pair))

    @classmethod
    def decode(cls, data: bytes, who: str) -> "Parcels":
        """Read what `who` sent. Raises `Cheated` where these are not parcels."""
        group, name, body = unpack(data, _TAG, (32, None, None), who)
        return cls(group, speaker(name, who), _pairs(body, who))


@dataclass(frozen=True, slots=True)
class Inbox:
    """What the coordinator relays to one party: sender and sealed shares, in order."""

    group: bytes
    party: str
    sealed: tuple[tuple[str, bytes], ...]

    def encode(self) -> bytes:
        """Canonical bytes."""
        return pack(_INBOX, self.group, self.party, pack_all(x for pair in self.sealed for x in pair))

    @classmethod
    def decode(cls, data: bytes) -> "Inbox":
        """Read what the coordinator relayed. Raises `Cheated` where it is not an inbox."""
        group, name, body = unpack(data, _INBOX, (32, None, None), COORDINATOR)
        return cls(group, text(name, COORDINATOR), _pairs(body, COORDINATOR))


@dataclass(frozen=True, slots=True)
class Shares:
    """A share of one owner's mask key and one of its seed. Only one of the two is ever revealed."""

    mask_key: bytes = field(repr=False)
    seed: bytes = field(repr=False)


def channels(group: Group, party: str, secrets: Secrets) -> dict[str, bytes]:
    """The party's side: the secret that it shares with each neighbour, from one key agreement per pair.

    The sealing keys of both directions derive from it. Raises `Cheated` for an invalid key.
    """
    roster = group.roster.by_party
    return {name: agree(secrets.share_key, roster[name].share_key, name) for name in sorted(group.near[party])}


def deal(group: Group, party: str, secrets: Secrets, agreed: Mapping[str, bytes]) -> tuple[Shares, Parcels]:
    """The party's side: shares for itself, and sealed shares for every neighbour. agreed: `channels`.

    Raises `AttemptLost` where too few neighbours are left to rebuild a secret.
    Source: Bonawitz et al. 2017, "Practical Secure Aggregation for Privacy-Preserving Machine Learning"; shares by
    Shamir 1979.
    """
    holders = group.holders(party)
    if len(holders) < group.threshold:
        raise AttemptLost(f"{party} has too few neighbours left in {group.context.title}. Start a new attempt.")
    points = [group.points[name] for name in holders]
    keys = split(secrets.mask_key.private_bytes_raw(), points, group.threshold)
    seeds = split(secrets.seed, points, group.threshold)
    dealt = {name: Shares(*pair) for name, pair in zip(holders, zip(keys, seeds, strict=True), strict=True)}
    own = dealt.pop(party)
    sealed = []
    for name, shares in dealt.items():
        nonce = os.urandom(_NONCE_BYTES)
        key = _sealing_key(group, agreed[name], party, name)
        sealed.append((name, nonce + AESGCM(key).encrypt(nonce, shares.mask_key + shares.seed, group.digest)))
    return own, Parcels(group.digest, party, tuple(sealed))


def open_inbox(group: Group, party: str, agreed: Mapping[str, bytes], inbox: Inbox) -> dict[str, Shares]:
    """The party's side: the shares its neighbours dealt to it, by owner, in order. agreed: `channels`.

    Raises `Cheated` for an inbox of another group, a sender twice or not a neighbour, or shares of too few neighbours;
    naming the dealer, for shares that do not open (made for another group, receiver or sender, or changed on the way:
    the receiver cannot tell whether the dealer or the coordinator is to blame).
    """
    if inbox.group != group.digest or inbox.party != party:
        raise Cheated(COORDINATOR, f"relayed to {party} shares of another attempt, group or party.")
    names = [name for name, _ in inbox.sealed]
    if names != sorted(set(names)):
        raise Cheated(COORDINATOR, f"relayed to {party} shares of one party twice or out of order.")
    strangers = set(names) - group.near[party]
    if strangers:
        raise Cheated(COORDINATOR, f"relayed to {party} shares of {min(strangers)!r}, who is no neighbour of {party}.")
    if len(names) + 1 < group.threshold:
        raise Cheated(
            COORDINATOR,
            f"relayed to {party} shares of {len(names)} neighbours; with its own, {group.threshold} are needed.",
        )
    opened = {}
    for name, sealed in inbox.sealed:
        key = _sealing_key(group, agreed[name], name, party)
        try:
            if len(sealed) != _SEALED_BYTES:
                raise InvalidTag
            shares = AESGCM(key).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], group.digest)
        except InvalidTag:
            raise Cheated(
                name,
                f"dealt {party} shares that do not open: {name} made them wrongly, or for another attempt or list, or "
                "the coordinator, which relays them, changed them on the way.",
            ) from None
        opened[name] = Shares(shares[:SHARE_BYTES], shares[SHARE_BYTES:])
    return opened


class Relay:
    """The coordinator's side: collects parcels and sorts them by receiver."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._received: dict[str, Mapping[str, bytes]] = {}

    def add(self, parcels: Parcels) -> None:
        """Raises `Cheated` for parcels of another group, or not exactly one for every neighbour of the sender."""
        who = parcels.party
        if who not in self._group.near:
            raise Cheated(who, "dealt shares without having a part in this attempt.")
        if parcels.group != self._group.digest:
            raise Cheated(who, "dealt shares for another attempt or another list of parties.")
        receivers = [name for name, _ in parcels.sealed]
        if receivers != sorted(self._group.near[who]) or any(len(x) != _SEALED_BYTES for _, x in parcels.sealed):
            raise Cheated(who, "did not deal one pair of shares to each of its neighbours.")
        if who in self._received:
            raise Cheated(who, "dealt shares twice in one attempt.")
        self._received[who] = dict(parcels.sealed)

    def close(self) -> dict[str, Inbox]:
        """What goes to every party that dealt, by party. Raises `AttemptLost` with fewer than parties - dropouts."""
        context = self._group.context
        if len(self._received) < context.fewest:
            raise AttemptLost(
                f"{len(self._received)} parties dealt shares in {context.title}, which needs {context.fewest}. Start a "
                "new attempt when more are back."
            )
        inboxes = {}
        for name in sorted(self._received):
            senders = sorted(self._group.near[name] & self._received.keys())
            sealed = tuple((sender, self._received[sender][name]) for sender in senders)
            inboxes[name] = Inbox(self._group.digest, name, sealed)
        return inboxes


def _sealing_key(group: Group, agreed: bytes, sender: str, receiver: str) -> bytes:
    return derive(agreed, "shares", group.digest, sender, receiver)


def _pairs(body: bytes, who: str) -> tuple[tuple[str, bytes], ...]:
    fields = unpack_all(body, who)
    if len(fields) % 2:
        raise Cheated(who, "sent sealed shares without saying for whom.")
    return tuple((text(name, who), sealed) for name, sealed in zip(fields[::2], fields[1::2], strict=True))
