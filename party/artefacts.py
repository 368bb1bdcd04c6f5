"""Public artefacts that a coordinator provided, each under its own SHA-256, whole or not there.

Every run may share them, but for the parameters that a training starts from: those come anew at every step, and lie in
the folder of their run for as long as none have come after them.
"""

import asyncio
import hashlib
import os
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from party.runs import private_folder, remove_parts
from protos.conclave.v1 import party_pb2
from protos.refusal import Reason, Refusal

PARAMETERS: Final = "parameters"
KINDS: Final = ("vocabulary", "reference", "directions", "model", PARAMETERS, "texts")

_ENDING: Final = ".parameters"


class Artefacts:
    """One folder, a file an artefact. They are public and named by what they hold, so every run may share them."""

    def __init__(self, folder: Path, most_mib: int) -> None:
        """most_mib: of one artefact, MiB ([limits] artefact_mib)."""
        self._folder = folder
        self._most = most_mib
        private_folder(folder)
        remove_parts(folder)

    def path(self, sha256: bytes) -> Path:
        """Where the artefact of this digest is, or would be."""
        return self._folder / sha256.hex()

    async def take(
        self, header: party_pb2.ArtefactHeader, parts: AsyncIterator[party_pb2.ProvideRequest], run: Path
    ) -> bool:
        """Store what follows a header; True when it was there already and nothing was read.

        run: the folder of the run that it is for. Raises `Refusal` (ARTEFACT) for an unknown kind, one over the limit,
        or bytes that are not what the header says.
        """
        if header.kind not in KINDS:
            raise Refusal(
                Reason.ARTEFACT,
                f'an artefact of kind "{header.kind[:64]}" is not known here; {", ".join(KINDS)} are.',
            )
        if len(header.sha256) != hashlib.sha256().digest_size:
            raise Refusal(Reason.ARTEFACT, "an artefact is named by its SHA-256, 32 bytes.")
        if header.size > self._most * 2**20:
            raise Refusal(
                Reason.ARTEFACT,
                f"an artefact of {header.size:,} bytes is over the limit of {self._most:,} MiB ([limits] artefact_mib "
                "in the party file).",
            )
        path = parameters(run, header.sha256) if header.kind == PARAMETERS else self.path(header.sha256)
        if path.exists():
            return True
        await self._store(path, header, parts)
        return False

    async def _store(
        self, path: Path, header: party_pb2.ArtefactHeader, parts: AsyncIterator[party_pb2.ProvideRequest]
    ) -> None:
        """Put the bytes that follow a header on disk under their own digest, whole or not at all."""
        digest, size = hashlib.sha256(), 0
        part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        file = os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb")
        try:
            with file:
                async for request in parts:
                    if request.WhichOneof("part") != "data":
                        raise Refusal(Reason.ARTEFACT, "a second header came before the artefact was whole.")
                    size += len(request.data)
                    if size > header.size:
                        raise Refusal(Reason.ARTEFACT, f"more than the {header.size} bytes came that the header says.")
                    digest.update(request.data)
                    await asyncio.to_thread(file.write, request.data)
                file.flush()
                await asyncio.to_thread(os.fsync, file.fileno())
            if size != header.size:
                raise Refusal(Reason.ARTEFACT, f"{size} bytes came of the {header.size} that the header says.")
            if digest.digest() != header.sha256:
                raise Refusal(
                    Reason.ARTEFACT, f"the {header.kind} that came is not the one its SHA-256 names. Send it again."
                )
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def parameters(run: Path, sha256: bytes) -> Path:
    """Where the parameters of this digest are in a run's folder, or would be."""
    return run / f"{sha256.hex()}{_ENDING}"


def drop_parameters(run: Path, sha256: bytes) -> None:
    """Remove all parameters from a run's folder but these."""
    for path in run.glob(f"*{_ENDING}"):
        if path.name != f"{sha256.hex()}{_ENDING}":
            path.unlink(missing_ok=True)
