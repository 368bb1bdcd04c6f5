"""The files of the runs that a party joined: the plan, trained results, the blocks that left. Mode 0600."""

import contextlib
import json
import os
import re
import secrets
import shutil
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity.certificates import IdentityError, read_certificate
from protos.refusal import Reason, Refusal
from protos.steps import SEPARATOR, number_of, step_of, whole_of

NAME: Final = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
_PART: Final = re.compile(r"\..+\.([0-9a-f]{8}|part)")


@dataclass(frozen=True, slots=True)
class Operation:
    """A finished training: the digest of its request and the release it was trained for.

    attempt: for a step, the attempt at the secure sum that it was trained for; other results serve every attempt, and
    have 0. training: the digest of what was trained, whatever its name (`party.tasks.operations.training_digest`).
    """

    id: str
    digest: bytes
    release: str
    attempt: int = 0
    training: bytes = b""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that this party joined and has not left, with its folder."""

    id: str
    plan_hash: bytes
    terms: plan_pb2.Terms
    folder: Path

    def release(self, name: str) -> plan_pb2.Release:
        """The release of the plan's terms, or a step of it. Raises `Refusal` (REQUEST) for a name that is not in
        them.
        """
        for release in self.terms.releases:
            found = release if release.name == name else step_of(release, name)
            if found is not None:
                return found
        known = ", ".join(release.name for release in self.terms.releases) or "none"
        raise Refusal(Reason.REQUEST, f'the plan has no release "{name[:64]}"; it has {known}.')

    def signers(self) -> dict[str, bytes]:
        """The signing keys of the run's other parties, Ed25519, 32 bytes; pinned ones were compared at `Join`.

        Parties whose certificate is not valid, or of another kind of key, are left out.
        """
        kept = party_pb2.JoinRequest.FromString((self.folder / "peers.pb").read_bytes())
        found = {sys.intern(each.name): _signing_key(each.certificate) for each in kept.peers}
        return {name: key for name, key in found.items() if key is not None}

    def counts(self, release: str, attempt: int = 0) -> Path:
        """The path of a release's bounded, noise-free sum until the run ends, or of a step's until the next one.

        attempt: as of `Operation`, so that the sample of one attempt is never used for another.
        """
        return self.folder / (f"{release}.{attempt}.counts.npz" if attempt else f"{release}.counts.npz")

    def census(self, release: str) -> Path:
        """The path where a training leaves hashes of what it read, before they enter the ledger."""
        return self.folder / f".{release}.census.part"

    def operation(self, release: str) -> Operation | None:
        """The operation that trained a release, once it has."""
        path = self.folder / f"{release}.operation.json"
        try:
            kept = json.loads(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        digest, training = (bytes.fromhex(kept.get(key, "")) for key in ("digest", "training"))
        return Operation(kept["id"], digest, release, kept.get("attempt", 0), training)

    def keep_operation(self, operation: Operation) -> None:
        """Record that a release was trained; from now on nothing else trains it in this run."""
        digests = {"digest": operation.digest.hex(), "training": operation.training.hex()}
        kept = json.dumps({"id": operation.id, "attempt": operation.attempt} | digests)
        write_whole(self.folder / f"{operation.release}.operation.json", kept.encode())

    def last_step(self, release: str) -> int | None:
        """The last trained step of a stepped training, given the name of any step; None where none was."""
        found = self.folder.glob(f"{whole_of(release)}{SEPARATOR}*.operation.json")
        return max((number_of(each.name.removesuffix(".operation.json")) or 0 for each in found), default=None)

    def drop_before(self, operation: Operation) -> None:
        """Remove the files of the steps before a trained one, and the sums of its own other attempts.

        The record of the step itself stays, and tells that the earlier ones are over.
        """
        begins = f"{whole_of(operation.release)}{SEPARATOR}"
        step, own = number_of(operation.release) or 0, self.counts(operation.release, operation.attempt)
        for path in self.folder.glob(f"{begins}*"):
            number = path.name.removeprefix(begins).partition(SEPARATOR)[0]
            earlier = number.isdecimal() and int(number) < step
            other = path.name.startswith(f"{operation.release}{SEPARATOR}") and path.name.endswith(".counts.npz")
            if earlier or (other and path != own):
                path.unlink(missing_ok=True)

    def block(self, release: str, batch: int) -> bytes | None:
        """The bytes of a block that was already made."""
        try:
            return self._block(release, batch).read_bytes()
        except FileNotFoundError:
            return None

    def keep_block(self, release: str, batch: int, block: NDArray[np.int32]) -> None:
        """Store a block before any byte of it leaves."""
        write_whole(self._block(release, batch), np.ascontiguousarray(block, "<i4").tobytes())

    def _block(self, release: str, batch: int) -> Path:
        return self.folder / f"{release}.{batch}.block"


@lru_cache(maxsize=2048)
def _signing_key(certificate: bytes) -> bytes | None:
    """Of a certificate (DER); known where another simulated party of this process was shown the same."""
    try:
        key = read_certificate(certificate).public_key()
    except IdentityError:
        return None
    return key.public_bytes_raw() if isinstance(key, Ed25519PublicKey) else None


class Runs:
    """The folder of all runs, one folder a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        private_folder(folder)

    def make(self, run_id: str, plan_hash: bytes, plan: plan_pb2.Plan, peers: Sequence[party_pb2.Peer] = ()) -> Run:
        """Store a plan, and the other parties' certificates, under its run id."""
        folder = self._path(run_id)
        private_folder(folder)
        write_whole(folder / "peers.pb", party_pb2.JoinRequest(peers=peers).SerializeToString())
        write_whole(folder / "plan.pb", plan.SerializeToString())
        sync_folder(self._folder)
        return Run(run_id, plan_hash, plan.terms, folder)

    def find(self, run_id: str, plan_hash: bytes) -> Run | None:
        """A run that an earlier node of this party joined, or None when its folder is gone."""
        folder = self._path(run_id)
        try:
            plan = plan_pb2.Plan.FromString((folder / "plan.pb").read_bytes())
        except (FileNotFoundError, DecodeError):
            return None
        return Run(run_id, plan_hash, plan.terms, folder)

    def drop(self, run_id: str) -> None:
        """Remove all files of a run. Idempotent."""
        shutil.rmtree(self._path(run_id), ignore_errors=True)

    def kept(self) -> dict[str, int]:
        """The runs that have a folder, with the bytes in it."""
        return {each.name: _size(each) for each in sorted(self._folder.iterdir()) if NAME.fullmatch(each.name)}

    def tidy(self, ended: Collection[str]) -> None:
        """Remove what a killed node left: folders of runs that ended, and incomplete files."""
        for run_id in ended:
            self.drop(run_id)
        remove_parts(*filter(Path.is_dir, self._folder.iterdir()))

    def _path(self, run_id: str) -> Path:
        check_run_id(run_id)
        return self._folder / run_id


def check_run_id(run_id: str) -> None:
    """Raises `Refusal` (REQUEST) for anything that is not a run id, since it names a folder."""
    if not NAME.fullmatch(run_id):
        raise Refusal(Reason.REQUEST, "a run id has 1 to 64 small letters, digits and hyphens.")


def private_folder(path: Path) -> None:
    """Make a folder that only this user may enter."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)


def remove_parts(*folders: Path) -> None:
    """Remove files that `write_whole` and similar functions had begun when their process was killed. No writer may be
    active.
    """
    for folder in folders:
        for part in filter(lambda each: _PART.fullmatch(each.name), folder.glob(".*")):
            part.unlink(missing_ok=True)


def sync_folder(path: Path) -> None:
    """Flush a folder's names to disk, so that a renamed file has its new name after a power cut."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _size(folder: Path) -> int:
    sizes = {}
    for each in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another node may be at work
            found = each.stat()
            if each.is_file():
                sizes[found.st_ino] = found.st_size  # a model's weights have two names
    return sum(sizes.values())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file of mode 0600 completely or not at all; it is on disk when this returns."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        sync_folder(path.parent)
    finally:
        part.unlink(missing_ok=True)
