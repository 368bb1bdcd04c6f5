"""A party's secrets of one attempt, and the keys that two parties derive from them."""

import hmac
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import sha256

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from aggregation.errors import Cheated
from aggregation.secure_sum.cores import each
from aggregation.secure_sum.wire import Field, pack

KEY_BYTES = 32

Sign = Callable[[bytes], bytes]
"""Signs with the party's long-lived key."""
Verify = Callable[[str, bytes, bytes], bool]
"""(party, statement, signature) -> whether the key pinned for that party signed the statement. Never raises, and may be
called from several threads at once."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """The secrets of one attempt: freshly drawn, in memory only, never used again.

    share_key: X25519, for the shares that travel to peers; never revealed.
    mask_key: X25519, for the pairwise masks; its private bytes are rebuilt if this party is lost.
    seed: 32 bytes, for the self mask; rebuilt if this party survives.
    nonce: 32 bytes, this party's part of the randomness of the graph.

    Only one of mask key and seed may ever be rebuilt: together they open the party's vector.
    """

    share_key: X25519PrivateKey = field(repr=False)
    mask_key: X25519PrivateKey = field(repr=False)
    seed: bytes = field(repr=False)
    nonce: bytes = field(repr=False)

    @classmethod
    def draw(cls) -> "Secrets":
        """Draw the secrets from the operating system."""
        return cls(
            X25519PrivateKey.generate(), X25519PrivateKey.generate(), os.urandom(KEY_BYTES), os.urandom(KEY_BYTES)
        )

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("the secrets of a sum stay in the memory of the process that drew them")


def agree(private: X25519PrivateKey, public: bytes, peer: str) -> bytes:
    """The secret both ends of a pair of keys share. Raises `Cheated` for a public key that forces it (low order)."""
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise Cheated(peer, "advertised a key that is no X25519 key.") from None


def derive(secret: bytes, *labels: Field) -> bytes:
    """A 32-byte key from a secret for one purpose: HKDF-SHA-256 under our salt, the packed labels as info.

    Written out over HMAC because a sum derives thousands of keys; one output block is a single expansion step.
    Source: HKDF (RFC 5869).
    """
    extracted = hmac.digest(b"conclave secure sum v1", secret, "sha256")
    return hmac.digest(extracted, pack(*labels) + b"\x01", "sha256")


def verified(verify: Verify, claims: Iterable[tuple[str, bytes, bytes]]) -> Verify:
    """`verify` with the results of these claims already known: they are checked here, on all cores."""
    asked = list(claims)
    known = dict(zip(asked, each(lambda claim: verify(*claim), asked), strict=True))
    return lambda *claim: known[claim] if claim in known else verify(*claim)


def commitment(label: str, secret: bytes) -> bytes:
    """A SHA-256 commitment to 32 random bytes."""
    return sha256(pack("conclave secure sum commitment v1", label, secret)).digest()


def public_of(private: bytes) -> bytes:
    """The X25519 public key of private bytes."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()
