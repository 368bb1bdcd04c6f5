"""The folder of a federation: its authority, the coordinator's own certificates, and what was issued and taken back.

ca.pem, ca.key                   the authority; whoever has the key can mint any party, so it stays here (0600)
coordinator.pem, coordinator.key the coordinator's bundle and private keys
server.pem, server.key           where the coordinator stays up, its bundle and keys towards those who submit runs
revoked.pem                      the certificates taken back, signed by the authority; parties get a copy
issued/                          a copy of every bundle issued, so that all of a name's can be taken back
"""

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from coordinator.errors import RunError
from coordinator.identity.terms import DAYS
from protos.identity.authority import Authority, new_authority
from protos.identity.certificates import (
    UNREADABLE,
    Bundle,
    IdentityError,
    Role,
    check_name,
    fingerprint,
    pem_of,
    read_bundle,
    read_certificate,
    shown_name,
    subject_of,
)
from protos.identity.identity import read_key_file, read_private, write_private, write_public
from protos.identity.requests import Request, key_pem, new_keys, read_request
from protos.identity.validity import RevocationList

CA: Final = "ca.pem"
CA_KEY: Final = "ca.key"
COORDINATOR: Final = "coordinator.pem"
COORDINATOR_KEY: Final = "coordinator.key"
SERVER: Final = "server.pem"
SERVER_KEY: Final = "server.key"
REVOKED: Final = "revoked.pem"
ISSUED: Final = "issued"

LOCAL: Final = "coordinator.localhost"
RENEWED_BEFORE: Final = timedelta(days=30)
_OWN_COPIES: Final = "_coordinator"
"""No party can have this name."""


@dataclass(frozen=True, slots=True)
class Provisioned:
    """What was issued to one end: the path of its bundle, its name and fingerprint, and the last day it is valid."""

    name: str
    fingerprint: str
    path: Path
    until: datetime


@contextlib.contextmanager
def _sentences() -> Iterator[None]:
    try:
        yield
    except IdentityError as error:
        raise RunError(str(error)) from None


def make(folder: Path, name: str, *, days: int = DAYS) -> str:
    """Make the whole folder of a new federation, or nothing; returns its authority's fingerprint.

    name: the coordinator's. Raises `RunError` when the folder is not empty, or for a name that is not allowed.
    """
    with _sentences():
        check_name(name, Role.COORDINATOR)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            f"{folder} exists already and was left alone. Name a new folder, or go on with this one: `coordinator "
            "provision sign`, `revoke`, `renew`.",
            code="C107",
        )
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.absolute().parent))
    try:
        authority = new_authority(f"federation of {name}"[:64])
        (temporary / ISSUED).mkdir(mode=0o700)
        write_private(temporary / CA_KEY, key_pem(authority.key))
        write_public(temporary / CA, pem_of(authority.certificate))
        write_public(temporary / REVOKED, authority.revocation_list([]))
        transport_key, signing_key = new_keys()
        write_private(temporary / COORDINATOR_KEY, key_pem(transport_key, signing_key))
        _issue_own(temporary, authority, name, transport_key, signing_key, days)
        os.replace(temporary, folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return fingerprint(authority.certificate)


def ensure(folder: Path, name: str = LOCAL) -> None:
    """Make the folder if there is none, and renew the coordinator's certificates when they are about to expire.

    Raises `RunError` when an existing folder cannot be used.
    """
    if not (folder / CA).exists():
        try:
            make(folder, name)
        except (RunError, OSError):
            if not (folder / CA).exists():  # otherwise another process was first
                raise
    with _sentences():
        bundle = _own(folder)
    if bundle.signing.not_valid_after_utc - datetime.now(UTC) < RENEWED_BEFORE:
        renew(folder)


def vouched(folder: Path, name: str, request: bytes) -> bytes:
    """The bundle (PEM) that a party of this name requests; no copy of it is kept.

    Raises `RunError`, also for a request in another name.
    """
    with _sentences():
        asked = read_request(request)
        if asked.name != name:
            raise RunError(
                f"party {name} asked for certificates of {shown_name(asked.name)}, and got none.", code="C404"
            )
        return _authority(folder).issue(asked, Role.PARTY).pem()


def request_of(path: Path) -> Request:
    """The content of a request file. Raises `RunError` for a file that is not a request."""
    try:
        with _sentences():
            return read_request(path.read_bytes())
    except RunError as error:
        raise RunError(f"{path}: {error}") from None
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None


def sign(folder: Path, request: Path, *, told: str, days: int = DAYS, role: Role = Role.PARTY) -> Provisioned:
    """Issue the certificates for a request: `<name>.pem` beside it.

    told: the fingerprint that the party's administrator gave out of band. role: of a party, or of a submitter. Raises
    `RunError` when it is not the request's; when the name was issued for another signing key that is not revoked, since
    a second accepted key could take the party's place, or in another role; and for revoked keys.
    """
    asked = request_of(request)
    wanted = compared(asked, role)
    if told != wanted:
        printed = "party enroll" if role is Role.PARTY else "coordinator enroll"
        raise RunError(
            f"{request} has fingerprint {wanted}, and {told} was given. Nothing was signed. Ask the "
            f"administrator of {asked.name} by telephone for the fingerprint that `{printed}` printed there.",
            code="C406",
        )
    with _sentences():
        authority = _authority(folder)
        gone = _revocations(folder, authority)
        for earlier in _issued(folder, asked.name):
            subject = subject_of(earlier.transport)
            if subject is not None and subject[0] is not role and not gone.revoked(earlier.transport):
                raise RunError(
                    f"{asked.name} is the name of a {subject[0]} here, and cannot be that of a {role} as well. Nothing "
                    "was signed. Choose another name.",
                    code="C404",
                )
            _check_key(earlier, asked, gone, folder)
        bundle = authority.issue(asked, role, days)
        write_public(_next_copy(folder, asked.name), bundle.pem())
        path = request.absolute().parent / f"{asked.name}.pem"
        write_public(path, bundle.pem())
    return Provisioned(asked.name, wanted, path, bundle.signing.not_valid_after_utc)


def compared(asked: Request, role: Role) -> str:
    """The fingerprint of a request that two people compare: a party's of its signing key, which others pin; a
    submitter's of its connections' key, for it signs nothing.
    """
    return asked.fingerprint if role is Role.PARTY else fingerprint(asked.transport)


def serve(folder: Path, *, days: int = DAYS) -> Provisioned:
    """Issue the certificates of a coordinator that stays up: `server.pem`, with `server.key`, made where it is
    missing. Raises `RunError`.
    """
    with _sentences():
        authority = _authority(folder)
        own = subject_of(_own(folder).signing)
        if own is None:
            raise RunError(
                f"{folder / COORDINATOR} is not a coordinator's. Use the file that `provision` made.", code="C401"
            )
        if not (folder / SERVER_KEY).exists():
            write_private(folder / SERVER_KEY, key_pem(*new_keys()))
        transport, signing = read_key_file(folder / SERVER_KEY, Role.SERVER)
        request = Request(own[1], transport.public_key(), signing.public_key())
        bundle = authority.issue(request, Role.SERVER, days)
        write_public(_next_copy(folder, _OWN_COPIES), bundle.pem())
        write_public(folder / SERVER, bundle.pem())
    return Provisioned(own[1], fingerprint(bundle.transport), folder / SERVER, bundle.transport.not_valid_after_utc)


def revoke(folder: Path, name: str) -> int:
    """Revoke every certificate issued under a name; returns how many were not revoked before.

    Raises `RunError` when nothing was issued under it, or it is not a name.
    """
    with _sentences():
        authority = _authority(folder)
        own = subject_of(_own(folder).signing)
        itself = own is not None and own[1] == name
        if not itself:
            check_name(name, Role.PARTY)
        copies = _issued(folder, _OWN_COPIES if itself else name)
        if not copies:
            raise RunError(
                f"nothing was issued to {name} in {folder}. Issued to: {', '.join(issued_to(folder)) or 'nobody'}.",
                code="C404",
            )
        gone = _revocations(folder, authority)
        new = {
            each.serial_number
            for bundle in copies
            for each in (bundle.transport, bundle.signing)
            if not gone.revoked(each)
        }
        write_public(folder / REVOKED, authority.revocation_list(new | gone.serials))
    return len(new)


def renew(folder: Path, *, fresh_keys: bool = False, days: int = DAYS) -> Provisioned:
    """Issue the coordinator's certificates again, for the same keys or for new ones. Raises `RunError`."""
    with _sentences():
        authority = _authority(folder)
        own = subject_of(_own(folder).signing)
        if own is None:
            raise RunError(
                f"{folder / COORDINATOR} is not a coordinator's. Use the file that `coordinator provision` made.",
                code="C401",
            )
        if fresh_keys:
            transport_key, signing_key = new_keys()
            write_private(folder / COORDINATOR_KEY, key_pem(transport_key, signing_key), replace=True)
        else:
            transport_key, signing_key = read_key_file(folder / COORDINATOR_KEY, Role.COORDINATOR)
            gone = _revocations(folder, authority)
            if any(
                gone.revoked(each.signing) and fingerprint(each.signing) == fingerprint(signing_key.public_key())
                for each in _issued(folder, _OWN_COPIES)
            ):
                raise RunError("the coordinator's keys were revoked. Renew with fresh ones: --new-keys.", code="C405")
        bundle = _issue_own(folder, authority, own[1], transport_key, signing_key, days)
    if (folder / SERVER_KEY).exists():
        if fresh_keys:
            (folder / SERVER_KEY).unlink()
        serve(folder, days=days)
    return Provisioned(own[1], fingerprint(bundle.signing), folder / COORDINATOR, bundle.signing.not_valid_after_utc)


def issued_to(folder: Path) -> list[str]:
    """The parties that certificates were issued to, by name."""
    names = {path.name.split(".")[0] for path in (folder / ISSUED).glob("*.pem")}
    return sorted(names - {_OWN_COPIES})


def authority_fingerprint(folder: Path) -> str:
    """The authority's fingerprint, which parties compare by telephone and write into their file. Raises `RunError`."""
    with _sentences():
        return fingerprint(_authority(folder).certificate)


def _authority(folder: Path) -> Authority:
    try:
        certificate = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        key = load_pem_private_key(read_private(folder / CA_KEY, Role.COORDINATOR), password=None)
    except FileNotFoundError:
        raise RunError(
            f"{folder} is not the folder of a federation: it has no {CA}. Make one: coordinator provision FOLDER "
            "--name coordinator.consortium.example",
            code="C401",
        ) from None
    except UNREADABLE:
        certificate, key = None, None
    if certificate is None or not isinstance(key, EllipticCurvePrivateKey) or _mismatch(certificate, key):
        raise RunError(
            f"{folder / CA} and {folder / CA_KEY} do not belong together, or one is damaged. Restore both.", code="C401"
        )
    return Authority(certificate, key)


def _mismatch(certificate: x509.Certificate, key: EllipticCurvePrivateKey) -> bool:
    try:
        certificate = read_certificate(certificate.public_bytes(Encoding.DER))
    except IdentityError:
        return True
    return fingerprint(certificate) != fingerprint(key.public_key())


def _own(folder: Path) -> Bundle:
    path = folder / COORDINATOR
    try:
        return read_bundle(path.read_bytes(), str(path))
    except FileNotFoundError:
        raise RunError(
            f"{path}: there is no such file. Restore it, or make the federation's folder anew.", code="C102"
        ) from None


def _issue_own(
    folder: Path,
    authority: Authority,
    name: str,
    transport_key: EllipticCurvePrivateKey,
    signing_key: Ed25519PrivateKey,
    days: int,
) -> Bundle:
    request = Request(name, transport_key.public_key(), signing_key.public_key())
    bundle = authority.issue(request, Role.COORDINATOR, days)
    write_public(_next_copy(folder, _OWN_COPIES), bundle.pem())
    write_public(folder / COORDINATOR, bundle.pem())
    return bundle


def _check_key(earlier: Bundle, asked: Request, gone: RevocationList, folder: Path) -> None:
    """Raises `RunError` unless a name that has this bundle may have the requested one as well."""
    keys = {fingerprint(asked.transport), asked.fingerprint}
    revoked = gone.revoked(earlier.signing) or gone.revoked(earlier.transport)
    if revoked and keys & {fingerprint(earlier.transport), fingerprint(earlier.signing)}:
        raise RunError(
            f"{asked.name} asks with keys that were revoked. Nothing was signed. {asked.name} moves its key file away, "
            "enrolls again, and sends the new request.",
            code="C405",
        )
    if not revoked and fingerprint(earlier.signing) != asked.fingerprint:
        raise RunError(
            f"{asked.name} has certificates for another signing key ({fingerprint(earlier.signing)}). Nothing was "
            f"signed. If that key is given up: coordinator provision revoke {asked.name} --federation {folder}",
            code="C406",
        )


def _revocations(folder: Path, authority: Authority) -> RevocationList:
    return RevocationList(folder / REVOKED, authority.certificate)


def _issued(folder: Path, name: str) -> list[Bundle]:
    paths = sorted((folder / ISSUED).glob(f"{name}.*.pem"))
    return [read_bundle(path.read_bytes(), str(path)) for path in paths]


def _next_copy(folder: Path, name: str) -> Path:
    taken = [path.name.split(".")[1] for path in (folder / ISSUED).glob(f"{name}.*.pem")]
    last = max((int(each) for each in taken if re.fullmatch("[0-9]{1,9}", each)), default=0)
    return folder / ISSUED / f"{name}.{last + 1:04}.pem"
