"""How much memory and disk a run needs, at the coordinator and at each party."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from protos.conclave.v1 import party_pb2

LEAST_DISK: Final = 64 * 2**20
STORED_BYTES, KEPT_BYTES = 8, 20
"""Bytes of a released number: at the coordinator, which stores sums of 64 bits; at a party, for its bounded sum and its
block.
"""


@dataclass(frozen=True, slots=True)
class Needs:
    """What a run needs, in bytes: at the coordinator, and at each party."""

    memory: int
    disk: int
    party_memory: int
    party_disk: int

    @classmethod
    def of(cls, memory: Mapping[str, int], artefacts: int, cells: int) -> Self:
        """From the memory of each kind of process, a party's artefacts in bytes and the released numbers kept."""
        return cls(
            memory=memory["coordinator"],
            disk=LEAST_DISK + artefacts + cells * STORED_BYTES,
            party_memory=memory["party node"] + memory["party training"],
            party_disk=LEAST_DISK + artefacts + cells * KEPT_BYTES,
        )

    @property
    def party(self) -> party_pb2.Needs:
        """A party's part as it travels."""
        return party_pb2.Needs(memory_bytes=self.party_memory, disk_bytes=self.party_disk)
