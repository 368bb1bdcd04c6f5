"""What a node asks of its training subprocess: one line of JSON, every path absolute."""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, Self

from party.config import SIZE_FACT, PolicyTable, ShardTable
from protos.conclave.v1 import plan_pb2

UNKNOWN: Final = 255
"""The percent of work whose length is not known."""


STORAGE: Final = "StorageError"
"""The kind of failure that is a full or read-only disk."""

MEMORY: Final = "MemoryError"
"""The kind of failure that is more memory than the job may hold."""


@dataclass(frozen=True, slots=True)
class Teaching:
    """What teachers are to learn and to answer; `party_pb2.TeachersTask`, checked, with its secrets.

    slot_key: decides in which teacher a unit is. training_key: the noise key of DP-SGD, and its release; empty without.
    """

    teachers: int
    reference: str
    alignment: Literal["initialisation", "procrustes"]
    queries: list[int]
    classes: list[int]
    layers: list[Literal["centre", "context"]]
    vote: Literal["probable", "lift"]
    seed: int
    slot_key: str
    training: str
    training_key: str
    expected_batch: float
    learning_rate: float


@dataclass(frozen=True, slots=True)
class Job:
    """What to do with the shard. `release` is the plan's message in hexadecimal; `result` is written whole or not.

    census: where hashes of what is read go (see `party.census`), under `census_key`; without it none are made.
    only_census: they are all that is wanted. memory: MiB that the process may hold; 0 for any.
    """

    parent: int
    shard: dict[str, Any]
    policy: dict[str, Any]
    record: Literal["document", "sentence", "pair"]
    by_user: bool
    vocabulary: str
    window: int
    release: str
    cache: str
    result: str
    teaching: Teaching | None = None
    directions: str = ""
    census: str = ""
    census_key: str = ""
    only_census: bool = False
    memory: int = 0

    @property
    def shard_table(self) -> ShardTable:
        """The shard's table, checked again."""
        return ShardTable.model_validate(self.shard)

    @property
    def pairs(self) -> bool:
        """Whether every pair is a unit of its own."""
        return self.record == "pair" and not self.by_user

    def percent(self, done: int) -> int:
        """Whole percent of the declared size, told only as finely as the policy tells the size itself."""
        policy = PolicyTable.model_validate(self.policy)
        if policy.declared_size is None or SIZE_FACT not in policy.tell:
            return UNKNOWN
        return min(99, done // 1000 * 1000 * 100 // policy.declared_size)

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        """The job that `to_json` wrote."""
        fields = json.loads(line)
        teaching = fields.pop("teaching")
        return cls(**fields, teaching=None if teaching is None else Teaching(**teaching))


def release_of(text: str) -> plan_pb2.Release:
    """The message that a job carries in hexadecimal."""
    return plan_pb2.Release.FromString(bytes.fromhex(text))
