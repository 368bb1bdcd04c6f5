"""Whether a run fits on this party's machine, given its free memory and disk."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from protos.conclave.v1 import party_pb2
from protos.console.checklist import free_disk, free_memory, size

COARSE: Final = 10**9
"""A coordinator is told free space in steps of this many bytes."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The free memory and disk of a machine, in bytes. memory: None where the system does not say."""

    disk: int
    memory: int | None

    @classmethod
    def of(cls, home: Path, *, frank: bool) -> Self:
        """The free memory and disk now; in whole GB where text is private. Read once, before any of the text is.

        If it were read repeatedly while a party trains, free bytes would tell how large its text and its sums are.
        """
        disk, memory = free_disk(home), free_memory()
        if frank:
            return cls(disk, memory)
        return cls(disk // COARSE * COARSE, None if memory is None else memory // COARSE * COARSE)


def fits(needs: party_pb2.Needs, capacity: Capacity) -> str | None:
    """Why a run does not fit on a machine, in a sentence for the coordinator; None where it does.

    A need of 0 means unknown and is not checked; memory is not checked where the system does not say how much is free.
    """
    if capacity.disk < needs.disk_bytes:
        return (
            f"{size(capacity.disk)} of disk are free for this party's files, and the run is expected to write "
            f"{size(needs.disk_bytes)}; make room there, and start the node again."
        )
    if capacity.memory is not None and capacity.memory < needs.memory_bytes:
        return (
            f"{size(capacity.memory)} of memory are free at this party, and the run is expected to take "
            f"{size(needs.memory_bytes)}; end other programs there and start the node again, or plan with fewer words."
        )
    return None
