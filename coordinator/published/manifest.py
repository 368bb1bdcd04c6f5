"""The manifest of a published folder: who signed it, what the parties attest, and a digest of every file.

The manifest is made last, over every other file. Beside it lie the coordinator's signature of it, raw, and the
coordinator's signing certificate, so that it can be checked by hand:

    openssl x509 -in coordinator.pem -pubkey -noout > key.pem
    openssl pkeyutl -verify -pubin -inkey key.pem -rawin -in manifest.json -sigfile manifest.sig
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from cryptography import x509
from pydantic import Field

from protos.conclave.v1 import plan_pb2
from protos.console.settings import Settings
from protos.digest import canonical
from protos.identity.certificates import COORDINATOR_NAME, FINGERPRINT, PARTY_NAME, fingerprint, pem_of
from protos.identity.identity import Identity
from protos.identity.signing import Signed, sign

KIND: Final = "conclave manifest 1"
MANIFEST: Final = "manifest.json"
SIGNATURE: Final = "manifest.sig"
SIGNER: Final = "coordinator.pem"
PLAN: Final = "plan.json"
PRIVACY: Final = "privacy.json"
CARD: Final = "README.md"
ATTESTATIONS: Final = "attestations"
LATEST: Final = 253402300799.0
"""The last second of the year 9999."""
_BLOCK: Final = 1 << 20

PartyName = Annotated[str, Field(pattern=PARTY_NAME)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Seconds = Annotated[float, Field(ge=0, le=LATEST)]


@dataclass(frozen=True, slots=True)
class Seal:
    """The material that a student's folder is sealed with.

    binding: the message that every party joined under, whose hash is `plan_hash` (hex). attestations: each party's
    signed statement of what the run cost it. not_attested: for every other party in a sum, why there is none.
    attested_at, signed_at: when the coordinator received the attestations, and when it signs; seconds since 1970.
    """

    run: str
    plan_hash: str
    binding: plan_pb2.Plan
    identity: Identity
    attestations: Mapping[str, Signed]
    not_attested: Mapping[str, str]
    attested_at: float
    signed_at: float


class File(Settings):
    """A file's SHA-256, in hex, and size."""

    sha256: Digest
    bytes: int = Field(ge=0)


class Attestor(Settings):
    """The fingerprint of the key that a party's attestation is signed with."""

    fingerprint: str = Field(pattern=FINGERPRINT)


class Manifest(Settings):
    """`manifest.json`. files: by their path in the folder, with slashes; all but the manifest and its signature.

    attested_at: when the coordinator received the parties' attestations, by its own clock, with which it confirms the
    times that they state. None in manifests without this field.
    """

    format: Literal[1]
    kind: Literal["conclave manifest 1"]
    run: str = Field(min_length=1, max_length=200)
    plan_hash: Digest
    signed_at: Seconds
    attested_at: Seconds | None = None
    coordinator: str = Field(pattern=COORDINATOR_NAME)
    parties: dict[PartyName, Attestor]
    not_attested: dict[PartyName, str]
    files: dict[str, File]


def write(folder: Path, seal: Seal) -> None:
    """Add the plan, the attestations, the signer's certificate and the signed manifest to a folder that is otherwise
    complete.

    Raises OSError when it cannot be written.
    """
    (folder / PLAN).write_bytes(canonical(seal.binding))
    (folder / SIGNER).write_bytes(pem_of(seal.identity.signing))
    if seal.attestations:
        (folder / ATTESTATIONS).mkdir()
    signers = {name: signed.signer for name, signed in seal.attestations.items()}
    for name, signed in seal.attestations.items():
        statement, signature, certificate = (folder / each for each in attestation_files(name))
        statement.write_bytes(signed.payload)
        signature.write_bytes(signed.signature)
        certificate.write_bytes(pem_of(signers[name]))
    signed = sign(seal.identity, KIND, _fields(folder, seal, signers))
    (folder / MANIFEST).write_bytes(signed.payload)
    (folder / SIGNATURE).write_bytes(signed.signature)


def attestation_files(party: str) -> tuple[str, str, str]:
    """The paths, in the folder, of a party's statement, its signature and its signer's certificate."""
    return (
        f"{ATTESTATIONS}/{party}.json",
        f"{ATTESTATIONS}/{party}.sig",
        f"{ATTESTATIONS}/{party}.pem",
    )


def digest_of(path: Path) -> File:
    """SHA-256 and size of a file, read in blocks."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return File(sha256=digest.hexdigest(), bytes=size)


def _fields(folder: Path, seal: Seal, signers: Mapping[str, x509.Certificate]) -> dict[str, Any]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        "format": 1,
        "run": seal.run,
        "plan_hash": seal.plan_hash,
        "signed_at": seal.signed_at,
        "attested_at": seal.attested_at,
        "coordinator": seal.identity.name,
        "parties": {name: {"fingerprint": fingerprint(signer)} for name, signer in signers.items()},
        "not_attested": dict(seal.not_attested),
        "files": {path.relative_to(folder).as_posix(): digest_of(path).model_dump() for path in files},
    }
