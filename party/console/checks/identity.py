"""A party's certificates, keys and list of revoked certificates, and its clock beside them."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from party.config import PartyConfig
from party.errors import PartyError
from party.node.identity import own_identity
from protos.console.checklist import Line, ok, to_do, warning
from protos.identity.certificates import UNREADABLE, fingerprint
from protos.identity.identity import Identity
from protos.identity.validity import ending, ends_soon

OLD_LIST: Final = timedelta(days=30)


def identity(config: PartyConfig, base: Path, home: Path) -> tuple[list[Line], Identity | None]:
    """Lines on certificates, key, revocation list and clock, or why there are none; and the identity that serves.

    The latter is None where the party serves in plain text, and where the identity cannot be used.
    """
    table = config.identity
    if table is None and config.plaintext:
        return [ok("certificates", "none: plain text, on this machine alone, a simulation")], None
    lines, own = [], None
    try:
        own = own_identity(config, home, base, "", None)
    except PartyError as error:
        lines.append(to_do("certificates", str(error)))
    else:
        lines += _own(own)
    if table is not None:
        lines += [_key(base / table.key), _revoked(None if table.revoked is None else base / table.revoked)]
        lines += _clock(base / table.certificate)
    return lines, own


def _own(own: Identity) -> Iterator[Line]:
    end = ending(own.transport, own.signing)
    said = (
        f"of party {own.name}, valid until {end:%Y-%m-%d}, issued by the authority that the file names; "
        f"signing key {own.fingerprint}"
    )
    if ends_soon(end):
        yield warning("certificates", f"{said}; have the request signed again soon (coordinator provision sign)")
    else:
        yield ok("certificates", said)
    end = ending(own.authority)
    said = f"{fingerprint(own.authority)}, valid until {end:%Y-%m-%d}"
    if ends_soon(end):
        yield warning(
            "authority",
            f"{said}; whoever runs the federation has to make a new one before (coordinator provision federation), and "
            "every party enrols in it",
        )
    else:
        yield ok("authority", said)


def _key(path: Path) -> Line:
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        return to_do("key", f"{path}: {error.strerror}. `party enroll` makes one.")
    if mode & 0o077:
        return to_do("key", f"others on this machine may read it (mode {mode:04o}). Run: chmod 600 {path}")
    return ok("key", f"{path.name}, mode {mode:04o}")


def _revoked(path: Path | None) -> Line:
    if path is None:
        return warning(
            "revoked", "no list: a coordinator whose certificate was revoked is admitted. Set [identity] revoked."
        )
    try:
        made = x509.load_pem_x509_crl(path.read_bytes()).last_update_utc
    except (OSError, *UNREADABLE) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no revocation list"
        return to_do("revoked", f"{path}: {why}. Get revoked.pem from whoever runs the federation.")
    age = max(0, (datetime.now(UTC) - made).days)
    said = f"{path.name}, {age} {'day' if age == 1 else 'days'} old"
    if age > OLD_LIST.days:
        return warning("revoked", f"{said}; ask whoever runs the federation whether there is a newer one")
    return ok("revoked", said)


def _clock(path: Path) -> Iterator[Line]:
    """Check that the certificates were issued in the past; otherwise this machine's clock is slow."""
    try:
        issued = max(each.not_valid_before_utc for each in x509.load_pem_x509_certificates(path.read_bytes()))
    except (OSError, *UNREADABLE):
        return
    now = datetime.now(UTC)
    if now < issued:
        yield to_do(
            "clock",
            f"it says {now:%Y-%m-%d %H:%M} UTC, and the certificates are from {issued:%Y-%m-%d %H:%M}, which is later. "
            "Set this machine's clock; if it is right, the clock where they were issued is wrong.",
        )
    else:
        yield ok("clock", f"{now:%Y-%m-%d %H:%M:%S} UTC, after the certificates were issued")
