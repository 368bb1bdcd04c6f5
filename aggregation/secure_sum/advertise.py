"""Round 1: every party signs the public halves of its secrets; the coordinator shows all parties one list of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from aggregation.errors import COORDINATOR, AttemptLost, Cheated
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.keys import KEY_BYTES, Secrets, Sign, Verify, commitment, verified
from aggregation.secure_sum.wire import KEPT, digest, pack, pack_all, speaker, unpack, unpack_all

_TAG = "conclave secure sum advertisement v1"
_ROSTER = "conclave secure sum roster v1"


@dataclass(frozen=True)
class Advertisement:
    """The public halves of a party's secrets, signed by its long-term key.

    context: digest of the sum's context. share_key, mask_key: X25519 public keys. seed_hash, nonce_hash: commitments.
    """

    context: bytes
    party: str
    share_key: bytes
    mask_key: bytes
    seed_hash: bytes
    nonce_hash: bytes
    signature: bytes

    @cached_property
    def statement(self) -> bytes:
        """The bytes that are signed: everything but the signature."""
        return pack(_TAG, self.context, self.party, self.share_key, self.mask_key, self.seed_hash, self.nonce_hash)

    def encode(self) -> bytes:
        """Canonical bytes."""
        return self.statement + pack(self.signature)

    @classmethod
    def decode(cls, data: bytes, who: str) -> "Advertisement":
        """Read what `who` sent. Raises `Cheated` where it is not an advertisement."""
        context, name, share_key, mask_key, seed_hash, nonce_hash, signature = unpack(
            data, _TAG, (32, None, *(4 * [KEY_BYTES]), None), who
        )
        return cls(context, speaker(name, who), share_key, mask_key, seed_hash, nonce_hash, signature)


@dataclass(frozen=True)
class Roster:
    """The advertisements of one attempt, by party in order: all parties must see the same list."""

    advertisements: tuple[Advertisement, ...]

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all statements, in order."""
        return digest(_ROSTER, *(each.statement for each in self.advertisements))

    @cached_property
    def by_party(self) -> Mapping[str, Advertisement]:
        """Each party's advertisement."""
        return {each.party: each for each in self.advertisements}

    def encode(self) -> bytes:
        """Canonical bytes."""
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        return pack(_ROSTER, pack_all(each.encode() for each in self.advertisements))

    @staticmethod
    def decode(data: bytes) -> "Roster":
        """Read what the coordinator showed. Raises `Cheated` where it is not a list of advertisements."""
        return _roster(data)


@lru_cache(maxsize=KEPT)
def _roster(data: bytes) -> Roster:
    (body,) = unpack(data, _ROSTER, (None,), COORDINATOR)
    return Roster(tuple(Advertisement.decode(each, COORDINATOR) for each in unpack_all(body, COORDINATOR)))


def advertise(context: Context, party: str, secrets: Secrets, sign: Sign) -> Advertisement:
    """The party's side: sign the public halves of fresh secrets."""
    public = (_raw(secrets.share_key), _raw(secrets.mask_key))
    hashes = (commitment("seed", secrets.seed), commitment("nonce", secrets.nonce))
    unsigned = Advertisement(context.digest, party, *public, *hashes, b"")
    return Advertisement(context.digest, party, *public, *hashes, sign(unsigned.statement))


def check_advertisement(context: Context, advertisement: Advertisement, verify: Verify) -> None:
    """Raises `Cheated` unless a party of this context made it for this context, signed with the key pinned for it."""
    who = advertisement.party
    if who not in context.members:
        raise Cheated(COORDINATOR, f"put {who!r} among the parties of {context.title}, who has no part in it.")
    if advertisement.context != context.digest:
        raise Cheated(who, f"advertised keys for another run, plan, attempt or threshold; this is {context.title}.")
    if not verify(who, advertisement.statement, advertisement.signature):
        raise Cheated(
            who,
            "advertised keys under a signature that is not of the key pinned for it: someone else may be in its place. "
            "Compare the fingerprint with that party by another way.",
        )


def check_roster(context: Context, roster: Roster, own: Advertisement, verify: Verify) -> None:
    """The party's side: refuse a list that cannot be the same for all parties, or whose sum could never be unmasked.

    Raises `Cheated` for a list out of order or with a party twice, one without our own advertisement unchanged, one
    with an advertisement that is not signed for this context, with two equal keys, or shorter than parties - dropouts.
    """
    names = [each.party for each in roster.advertisements]
    if names != sorted(set(names)):
        raise Cheated(COORDINATOR, "showed a list of advertisements with a party twice or out of order.")
    if roster.by_party.get(own.party) != own:
        raise Cheated(COORDINATOR, f"showed {own.party} a list without the advertisement that {own.party} sent.")
    if len(names) < context.fewest:
        raise Cheated(
            COORDINATOR,
            f"showed advertisements of {len(names)} parties; {context.title} needs at least {context.fewest}.",
        )
    others = (each for each in roster.advertisements if each != own and each.party in context.members)
    verify = verified(verify, ((each.party, each.statement, each.signature) for each in others))
    seen: dict[bytes, str] = {}
    for each in roster.advertisements:
        if each is not own and each != own:
            check_advertisement(context, each, verify)
        for value in (each.share_key, each.mask_key, each.seed_hash, each.nonce_hash):
            if value in seen:
                raise Cheated(each.party, f"advertised a key that {seen[value]} advertised too.")
            seen[value] = each.party


class Advertisements:
    """The coordinator's side: collects one checked advertisement per party."""

    def __init__(self, context: Context, verify: Verify) -> None:
        self._context, self._verify = context, verify
        self._received: dict[str, Advertisement] = {}

    def add(self, advertisement: Advertisement) -> None:
        """Raises `Cheated` for one that does not belong here, or that differs from the same party's earlier one."""
        check_advertisement(self._context, advertisement, self._verify)
        if self._received.setdefault(advertisement.party, advertisement) != advertisement:
            raise Cheated(advertisement.party, "advertised two different sets of keys in one attempt.")

    def close(self) -> Roster:
        """The list to show all parties. Raises `AttemptLost` with fewer than parties - dropouts."""
        if len(self._received) < self._context.fewest:
            raise AttemptLost(
                f"{len(self._received)} parties advertised keys for {self._context.title}, which needs "
                f"{self._context.fewest}. Start a new attempt when more are back."
            )
        return Roster(tuple(self._received[name] for name in sorted(self._received)))


def _raw(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()
