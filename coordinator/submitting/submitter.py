"""Who submits runs: `submitter.toml`, and the keys and request that `coordinator enroll` makes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from coordinator.errors import PlanError, RunError
from coordinator.plan.federation import Name
from protos.console.mistakes import SettingsError
from protos.console.settings import Settings, read_settings, shaped
from protos.identity.certificates import FINGERPRINT, IdentityError, Role, check_name, fingerprint
from protos.identity.identity import Identity, load_identity, read_key_file, write_private, write_public
from protos.identity.requests import key_pem, make_request, new_keys, read_request

FILE: Final = "submitter.toml"


class SubmitterConfig(Settings):
    """`submitter.toml`. authority: the fingerprint of the federation's authority, as it was read out. revoked: the
    federation's list of revoked certificates, if it is at hand.
    """

    name: Name
    authority: Annotated[
        str,
        shaped(
            FINGERPRINT,
            'is no fingerprint: give "SHA256:" and 64 of the digits 0 to 9 and a to f, as party enroll prints it',
        ),
    ]
    certificate: str | None = None
    key: str | None = None
    revoked: str | None = None


@dataclass(frozen=True, slots=True)
class Enrolled:
    """What `coordinator enroll` made. kept: whether the keys were there before."""

    file: Path
    key: Path
    request: Path
    fingerprint: str
    kept: bool


def enroll(name: str, authority: str, folder: Path) -> Enrolled:
    """Make a submitter's keys and request, and its file. The keys never leave this machine. Raises `RunError`."""
    try:
        check_name(name, Role.SUBMITTER)
        key, request, file = folder / f"{name}.key", folder / f"{name}.request.pem", folder / FILE
        kept = key.exists()
        if not kept:
            write_private(key, key_pem(*new_keys()))
        keys = read_key_file(key, Role.SUBMITTER)
        content = make_request(name, *keys)
        write_public(request, content)
        if not file.exists():
            write_public(file, f'name      = "{name}"\nauthority = "{authority}"\n'.encode())
        return Enrolled(file, key, request, fingerprint(read_request(content).transport), kept)
    except IdentityError as error:
        raise RunError(str(error)) from None


def read_submitter(path: Path) -> SubmitterConfig:
    """Read `submitter.toml`. Raises `PlanError`."""
    try:
        return read_settings(path, SubmitterConfig)
    except SettingsError as error:
        raise PlanError(f"{error} `coordinator enroll NAME` makes it; --as names another.") from None


def identity_of(path: Path) -> Identity:
    """The identity that a submitter's file describes. Raises `PlanError`."""
    config, base = read_submitter(path), path.absolute().parent
    try:
        return load_identity(
            base / (config.certificate or f"{config.name}.pem"),
            base / (config.key or f"{config.name}.key"),
            role=Role.SUBMITTER,
            name=config.name,
            authority=config.authority,
            revoked=None if config.revoked is None else base / config.revoked,
        )
    except IdentityError as error:
        raise PlanError(str(error)) from None
