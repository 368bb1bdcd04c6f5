"""The X.509 certificates of a federation: one authority, and two certificates for each of its ends.

TRANSPORT is for mutual TLS (ECDSA P-256; RFC 5280, RFC 8446), SIGNING for an end's signed statements (Ed25519; RFC
8410). A signing certificate carries a critical extended key usage of our own, so that no TLS library accepts it for a
connection.
"""

import hashlib
import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

COORDINATOR_HOST: Final = "coordinator.conclave"
SERVER_HOST: Final = "server.coordinator.conclave"
FINGERPRINT: Final = r"^SHA256:[0-9a-f]{64}$"
PARTY_NAME: Final = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"
COORDINATOR_NAME: Final = r"^[a-z0-9]([a-z0-9.-]{0,62}[a-z0-9])?$"

SIGNING_USAGE: Final = x509.ObjectIdentifier("2.25.24892344554201403424820970742733244304")
"""2.25 and the UUID of `urn:conclave:signing` (version 5, in the namespace of URLs)."""

LONGEST_NAME: Final = 100
"""The most characters of a name that a sentence shows."""


UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""Errors that a damaged certificate, request or key can raise, when it is read or when a part of it is used."""


class IdentityError(Exception):
    """A key, certificate, request or statement that cannot be trusted or used. The message is a complete sentence;
    code: of the page that says more.
    """

    def __init__(self, sentence: str, *, code: str = "C401") -> None:
        super().__init__(sentence)
        self.code = code


class Role(StrEnum):
    """The role of an end in a federation.

    SERVER is a coordinator that stays up, towards those who submit runs to it (`coordinator serve`): the certificates
    of COORDINATOR are a client's, which no TLS library takes from a server. SUBMITTER is somebody who submits runs.
    """

    COORDINATOR = "coordinator"
    PARTY = "party"
    SERVER = "server"
    SUBMITTER = "submitter"


class Use(StrEnum):
    """The use of a certificate's key."""

    TRANSPORT = "transport"
    SIGNING = "signing"


USAGE: Final = {
    (Role.PARTY, Use.TRANSPORT): ExtendedKeyUsageOID.SERVER_AUTH,
    (Role.COORDINATOR, Use.TRANSPORT): ExtendedKeyUsageOID.CLIENT_AUTH,
    (Role.SERVER, Use.TRANSPORT): ExtendedKeyUsageOID.SERVER_AUTH,
    (Role.SUBMITTER, Use.TRANSPORT): ExtendedKeyUsageOID.CLIENT_AUTH,
    **{(role, Use.SIGNING): SIGNING_USAGE for role in Role},
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """An end's two certificates and the authority's."""

    transport: x509.Certificate
    signing: x509.Certificate
    authority: x509.Certificate

    def pem(self) -> bytes:
        """The three certificates in this order, PEM."""
        return b"".join(pem_of(each) for each in (self.transport, self.signing, self.authority))


def party_host(name: str) -> str:
    """The host name that a party's transport certificate carries, wherever the party listens."""
    return f"{name}.party.conclave"


def host_of(name: str, role: Role) -> str:
    """The host name that the transport certificate of an end of this role carries."""
    match role:
        case Role.PARTY:
            return party_host(name)
        case Role.COORDINATOR:
            return COORDINATOR_HOST
        case Role.SERVER:
            return SERVER_HOST
        case Role.SUBMITTER:
            return f"{name}.submitter.conclave"


def fingerprint(of: x509.Certificate | CertificatePublicKeyTypes) -> str:
    """`SHA256:` and 64 hexadecimal digits, over the SubjectPublicKeyInfo (DER), so that a renewal keeps it."""
    key = of.public_key() if isinstance(of, x509.Certificate) else of
    info = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return f"SHA256:{hashlib.sha256(info).hexdigest()}"


def check_name(name: str, role: Role) -> None:
    """Raises `IdentityError` unless this name is allowed for an end of this role."""
    short = role in (Role.PARTY, Role.SUBMITTER)
    if re.fullmatch(PARTY_NAME if short else COORDINATOR_NAME, name) is None:
        right = (
            "lower-case letters, digits and hyphens, at most 40"
            if short
            else "a host name in lower case, at most 64 long, such as coordinator.consortium.example"
        )
        raise IdentityError(f'"{shown_name(name)}" is not a name that a {role} can have. Use {right}.')


def read_bundle(pem: bytes, where: str) -> Bundle:
    """The three certificates of a bundle. Raises `IdentityError`, which names the file as `where`."""
    try:
        transport, signing, authority = (
            _whole(x509.load_pem_x509_certificate(x)) for x in pem_blocks(pem, "CERTIFICATE")
        )
        authority.verify_directly_issued_by(authority)
    except (*UNREADABLE, InvalidSignature):
        raise IdentityError(
            f"{where} is not a bundle of three certificates (transport, signing, authority). Use the file that "
            "`coordinator provision` wrote, whole."
        ) from None
    return Bundle(transport, signing, authority)


def read_certificate(der: bytes) -> x509.Certificate:
    """A certificate (DER), all of whose parts could be parsed. Raises `IdentityError` where it is not one."""
    try:
        certificate = _whole(x509.load_der_x509_certificate(der))
        if not der.endswith(b"\x00" + certificate.signature):
            raise ValueError("the signature is not a whole number of bytes, so its last bits could be anything")
        return certificate
    except UNREADABLE:
        raise IdentityError("a certificate cannot be read: it was damaged or changed. Ask for it again.") from None


def pem_of(certificate: x509.Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def subject_of(certificate: x509.Certificate) -> tuple[Role, str, Use] | None:
    """The role, name and use that a certificate states; None where it is not of one of a federation's ends."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usage = list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        (urn,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        urn_word, conclave, role_word, name, use_word = urn.split(":")
        role, use = Role(role_word), Use(use_word)
    except (*UNREADABLE, x509.ExtensionNotFound):
        return None
    if (urn_word, conclave) != ("urn", "conclave") or usage != [USAGE[role, use]] or name != shown_name(name):
        return None
    return role, name, use


def _whole(certificate: x509.Certificate) -> x509.Certificate:
    """The certificate itself, once every part of it is parsed: the library parses most parts late, and raises then."""
    certificate.public_key()
    _ = (certificate.extensions, certificate.subject, certificate.issuer, certificate.not_valid_after_utc)
    _ = (certificate.not_valid_before_utc, certificate.signature_hash_algorithm)
    return certificate


def subject_shown(certificate: x509.Certificate) -> str:
    """The subject of a certificate, safe to print on a terminal."""
    return shown_name(certificate.subject.rfc4514_string().removeprefix("CN="))


def shown_name(name: str) -> str:
    """A name from a certificate or a request, safe to print on a terminal and cut to a length."""
    return "".join(each if each.isprintable() else "?" for each in name[:LONGEST_NAME])


def pem_blocks(pem: bytes, kind: str) -> list[bytes]:
    """The PEM blocks of a kind (`CERTIFICATE`) in a file, in order."""
    begin, end = re.escape(f"-----BEGIN {kind}-----".encode()), re.escape(f"-----END {kind}-----".encode())
    return re.findall(begin + rb".*?" + end + rb"\r?\n?", pem, re.DOTALL)
