"""Public artefacts that a coordinator provided for a run, each under its own SHA-256, complete or absent.

They lie in the folder of their run and are removed with it, when it is left or purged. Whether one is present is
answered for that run alone, because anything else would tell of other runs. Artefacts of several runs are on the disk
once. Of the parameters that a training starts from, which come anew at every step, all but the last are removed.
"""

import asyncio
import contextlib
import hashlib
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from party.config import LimitsTable
from party.store.shelf import Shelf
from protos.conclave.v1 import party_pb2
from protos.refusal import Reason, Refusal

PARAMETERS: Final = "parameters"
KINDS: Final = (
    "vocabulary",
    "reference",
    "directions",
    "model",
    PARAMETERS,
    "texts",
    "tilt",
    "voices",
    "written",
    "outcomes",
    "clues",
    "projection",
    "layer",
)
MOST_ARTEFACTS: Final = 1024
"""The most artefacts of one run."""

_ENDING: Final = ".artefact"
_PARAMETERS_ENDING: Final = ".parameters"
_LEAST: Final = 4096
"""The bytes that even the smallest file counts for."""


@dataclass(frozen=True, slots=True)
class Artefacts:
    """The artefacts of one run, except parameters. folder: the run's."""

    folder: Path

    def path(self, sha256: bytes) -> Path:
        """The path of the artefact with this digest, whether it is present or not."""
        return self.folder / f"{sha256.hex()}{_ENDING}"


class Intake:
    """Receives what coordinators provide, within the party's limits."""

    def __init__(self, limits: LimitsTable, most: int, shelf: Shelf | None = None) -> None:
        """limits: for one artefact, and for all artefacts of a run. most: bytes for all runs together. shelf: of
        simulated parties that share this process, None where it has one party.

        `most` is so small that nobody can fill the disk with artefacts: the free space that remained would tell how
        large sums and texts are.
        """
        self._limits = limits
        self._most = most
        self._shelf = shelf
        self._coming: Counter[Path] = Counter()

    async def take(
        self, header: party_pb2.ArtefactHeader, parts: AsyncIterator[party_pb2.ProvideRequest], run: Path
    ) -> bool:
        """Store the content that follows a header; True when the run had it already and nothing was read.

        run: the folder of the run that it is for. Raises `Refusal` (ARTEFACT) for an unknown kind, a size beyond the
        limits, or content that does not match the header; NOT_JOINED when the run ends meanwhile.
        """
        if header.kind not in KINDS:
            raise Refusal(
                Reason.ARTEFACT,
                f'an artefact of kind "{header.kind[:64]}" is not known here; {", ".join(KINDS)} are.',
            )
        if len(header.sha256) != hashlib.sha256().digest_size:
            raise Refusal(Reason.ARTEFACT, "an artefact is named by its SHA-256, 32 bytes.")
        if header.size > self._limits.artefact_mib * 2**20:
            raise Refusal(
                Reason.ARTEFACT,
                f"an artefact of {header.size:,} bytes is over the limit of {self._limits.artefact_mib:,} MiB "
                "([limits] artefact_mib in the party file).",
            )
        path = parameters(run, header.sha256) if header.kind == PARAMETERS else Artefacts(run).path(header.sha256)
        if path.exists():
            return True
        with self._room(run, max(header.size, _LEAST)):
            try:
                if self._shelf is None:
                    await self._store(path, header, parts)
                    return False
                async with self._shelf.alone(path):
                    if self._shelf.link(path):
                        return True
                    await self._store(path, header, parts)
                    self._shelf.put(path)
            except FileNotFoundError:
                raise Refusal(Reason.NOT_JOINED, f"run {run.name} ended while the {header.kind} came.") from None
        return False

    @contextlib.contextmanager
    def _room(self, run: Path, size: int) -> Iterator[None]:
        """Add the incoming bytes to those that are stored. Raises `Refusal` (ARTEFACT) where it is too much."""
        there = _sizes(run)
        total = sum(there) + self._coming[run] + size
        if total > self._limits.run_artefacts_mib * 2**20 or len(there) >= MOST_ARTEFACTS:
            raise Refusal(
                Reason.ARTEFACT,
                f"with this one run {run.name} would leave {len(there) + 1:,} artefacts and {total:,} bytes here; the "
                f"limit is {MOST_ARTEFACTS:,} and {self._limits.run_artefacts_mib:,} MiB ([limits] run_artefacts_mib "
                "in the party file).",
            )
        everywhere = sum(sum(_sizes(each)) for each in run.parent.iterdir()) + self._coming.total() + size
        if everywhere > self._most:
            raise Refusal(
                Reason.ARTEFACT,
                f"with this all runs together would leave {everywhere:,} bytes of artefacts here; the limit is "
                f"{self._most:,}, half of what was free on the disk when the node was started.",
            )
        self._coming[run] += size
        try:
            yield
        finally:
            self._coming[run] -= size
            if not self._coming[run]:
                del self._coming[run]

    async def _store(
        self, path: Path, header: party_pb2.ArtefactHeader, parts: AsyncIterator[party_pb2.ProvideRequest]
    ) -> None:
        """Write the content after a header to disk under its own digest, completely or not at all."""
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
            await asyncio.to_thread(_shared, part, path.name)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _sizes(run: Path) -> list[int]:
    """The size in bytes of each artefact of a run."""
    found = []
    for path in (*run.glob(f"*{_ENDING}"), *run.glob(f"*{_PARAMETERS_ENDING}")):
        with contextlib.suppress(FileNotFoundError):  # parameters may be removed meanwhile
            found.append(max(path.stat().st_size, _LEAST))
    return found


def parameters(run: Path, sha256: bytes) -> Path:
    """The path of the parameters with this digest in a run's folder, whether they are present or not."""
    return run / f"{sha256.hex()}{_PARAMETERS_ENDING}"


def drop_parameters(run: Path, sha256: bytes) -> None:
    """Remove all parameters from a run's folder except these."""
    for path in run.glob(f"*{_PARAMETERS_ENDING}"):
        if path.name != f"{sha256.hex()}{_PARAMETERS_ENDING}":
            path.unlink(missing_ok=True)


def _shared(part: Path, name: str) -> None:
    """Replace a received file by a link to another run's file of the same name, and so the same bytes, if there is
    one.
    """
    for other in part.parent.parent.glob(f"*/{name}"):
        again = part.with_name(f".{name}.{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):  # the other run may end meanwhile, or have as many links as there can be
            os.link(other, again)
            again.replace(part)
            return
