"""The identity of one end of a federation: its certificates and private keys, checked when they are read from files."""

import contextlib
import os
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protos.identity.authority import new_authority
from protos.identity.certificates import Bundle, IdentityError, Role, Use, fingerprint, read_bundle, subject_of
from protos.identity.requests import Request, key_pem, new_keys, read_keys
from protos.identity.validity import RevocationList, check_certificate

SELF_MADE_DAYS: Final = 3650
_MADE_BY: Final = {
    Role.PARTY: "Make the key and a request with `party enroll`, and have the federation's coordinator sign it",
    Role.COORDINATOR: "Make the folder of a federation with `coordinator provision FOLDER --name NAME`",
    Role.SERVER: "Make it with `coordinator provision server --federation FOLDER`",
    Role.SUBMITTER: "Make the key and a request with `coordinator enroll NAME`, and have the federation's coordinator "
    "sign it",
}
RENEWED_BEFORE: Final = timedelta(days=90)


@dataclass(frozen=True, slots=True)
class Identity:
    """One end's own identity. `self_made`: it has no authority's certificate, so only an end that pinned it can trust
    it.

    transport_key: PEM, as TLS libraries take it.
    """

    name: str
    role: Role
    transport: x509.Certificate
    transport_key: bytes = field(repr=False)
    signing: x509.Certificate
    signing_key: Ed25519PrivateKey = field(repr=False)
    authority: x509.Certificate
    revoked: RevocationList | None = None
    self_made: bool = False

    @property
    def fingerprint(self) -> str:
        """The signing key's fingerprint, which others pin."""
        return fingerprint(self.signing)


def load_identity(
    certificate: Path,
    key: Path,
    *,
    role: Role,
    name: str | None = None,
    authority: str | None,
    revoked: Path | None,
    at: datetime | None = None,
) -> Identity:
    """The identity in a bundle and a key file.

    name: whose it must be; by default any. authority: the fingerprint that the bundle's authority must have.
    revoked: the authority's revocation list. at: the time to check at; by default now.
    Raises `IdentityError`: a file that is missing or broken, a key file that others may read, a key that is not the
    certificate's, another authority, and what `check_certificate` refuses.
    """
    bundle = read_bundle(_content(certificate, role), str(certificate))
    transport_key, signing_key = read_key_file(key, role)
    found = fingerprint(bundle.authority)
    if authority is not None and found != authority:
        raise IdentityError(
            f"{certificate} comes from an authority with fingerprint {found}, and {authority} was expected. Ask the "
            "federation's coordinator by telephone which is right; do not use this file before you know.",
            code="C404",
        )
    _check_keys(bundle, transport_key, signing_key, str(certificate), str(key))
    revocations = None if revoked is None else RevocationList(revoked, bundle.authority)
    try:
        _check_bundle(bundle, role, name, revocations, at)
    except IdentityError as error:
        raise IdentityError(f"{certificate}: {error}", code=error.code) from None
    return _identity(bundle, role, transport_key, signing_key, revoked=revocations)


def parse_identity(bundle_pem: bytes, keys_pem: bytes, *, role: Role, name: str | None = None) -> Identity:
    """The identity in a bundle and private keys that were never in files. Raises `IdentityError` as `load_identity`
    does.
    """
    bundle = read_bundle(bundle_pem, "what was issued")
    transport_key, signing_key = read_keys(keys_pem, "what was issued")
    _check_keys(bundle, transport_key, signing_key, "this bundle", "these keys")
    _check_bundle(bundle, role, name)
    return _identity(bundle, role, transport_key, signing_key)


def read_key_file(path: Path, role: Role = Role.PARTY) -> tuple[EllipticCurvePrivateKey, Ed25519PrivateKey]:
    """The transport key and the signing key. Raises `IdentityError`, also when others than the owner may read them."""
    return read_keys(read_private(path, role), str(path))


def read_private(path: Path, role: Role = Role.PARTY) -> bytes:
    """The content of a file that only its owner may read. Raises `IdentityError` where others may, or where it is
    missing.
    """
    content = _content(path, role)
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise IdentityError(
            f"{path} holds private keys and others on this machine may read it (mode {mode:04o}). Run: chmod 600 "
            f"{path}. If anyone else could have read it, make new keys."
        )
    return content


def write_private(path: Path, content: bytes, *, replace: bool = False) -> None:
    """Write a file that only its owner can read (0600 from the first byte), completely or not at all.

    Raises `IdentityError` when it exists already, unless `replace`; OSError when it cannot be written.
    """
    _write(path, content, 0o600, replace=replace)


def write_public(path: Path, content: bytes) -> None:
    """Write or replace a file that all may read (0644), completely or not at all. Raises OSError."""
    _write(path, content, 0o644, replace=True)


def _write(path: Path, content: bytes, mode: int, *, replace: bool) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            os.replace(temporary, path)
        else:
            os.link(temporary, path)
    except FileExistsError:
        raise IdentityError(
            f"{path} exists already and was left alone. Move it away first, or name another.", code="C107"
        ) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def self_made(name: str, role: Role, folder: Path | None) -> Identity:
    """An identity without an authority: its own authority signs once and is discarded.

    folder: where it is stored, so that the signing key is kept (0700, its files 0600); None stores nothing. The
    certificates are made again when they are about to expire or for another name; the keys stay. Raises `IdentityError`
    when a stored identity cannot be used.
    """
    if folder is None:
        transport_key, signing_key = new_keys()
        return _identity(_vouched(name, role, transport_key, signing_key), role, transport_key, signing_key, made=True)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key, certificate = folder / "self-made.key", folder / "self-made.pem"
    if not key.exists():
        with contextlib.suppress(IdentityError):  # another process was first: its keys count
            write_private(key, key_pem(*new_keys()))
    transport_key, signing_key = read_key_file(key, role)
    bundle = _kept(certificate, name, role, transport_key, signing_key)
    if bundle is None:
        bundle = _vouched(name, role, transport_key, signing_key)
        write_private(certificate, bundle.pem(), replace=True)
    return _identity(bundle, role, transport_key, signing_key, made=True)


def _kept(
    path: Path, name: str, role: Role, transport_key: EllipticCurvePrivateKey, signing_key: Ed25519PrivateKey
) -> Bundle | None:
    """The bundle in `path`, where it belongs to these keys and stays valid for a while."""
    later = datetime.now(UTC) + RENEWED_BEFORE
    try:
        bundle = read_bundle(path.read_bytes(), str(path))
        _check_keys(bundle, transport_key, signing_key, str(path), str(path))
        for at in (None, later):
            _check_bundle(bundle, role, name, at=at)
    except (FileNotFoundError, IdentityError):
        return None
    return bundle


def _vouched(name: str, role: Role, transport_key: EllipticCurvePrivateKey, signing_key: Ed25519PrivateKey) -> Bundle:
    request = Request(name, transport_key.public_key(), signing_key.public_key())
    return new_authority(f"{name[:40]}, self-made").issue(request, role, days=SELF_MADE_DAYS)


def _identity(
    bundle: Bundle,
    role: Role,
    transport_key: EllipticCurvePrivateKey,
    signing_key: Ed25519PrivateKey,
    *,
    revoked: RevocationList | None = None,
    made: bool = False,
) -> Identity:
    subject = subject_of(bundle.signing)
    assert subject is not None, "the bundle was checked"
    return Identity(
        name=subject[1],
        role=role,
        transport=bundle.transport,
        transport_key=key_pem(transport_key),
        signing=bundle.signing,
        signing_key=signing_key,
        authority=bundle.authority,
        revoked=revoked,
        self_made=made,
    )


def _check_keys(
    bundle: Bundle, transport_key: EllipticCurvePrivateKey, signing_key: Ed25519PrivateKey, bundle_at: str, keys_at: str
) -> None:
    keys = (fingerprint(transport_key.public_key()), fingerprint(signing_key.public_key()))
    for certificate, key, use in zip((bundle.transport, bundle.signing), keys, Use, strict=True):
        if fingerprint(certificate) != key:
            raise IdentityError(
                f"the {use} key in {keys_at} is not the one that {bundle_at} was issued for. Use the certificates that "
                "came back for the request made with this key, or make a new request."
            )


def _check_bundle(
    bundle: Bundle,
    role: Role,
    name: str | None,
    revoked: RevocationList | None = None,
    at: datetime | None = None,
) -> None:
    for certificate, use in zip((bundle.transport, bundle.signing), Use, strict=True):
        check_certificate(
            certificate, authority=bundle.authority, role=role, name=name, use=use, revoked=revoked, at=at
        )


def _content(path: Path, role: Role) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        how = _MADE_BY[role]
        raise IdentityError(f"{path}: there is no such file. {how}.", code="C102") from None
    except OSError as error:
        raise IdentityError(f"{path} cannot be read: {error.strerror}.", code="C302") from None
