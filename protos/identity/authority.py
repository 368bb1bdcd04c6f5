"""The certificate authority of a federation: it issues the certificates of its ends, and revokes them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as generate_ec_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import NameOID

from protos.identity.certificates import USAGE, Bundle, Role, Use, check_name, host_of
from protos.identity.requests import Request

BACKDATED: Final = timedelta(minutes=5)
CRL_YEARS: Final = 10
_YEAR: Final = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Authority:
    """A federation's certificate authority: its certificate and its signing key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey = field(repr=False)

    def issue(self, request: Request, role: Role, days: int = 365, not_before: datetime | None = None) -> Bundle:
        """Both certificates of an end, valid for `days` from `not_before`, by default five minutes ago."""
        check_name(request.name, role)
        start = datetime.now(UTC) - BACKDATED if not_before is None else not_before
        transport = self._issued(request.name, role, Use.TRANSPORT, request.transport, start, days)
        signing = self._issued(request.name, role, Use.SIGNING, request.signing, start, days)
        return Bundle(transport, signing, self.certificate)

    def revocation_list(self, serials: Iterable[int]) -> bytes:
        """The certificate revocation list (PEM) with these serial numbers."""
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
            names.append(x509.DNSName(host_of(name, role)))
        usage = x509.ExtendedKeyUsage([USAGE[role, use]])
        builder = _builder(name, self.certificate.subject, key, start, start + timedelta(days=days))
        return (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(), critical=True)
            .add_extension(usage, critical=use is Use.SIGNING)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()), critical=False)
            .sign(self.key, hashes.SHA256())
        )


def new_authority(name: str, *, years: int = 10) -> Authority:
    """An authority with a fresh key and a self-signed certificate. `name` is for people."""
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
