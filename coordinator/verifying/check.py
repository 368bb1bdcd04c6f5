"""One check of a published folder, and which certificates are trusted."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding

from aggregation.errors import IntegrityError
from coordinator.errors import RunError
from coordinator.published.folder import Published
from coordinator.reading import shown
from protos.identity.certificates import IdentityError, Role, read_certificate
from protos.identity.signing import Signed, check
from protos.identity.validity import RevocationList

Value = TypeVar("Value")

_LONG: Final = 600
_UNREADABLE: Final = (
    ValueError,
    TypeError,
    OverflowError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""Errors that reading somebody else's certificate may raise."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found, or every sentence of what is wrong."""

    name: str
    ok: bool
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Trust:
    """What is trusted: the authority's certificate, and its list of revoked certificates."""

    authority: x509.Certificate
    revoked: RevocationList | None

    @classmethod
    def read(cls, authority: Path, revoked: Path | None) -> "Trust":
        """Read the files. Raises `RunError` for a file that is not one certificate, or not a revocation list of that
        authority.
        """
        try:
            (certificate,) = x509.load_pem_x509_certificates(authority.read_bytes())
            certificate = read_certificate(certificate.public_bytes(Encoding.DER))
            return cls(certificate, None if revoked is None else RevocationList(revoked, certificate))
        except OSError as error:
            raise RunError(f"{authority} cannot be read: {error.strerror}.") from None
        except ValueError:
            raise RunError(
                f"{authority} is not one certificate. Use the ca.pem of the federation, learned from someone you "
                "trust.",
                code="C401",
            ) from None
        except IdentityError as error:
            raise RunError(str(error)) from None


def told(name: str, wrong: Sequence[str], well: str) -> Check:
    """A check that failed with these sentences, or else passed with this one."""
    return Check(name, not wrong, tuple(wrong) if wrong else (well,))


def tried(act: Callable[[], Value]) -> tuple[Value | None, str]:
    """What `act` returns, or the sentence that says what is wrong with the folder."""
    try:
        return act(), ""
    except (IntegrityError, IdentityError) as error:
        return None, shown(error, _LONG)
    except _UNREADABLE as error:
        return None, f"it cannot be read ({shown(error)})."


def stands(
    signed: Signed, kind: str, role: Role, name: str | None, signed_at: float | None, trust: Trust | None
) -> tuple[Mapping[str, Any] | None, str]:
    """The attested statement, or why it is not valid; the certificate must have been valid when it was signed."""
    at = None if signed_at is None else datetime.fromtimestamp(signed_at, UTC)
    authority, revoked = (None, None) if trust is None else (trust.authority, trust.revoked)
    return tried(lambda: check(signed, kind, authority=authority, role=role, name=name, revoked=revoked, at=at))


def certificate_in(found: Published, path: str) -> bytes:
    """The certificate (DER) in a file that holds exactly one. Raises `IntegrityError`."""
    try:
        (certificate,) = x509.load_pem_x509_certificates(found.read(path))
    except ValueError:
        raise IntegrityError(f"{shown(path)} is not one certificate.") from None
    return certificate.public_bytes(Encoding.DER)
