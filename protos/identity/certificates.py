"""The certificates of a federation (X.509): one authority, and two certificates for each end that it vouches for.

TRANSPORT is for mutual TLS (ECDSA P-256; RFC 5280, RFC 8446), SIGNING for what an end states (Ed25519; RFC 8410). A
signing certificate carries a critical extended key usage of our own, so that no TLS library takes it for a connection.
"""

import functools
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

COORDINATOR_HOST: Final = "coordinator.conclave"
FINGERPRINT: Final = r"^SHA256:[0-9a-f]{64}$"
PARTY_NAME: Final = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"
COORDINATOR_NAME: Final = r"^[a-z0-9]([a-z0-9.-]{0,62}[a-z0-9])?$"

SIGNING_USAGE: Final = x509.ObjectIdentifier("2.25.24892344554201403424820970742733244304")
"""2.25 and the UUID of `urn:conclave:signing` (version 5, in the namespace of URLs)."""

LONGEST_NAME: Final = 100
"""Characters of a name that a sentence shows."""

BACKDATED: Final = timedelta(minutes=5)
CRL_YEARS: Final = 10
_YEAR: Final = timedelta(days=365)

UNREADABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""What reading a certificate, request or key that was damaged can raise, at once or when a part of it is looked at."""


class IdentityError(Exception):
    """A key, certificate, request or statement that cannot be trusted or used. The message is complete as it is."""


class Role(StrEnum):
    """Which end of a federation a certificate is for."""

    COORDINATOR = "coordinator"
    PARTY = "party"


class Use(StrEnum):
    """What a certificate's key does."""

    TRANSPORT = "transport"
    SIGNING = "signing"


_USAGE: Final = {
    (Role.PARTY, Use.TRANSPORT): ExtendedKeyUsageOID.SERVER_AUTH,
    (Role.COORDINATOR, Use.TRANSPORT): ExtendedKeyUsageOID.CLIENT_AUTH,
    (Role.PARTY, Use.SIGNING): SIGNING_USAGE,
    (Role.COORDINATOR, Use.SIGNING): SIGNING_USAGE,
}


@dataclass(frozen=True, slots=True)
class Request:
    """What an end asks to have vouched for: its name and its two public keys."""

    name: str
    transport: EllipticCurvePublicKey
    signing: Ed25519PublicKey

    @property
    def fingerprint(self) -> str:
        """The signing key's, which two people compare."""
        return fingerprint(self.signing)


@dataclass(frozen=True, slots=True)
class Bundle:
    """An end's two certificates and the authority's."""

    transport: x509.Certificate
    signing: x509.Certificate
    authority: x509.Certificate

    def pem(self) -> bytes:
        """The three in this order, PEM."""
        return b"".join(pem_of(each) for each in (self.transport, self.signing, self.authority))


@dataclass(frozen=True, slots=True)
class Authority:
    """Who vouches for a federation's ends: a certificate and the key that signs."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey = field(repr=False)

    def issue(self, request: Request, role: Role, days: int = 365, not_before: datetime | None = None) -> Bundle:
        """Both certificates of an end, valid for `days` from `not_before`, which is five minutes ago by default."""
        check_name(request.name, role)
        start = datetime.now(UTC) - BACKDATED if not_before is None else not_before
        transport = self._issued(request.name, role, Use.TRANSPORT, request.transport, start, days)
        signing = self._issued(request.name, role, Use.SIGNING, request.signing, start, days)
        return Bundle(transport, signing, self.certificate)

    def revocation_list(self, serials: Iterable[int]) -> bytes:
        """The certificate revocation list (PEM) that names these serial numbers."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
        builder = builder.last_update(now - BACKDATED).next_update(now + CRL_YEARS * _YEAR)
        for serial in sorted(set(serials)):
            revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now)
            builder = builder.add_revoked_certificate(revoked.build())
        return builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def _issued(
        self,
        name: str,
        role: Role,
        use: Use,
        key: EllipticCurvePublicKey | Ed25519PublicKey,
        start: datetime,
        days: int,
    ) -> x509.Certificate:
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(_urn(role, name, use))]
        if use is Use.TRANSPORT:
            names.append(x509.DNSName(party_host(name) if role is Role.PARTY else COORDINATOR_HOST))
        usage = x509.ExtendedKeyUsage([_USAGE[role, use]])
        builder = _builder(name, self.certificate.subject, key, start, start + timedelta(days=days))
        return (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(), critical=True)
            .add_extension(usage, critical=use is Use.SIGNING)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )


def party_host(name: str) -> str:
    """The host name that a party's transport certificate carries, wherever the party listens."""
    return f"{name}.party.conclave"


def fingerprint(of: x509.Certificate | CertificatePublicKeyTypes) -> str:
    """`SHA256:` and 64 hexadecimal digits: of the SubjectPublicKeyInfo (DER), so it survives a renewal."""
    key = of.public_key() if isinstance(of, x509.Certificate) else of
    info = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return f"SHA256:{hashlib.sha256(info).hexdigest()}"


def check_name(name: str, role: Role) -> None:
    """Raises `IdentityError` unless an end of this role may have this name."""
    if re.fullmatch(PARTY_NAME if role is Role.PARTY else COORDINATOR_NAME, name) is None:
        right = (
            "lower-case letters, digits and hyphens, at most 40"
            if role is Role.PARTY
            else "a host name in lower case, at most 64 long, such as coordinator.consortium.example"
        )
        raise IdentityError(f'"{shown_name(name)}" is not a name that a {role} can have. Use {right}.')


def new_keys() -> tuple[EllipticCurvePrivateKey, Ed25519PrivateKey]:
    """Fresh keys of an end: for transport, for signing."""
    return generate_ec_key(SECP256R1()), Ed25519PrivateKey.generate()


def new_authority(name: str, *, years: int = 10) -> Authority:
    """An authority with a fresh key that vouches for itself. `name` is for people."""
    key = generate_ec_key(SECP256R1())
    start = datetime.now(UTC) - BACKDATED
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(name, subject, key.public_key(), start, start + years * _YEAR)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def make_request(name: str, transport_key: EllipticCurvePrivateKey, signing_key: Ed25519PrivateKey) -> bytes:
    """Two certificate signing requests (PKCS 10, PEM), for transport and for signing, each signed by its own key."""
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    requests = (builder.sign(transport_key, hashes.SHA256()), builder.sign(signing_key, None))
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in requests)


def read_request(pem: bytes) -> Request:
    """What a request asks for. Raises `IdentityError` unless it is whole and both keys are its maker's."""
    try:
        requests = [x509.load_pem_x509_csr(each) for each in _blocks(pem, "CERTIFICATE REQUEST")]
        whole = len(requests) == 2 and all(each.is_signature_valid for each in requests)
        keys = [each.public_key() for each in requests]
        names = {_common_name(each.subject) for each in requests}
    except UNREADABLE:
        whole, keys, names = False, [], set()
    if not whole:
        raise IdentityError(
            "this is not a whole request: two certificate requests, each signed by the key that it names, were "
            "expected. Make it again with `party enroll`."
        )
    transport, signing = keys
    name = names.pop()
    if names or not isinstance(signing, Ed25519PublicKey) or not _is_p256(transport):
        raise IdentityError(
            "the request's two halves do not belong together: one name, an ECDSA P-256 key and then an Ed25519 key "
            "were expected. Make it again with `party enroll`."
        )
    assert isinstance(transport, EllipticCurvePublicKey)
    check_name(name, Role.PARTY)
    return Request(name, transport, signing)


def read_bundle(pem: bytes, where: str) -> Bundle:
    """The three certificates of a bundle. Raises `IdentityError`; `where` names the file in it."""
    try:
        transport, signing, authority = (_whole(x509.load_pem_x509_certificate(x)) for x in _blocks(pem, "CERTIFICATE"))
        authority.verify_directly_issued_by(authority)
    except (*UNREADABLE, InvalidSignature):
        raise IdentityError(
            f"{where} is not a bundle of three certificates (transport, signing, authority). Use the file that "
            "`coordinator provision` wrote, whole."
        ) from None
    return Bundle(transport, signing, authority)


def read_certificate(der: bytes) -> x509.Certificate:
    """A certificate (DER) whose parts can all be looked at. Raises `IdentityError` where it is none."""
    try:
        certificate = _whole(x509.load_der_x509_certificate(der))
        if not der.endswith(b"\x00" + certificate.signature):
            raise ValueError("the signature is not a whole number of bytes, so its last bits could be anything")
        return certificate
    except UNREADABLE:
        raise IdentityError("a certificate cannot be read: it was damaged or changed. Ask for it again.") from None


def key_pem(*keys: EllipticCurvePrivateKey | Ed25519PrivateKey) -> bytes:
    """Private keys as PKCS 8, PEM: an end's key file holds the transport key and then the signing key."""
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return b"".join(each.private_bytes(*form) for each in keys)


def read_keys(pem: bytes, where: str) -> tuple[EllipticCurvePrivateKey, Ed25519PrivateKey]:
    """The transport key and the signing key of a key file. Raises `IdentityError`; `where` names the file in it."""
    try:
        keys = [serialization.load_pem_private_key(each, password=None) for each in _blocks(pem, "PRIVATE KEY")]
    except UNREADABLE:
        keys = []
    match keys:
        case [EllipticCurvePrivateKey() as transport, Ed25519PrivateKey() as signing] if _is_p256(
            transport.public_key()
        ):
            return transport, signing
    raise IdentityError(
        f"{where} does not hold a transport key (ECDSA P-256) and a signing key (Ed25519). Use the file that "
        "`party enroll` or `coordinator provision` wrote, whole."
    )


def pem_of(certificate: x509.Certificate) -> bytes:
    """The certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def subject_of(certificate: x509.Certificate) -> tuple[Role, str, Use] | None:
    """Whose certificate it says to be, and for what; None where it is not one of a federation's ends."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        usage = list(certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
        (urn,) = names.get_values_for_type(x509.UniformResourceIdentifier)
        urn_word, conclave, role_word, name, use_word = urn.split(":")
        role, use = Role(role_word), Use(use_word)
    except (*UNREADABLE, x509.ExtensionNotFound):
        return None
    if (urn_word, conclave) != ("urn", "conclave") or usage != [_USAGE[role, use]] or name != shown_name(name):
        return None
    return role, name, use


class RevocationList:
    """The certificates that an authority takes back, from a file that is read again whenever it changes.

    Raises `IdentityError` when the file is missing, no list, or not the authority's: nothing is then taken for good.
    """

    def __init__(self, path: Path, authority: x509.Certificate) -> None:
        self._path = path
        self._authority = authority
        self._seen: tuple[int, int, int] | None = None
        self._serials: frozenset[int] = frozenset()
        self._read()

    @property
    def serials(self) -> frozenset[int]:
        """The serial numbers of all that were taken back."""
        self._read()
        return self._serials

    def revoked(self, certificate: x509.Certificate) -> bool:
        """Whether the authority took this certificate back."""
        self._read()
        return certificate.serial_number in self._serials

    def _read(self) -> None:
        try:
            status = self._path.stat()
            seen = (status.st_mtime_ns, status.st_size, status.st_ino)
            if seen == self._seen:
                return
            pem = self._path.read_bytes()
        except OSError as error:
            raise IdentityError(
                f"the list of revoked certificates {self._path} cannot be read: {error.strerror}. Take revoked.pem "
                "from the federation's coordinator."
            ) from None
        try:
            revocations = x509.load_pem_x509_crl(pem)
            valid = revocations.is_signature_valid(self._authority.public_key())  # type: ignore[arg-type]
            serials = frozenset(each.serial_number for each in revocations)
        except UNREADABLE:
            valid, serials = False, frozenset()
        if not valid:
            raise IdentityError(
                f"{self._path} is not a list of revoked certificates that this federation's authority "
                f"({fingerprint(self._authority)}) signed. Take revoked.pem from the federation's coordinator."
            )
        self._serials = serials
        self._seen = seen


def check_certificate(
    certificate: x509.Certificate,
    *,
    authority: x509.Certificate | None,
    role: Role,
    name: str | None = None,
    use: Use,
    revoked: RevocationList | None = None,
    at: datetime | None = None,
) -> None:
    """Raises `IdentityError` unless this certificate may be used so, at `at` (with a time zone; now by default).

    authority: who must have issued it; with None nobody is asked. name: whose it must be; anybody's by default.
    """
    subject = subject_of(certificate)
    whose = f"the certificate of {subject[0]} {subject[1]}" if subject else f'the certificate "{_shown(certificate)}"'
    if authority is not None:
        check_issued(certificate, authority, whose)
    if subject is None or (subject[0], subject[2]) != (role, use):
        raise IdentityError(
            f"{whose} is not a {role}'s for {use}. Use the file that `coordinator provision` wrote for this end."
        )
    if name is not None and subject[1] != name:
        raise IdentityError(
            f"{whose} was shown where {role} {name} was expected. Check the address and the name: another end "
            "answers there, or holds the wrong file."
        )
    if revoked is not None and revoked.revoked(certificate):
        raise IdentityError(
            f"{whose} was revoked by the federation's authority. If it should take part again, it makes new keys and "
            "a new request (`party enroll`), which the coordinator signs (`coordinator provision sign`)."
        )
    check_dates(certificate, whose, role, at)


def check_issued(certificate: x509.Certificate, authority: x509.Certificate, whose: str) -> None:
    """Raises `IdentityError` unless `authority` signed this certificate; `whose` begins the sentence."""
    try:
        _verify_issued(certificate, authority)
    except (*UNREADABLE, InvalidSignature):
        raise IdentityError(
            f"{whose} was issued by another authority, not by {_shown(authority)} ({fingerprint(authority)}). "
            "All ends of a federation need certificates of one authority: have a request signed there "
            "(`coordinator provision sign`)."
        ) from None


@functools.lru_cache(maxsize=256)
def _verify_issued(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    """What held once holds for ever: a node asks this of the same certificate at every call, and it takes 0.3 ms."""
    certificate.verify_directly_issued_by(authority)


def check_dates(certificate: x509.Certificate, whose: str, role: Role, at: datetime | None = None) -> None:
    """Raises `IdentityError` unless this certificate is valid at `at` (now by default); `whose` begins the sentence."""
    now = datetime.now(UTC) if at is None else at
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        raise IdentityError(
            f"{whose} is not valid before {moment(start)}, and the clock here says {moment(now)}. One of the clocks "
            "may be wrong, this one or the one of the machine that issued it: set both by a time server."
        )
    if now > end:
        cure = (
            "Renew it: `coordinator provision renew`."
            if role is Role.COORDINATOR
            else "Have its request signed again (`coordinator provision sign`); the keys stay."
        )
        raise IdentityError(f"{whose} expired at {moment(end)}, and the clock here says {moment(now)}. {cure}")


def moment(time: datetime) -> str:
    """A time as sentences say it."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def _builder(
    name: str,
    issuer: x509.Name,
    key: EllipticCurvePublicKey | Ed25519PublicKey,
    start: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, authority: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _urn(role: Role, name: str, use: Use) -> str:
    return f"urn:conclave:{role}:{name}:{use}"


def _whole(certificate: x509.Certificate) -> x509.Certificate:
    """The certificate itself, every part of which was read: the library leaves most for later, and raises then."""
    certificate.public_key()
    _ = (certificate.extensions, certificate.subject, certificate.issuer, certificate.not_valid_after_utc)
    _ = (certificate.not_valid_before_utc, certificate.signature_hash_algorithm)
    return certificate


def _common_name(subject: x509.Name) -> str:
    (attribute,) = subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(attribute.value)


def _shown(certificate: x509.Certificate) -> str:
    return shown_name(certificate.subject.rfc4514_string().removeprefix("CN="))


def shown_name(name: str) -> str:
    """A name from a certificate or a request as a terminal may see it, and never long."""
    return "".join(each if each.isprintable() else "?" for each in name[:LONGEST_NAME])


def _is_p256(key: object) -> bool:
    return isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1)


def _blocks(pem: bytes, kind: str) -> list[bytes]:
    begin, end = re.escape(f"-----BEGIN {kind}-----".encode()), re.escape(f"-----END {kind}-----".encode())
    return re.findall(begin + rb".*?" + end + rb"\r?\n?", pem, re.DOTALL)
