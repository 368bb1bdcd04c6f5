"""Signed statements of an end: canonical JSON, an Ed25519 signature over it, and the signer's certificate.

    openssl x509 -in signer.pem -pubkey -noout > key.pem
    openssl pkeyutl -verify -pubin -inkey key.pem -rawin -in payload.json -sigfile payload.sig

checks one by hand. A payload names its kind, so that no statement passes for one of another kind.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding

from protos.conclave.v1 import party_pb2
from protos.identity.certificates import IdentityError, Role, Use, read_certificate, shown_name, subject_of
from protos.identity.identity import Identity
from protos.identity.validity import RevocationList, check_certificate

DESCRIBED: Final = "conclave describe 1"
"""A statement of who a party is: the caller's nonce, and the party's name."""
ATTESTATION: Final = "conclave attestation 1"
"""A statement of what a run has cost a party, by its ledger."""
RELATION: Final = "add or remove one unit at one party"
NO_RELATION: Final = "none"
"""The relation of a run without a guarantee, which bounds nothing for any two neighbours."""
LONGEST: Final = 1 << 20
"""The most bytes of a statement: reading one as JSON takes up to thirty times as much memory."""


@dataclass(frozen=True, slots=True)
class Signed:
    """A statement as it is sent and stored: canonical JSON, the raw 64-byte signature, the certificate (DER)."""

    payload: bytes
    signature: bytes
    certificate: bytes

    def message(self) -> party_pb2.SignedStatement:
        """The statement as a protobuf message; `signed_of` is the inverse."""
        return party_pb2.SignedStatement(payload=self.payload, signature=self.signature, certificate=self.certificate)

    @property
    def signer(self) -> x509.Certificate:
        """The certificate that came with it, unchecked. Raises `IdentityError` where it is not one."""
        return read_certificate(self.certificate)


def signed_of(message: party_pb2.SignedStatement) -> Signed:
    """The statement in a message."""
    return Signed(message.payload, message.signature, message.certificate)


def canonical_json(fields: Mapping[str, Any]) -> bytes:
    """JSON with sorted keys, no spaces, UTF-8. Raises ValueError for a number that is not finite."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def sign(identity: Identity, kind: str, fields: Mapping[str, Any]) -> Signed:
    """Sign `fields` as a statement of this kind. Raises ValueError when they have a "kind" of their own or are not
    JSON.
    """
    if "kind" in fields:
        raise ValueError('"kind" is not a field: it says what the statement is.')
    payload = canonical_json({"kind": kind, **fields})
    certificate = identity.signing.public_bytes(Encoding.DER)
    return Signed(payload, identity.signing_key.sign(payload), certificate)


def check(
    signed: Signed,
    kind: str,
    *,
    authority: x509.Certificate | None,
    role: Role,
    name: str | None = None,
    revoked: RevocationList | None = None,
    at: datetime | None = None,
) -> dict[str, Any]:
    """The content of a statement, with its kind. Raises `IdentityError` unless it is complete, of this kind, and
    validly signed.

    authority: who must have issued the signer's certificate; with None the issuer is not checked. name: whose it must
    be; by default any. at: when the certificate must be valid (with a time zone); by default now.
    """
    certificate = signed.signer
    whose = _whose(certificate)
    if len(signed.payload) > LONGEST:
        raise IdentityError(
            f"{whose} has {len(signed.payload):,} bytes, and a statement has at most {LONGEST:,}. Ask for it again; if "
            "that is what its signer meant to say, ask them what it is."
        )
    key = certificate.public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise IdentityError(f"{whose} came with a certificate that is not for signing. Ask for it again.")
    try:
        key.verify(signed.signature, signed.payload)
    except InvalidSignature:
        raise IdentityError(
            f"{whose} does not bear the signature of the key in its certificate: the statement, the signature or the "
            "certificate was changed. Believe nothing in it, and ask for it again.",
            code="C406",
        ) from None
    check_certificate(certificate, authority=authority, role=role, name=name, use=Use.SIGNING, revoked=revoked, at=at)
    try:
        fields = json.loads(signed.payload)
        canonical = isinstance(fields, dict) and canonical_json(fields) == signed.payload
    except (ValueError, RecursionError):
        canonical = False
    if not canonical:
        raise IdentityError(f"{whose} is signed but is not canonical JSON. Install the same Conclave at both ends.")
    said = fields.get("kind")
    if said != kind:
        other = shown_name(said) if isinstance(said, str) else "statement of no kind"
        raise IdentityError(
            f'{whose} is signed but is a "{other}", not a "{kind}": one statement was put in place of '
            "another, or the two ends run different versions of Conclave.",
            code="C406",
        )
    return dict(fields)


def _whose(certificate: x509.Certificate) -> str:
    subject = subject_of(certificate)
    return f"the statement of {subject[0]} {subject[1]}" if subject else "the statement of an unknown signer"
