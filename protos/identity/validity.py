"""Whether a certificate may be used: by whom, for what, now, and not revoked."""

import functools
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from protos.identity.certificates import UNREADABLE, IdentityError, Role, Use, fingerprint, subject_of, subject_shown

EXPIRING: Final = timedelta(days=30)
"""Before a certificate ends, the time in which checks warn of it."""


def ending(*certificates: x509.Certificate) -> datetime:
    """When the first of some certificates ends."""
    return min(each.not_valid_after_utc for each in certificates)


def ends_soon(end: datetime) -> bool:
    """Whether a certificate that ends then is to be renewed now."""
    return end - datetime.now(UTC) < EXPIRING


class RevocationList:
    """The certificates that an authority revoked, from a file that is read again whenever it changes.

    Raises `IdentityError` when the file is missing, is not a revocation list, or is not the authority's: no certificate
    is then accepted.
    """

    def __init__(self, path: Path, authority: x509.Certificate) -> None:
        self._path = path
        self._authority = authority
        self._seen: tuple[int, int, int] | None = None
        self._serials: frozenset[int] = frozenset()
        self._read()

    @property
    def serials(self) -> frozenset[int]:
        """The serial numbers of all revoked certificates."""
        self._read()
        return self._serials

    def revoked(self, certificate: x509.Certificate) -> bool:
        """Whether the authority revoked this certificate."""
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
                "from the federation's coordinator.",
                code="C302",
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
                f"({fingerprint(self._authority)}) signed. Take revoked.pem from the federation's coordinator.",
                code="C406",
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
    """Raises `IdentityError` unless this certificate may be used in this way, at `at` (with a time zone; by default
    now).

    authority: who must have issued it; with None the issuer is not checked. name: whose it must be; by default any.
    """
    subject = subject_of(certificate)
    whose = (
        f"the certificate of {subject[0]} {subject[1]}"
        if subject
        else f'the certificate "{subject_shown(certificate)}"'
    )
    if authority is not None:
        check_issued(certificate, authority, whose)
    if subject is None or (subject[0], subject[2]) != (role, use):
        raise IdentityError(
            f"{whose} is not a {role}'s for {use}. Use the file that `coordinator provision` wrote for this end.",
            code="C404",
        )
    if name is not None and subject[1] != name:
        raise IdentityError(
            f"{whose} was shown where {role} {name} was expected. Check the address and the name: another end "
            "answers there, or holds the wrong file.",
            code="C404",
        )
    if revoked is not None and revoked.revoked(certificate):
        raise IdentityError(
            f"{whose} was revoked by the federation's authority. If it should take part again, it makes new keys and "
            "a new request (`party enroll`), which the coordinator signs (`coordinator provision sign`).",
            code="C405",
        )
    check_dates(certificate, whose, role, at)


def check_issued(certificate: x509.Certificate, authority: x509.Certificate, whose: str) -> None:
    """Raises `IdentityError` unless `authority` signed this certificate; `whose` begins the sentence."""
    try:
        _verify_issued(certificate, authority)
    except (*UNREADABLE, InvalidSignature):
        raise IdentityError(
            f"{whose} was issued by another authority, not by {subject_shown(authority)} ({fingerprint(authority)}). "
            "All ends of a federation need certificates of one authority: have a request signed there "
            "(`coordinator provision sign`).",
            code="C404",
        ) from None


@functools.lru_cache(maxsize=256)
def _verify_issued(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    """A cached check, because its result never changes: a node checks the same certificate at every call, which takes
    0.3 ms.
    """
    certificate.verify_directly_issued_by(authority)


def check_dates(certificate: x509.Certificate, whose: str, role: Role, at: datetime | None = None) -> None:
    """Raises `IdentityError` unless this certificate is valid at `at` (by default now); `whose` begins the sentence."""
    now = datetime.now(UTC) if at is None else at
    start, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now < start:
        raise IdentityError(
            f"{whose} is not valid before {moment(start)}, and the clock here says {moment(now)}. One of the clocks "
            "may be wrong, this one or the one of the machine that issued it: set both by a time server.",
            code="C403",
        )
    if now > end:
        cure = (
            "Renew it: `coordinator provision renew`."
            if role in (Role.COORDINATOR, Role.SERVER)
            else "Have its request signed again (`coordinator provision sign`); the keys stay."
        )
        raise IdentityError(
            f"{whose} expired at {moment(end)}, and the clock here says {moment(now)}. {cure}", code="C402"
        )


def moment(time: datetime) -> str:
    """A time as it is written in sentences."""
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")
