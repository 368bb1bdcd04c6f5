"""The certificates and keys of a federation's folder: whether each can be used, and until when."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from coordinator.errors import RunError
from coordinator.identity import provisioning
from protos.console.checklist import Line, ok, to_do, warning
from protos.identity.certificates import UNREADABLE, fingerprint
from protos.identity.validity import ending, ends_soon


def identities(folder: Path) -> Iterator[Line]:
    """Lines on the authority, the coordinator's own certificates, those of parties, and who may read the keys."""
    try:
        authority = provisioning.authority_fingerprint(folder)
    except RunError as error:
        yield to_do("federation", str(error))
        return
    except OSError as error:
        yield to_do("federation", f"{error.filename} cannot be read: {error.strerror}.")
        return
    yield ok("federation", f"{folder}, authority {authority}, {_parties(folder)}")
    yield from _keys(folder)
    renew = f"coordinator provision renew --federation {folder}"
    yield from _bundle(
        "authority", folder / provisioning.CA, "make a new federation before, in which every party enrols"
    )
    yield from _bundle("certificate", folder / provisioning.COORDINATOR, f"renew it: {renew}")
    if (folder / provisioning.SERVER).exists():
        yield from _bundle("server", folder / provisioning.SERVER, f"renew it: {renew}")
    gone = _revoked(folder / provisioning.REVOKED)
    for name in provisioning.issued_to(folder):
        newest = max((folder / provisioning.ISSUED).glob(f"{name}.*.pem"), key=_end)
        cure = f"sign {name}'s request again: coordinator provision sign"
        yield from _bundle(name, newest, cure, quiet=True, gone=gone)


def _parties(folder: Path) -> str:
    names = provisioning.issued_to(folder)
    return f"certificates for {', '.join(names)}" if names else "no certificates for parties yet"


def _keys(folder: Path) -> Iterator[Line]:
    """A line for every key that others may read; one where none is."""
    loose = [path for path in sorted(folder.glob("*.key")) if path.stat().st_mode & 0o077]
    for path in loose:
        yield to_do("keys", f"others on this machine may read {path} (mode {path.stat().st_mode & 0o777:04o}). "
                    f"Run: chmod 600 {path}")  # fmt: skip
    if not loose:
        yield ok("keys", "only their owner may read them")


def _bundle(
    what: str, path: Path, cure: str, *, quiet: bool = False, gone: frozenset[int] = frozenset()
) -> Iterator[Line]:
    """A line on the certificates in a file. quiet: none where nothing is to be done about them. gone: serial numbers of
    certificates that were revoked, which may end.
    """
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, *UNREADABLE) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no certificate"
        yield to_do(what, f"{path}: {why}. Restore it from a copy of the folder.")
        return
    if gone & {each.serial_number for each in found}:
        return
    now, begin, end = datetime.now(UTC), max(each.not_valid_before_utc for each in found), ending(*found)
    said = f"{path.name}, {fingerprint(found[-1])}, valid until {end:%Y-%m-%d}"
    if now < begin:
        yield to_do(what, f"{said}, but not before {begin:%Y-%m-%d %H:%M} UTC, and the clock here says "
                    f"{now:%Y-%m-%d %H:%M}. Set the one that is wrong by a time server.")  # fmt: skip
    elif now > end:
        yield to_do(what, f"{said}: it has ended; {cure}.")
    elif ends_soon(end):
        yield warning(what, f"{said}, which is soon; {cure}")
    elif not quiet:
        yield ok(what, said)


def _revoked(path: Path) -> frozenset[int]:
    try:
        return frozenset(each.serial_number for each in x509.load_pem_x509_crl(path.read_bytes()))
    except (OSError, *UNREADABLE):
        return frozenset()


def _end(path: Path) -> datetime:
    try:
        return ending(*x509.load_pem_x509_certificates(path.read_bytes()))
    except (OSError, *UNREADABLE):
        return datetime.min.replace(tzinfo=UTC)
