"""A party's request to join a federation: its keys are made and stay here; the request may go anywhere."""

from dataclasses import dataclass
from pathlib import Path

from party.config import PartyConfig
from party.errors import PartyError
from protos.identity.certificates import IdentityError, fingerprint
from protos.identity.identity import read_key_file, write_private, write_public
from protos.identity.requests import key_pem, make_request, new_keys


@dataclass(frozen=True, slots=True)
class Enrolled:
    """A party's key file and request, and the fingerprint of its signing key. kept: whether the keys existed before."""

    key: Path
    request: Path
    fingerprint: str
    kept: bool


def enroll(config: PartyConfig, base: Path) -> Enrolled:
    """Make this party's keys and its certificate request at the path that [identity] of its file gives.

    The request, `NAME.request.pem`, lies beside the future certificate. Existing keys are used unchanged. base: the
    folder of the party file. Raises `PartyError`.
    """
    table = config.identity
    if table is None:
        raise PartyError(
            f"the file of party {config.name} has no [identity]. Add one, then enroll: "
            f'[identity] certificate = "{config.name}.pem", key = "{config.name}.key", authority = "SHA256:..."; '
            "the fingerprint of the federation's authority is what its coordinator reads out by telephone.",
            code="C401",
        )
    key = base / table.key
    request = (base / table.certificate).parent / f"{config.name}.request.pem"
    try:
        kept = key.exists()
        for folder in {key.parent, request.parent}:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not kept:
            write_private(key, key_pem(*new_keys()))
        transport_key, signing_key = read_key_file(key)
        write_public(request, make_request(config.name, transport_key, signing_key))
    except IdentityError as error:
        raise PartyError(f"party {config.name}: {error}") from None
    except OSError as error:
        raise PartyError(f"party {config.name} cannot write {error.filename or key}: {error.strerror}.") from None
    except ValueError:
        raise PartyError(
            f"party {config.name}: {str(key)!r} cannot be the name of a file. Set [identity] key."
        ) from None
    return Enrolled(key, request, fingerprint(signing_key.public_key()), kept)
