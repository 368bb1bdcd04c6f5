"""A job that the node gives its training subprocess: one line of JSON with absolute paths; and the reason for a
failure.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self, TypeAlias

from aggregation.errors import ConclaveError
from learning.errors import FULL, ComputeError
from learning.models.compute import PROCESSOR, Compute
from learning.text.source import NOTHING
from party.shard.reading import Reading
from party.shard_table import ShardTable
from party.tasks.result import Sum
from party.tasks.task import Work, work_of
from protos.conclave.v1 import plan_pb2

UNKNOWN: Final = 255
"""The percent that is reported where progress must not be known: above all, while the shard is read."""


STORAGE: Final = "StorageError"
"""The kind of failure for a full or read-only disk."""

MEMORY: Final = "MemoryError"
"""The kind of failure for a job that needs more memory than it may use."""


DEVICE: Final = ComputeError.__name__
"""The kind of failure for a device that is gone, or whose memory is too small even for one unit at a time."""


class Failure(NamedTuple):
    """Why there is no result: the kind, and a sentence.

    private: it happened after the shard was opened, so that only the party's own log may have it.
    """

    kind: str
    sentence: str
    private: bool = False


class PartFailed(ConclaveError):
    """A part of a job, run elsewhere, gave no result."""

    CODE = "C508"

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Spread:
    """The cluster of a party's own site on which teachers are trained, and into how many tasks they are divided."""

    address: str
    tasks: int


@dataclass(frozen=True, slots=True)
class Job:
    """What to do with the shard. `release` is the plan's message in hexadecimal; `result` is written completely or not
    at all.

    work: the work of one kind of task. census: where hashes of what is read go (see `party.ledger.census`), made with
    `census_key`; without it none are made. memory: MiB that the process may use; 0 for any. spread: where teachers are
    trained; None for this machine. part: for a spread job, the first teacher and the one after the last, whose answers
    are then the result, unbounded (`party.tasks.ray_tasks`). compute: where its models run. party: whose it is, where
    one process does the jobs of several simulated parties (`party.tasks.pool`); empty for a process of its own. anew:
    how often this party has asked that its text be read again there.
    """

    parent: int
    shard: dict[str, Any]
    policy: dict[str, Any]
    record: Literal["document", "sentence", "pair"]
    by_user: bool
    release: str
    cache: str
    result: str
    work: Work
    census: str = ""
    census_key: str = ""
    memory: int = 0
    spread: Spread | None = None
    part: tuple[int, int] | None = None
    compute: Compute = PROCESSOR
    party: str = ""
    anew: int = 0

    @property
    def reading(self) -> Reading:
        """How the shard is read, with its table checked again."""
        return Reading(
            shard=ShardTable.model_validate(self.shard),
            record=self.record,
            by_user=self.by_user,
            cache=Path(self.cache),
            frank=self.frank,
            declared_size=self.policy.get("declared_size"),
            census=Path(self.census) if self.census else None,
            census_key=bytes.fromhex(self.census_key),
        )

    @property
    def stays(self) -> bool:
        """Whether the process stays for the next such job: a step, which would otherwise read the shard again."""
        return self.work.stays

    @property
    def reads(self) -> str:
        """A key of what has to be read for the job, the same for all steps of one training."""
        return replace(self, release="", result="", census="", work=self.work.bare()).to_json()

    @property
    def frank(self) -> bool:
        """Whether a failure may tell of what is in the shard: true in a simulation, whose text is not private."""
        return bool(self.policy.get("simulation", False))

    @property
    def checkpoint(self) -> Path:
        """Where a private training stores its progress, to be resumed from there."""
        return Path(self.result).with_suffix(".checkpoint")

    @property
    def on_processor(self) -> "Job":
        """The same job on the processor in single precision: the same draws, and the same sum up to rounding."""
        return replace(self, compute=replace(PROCESSOR, threads=self.compute.threads))

    @property
    def without_text(self) -> "Job":
        """The same job on an empty shard: it gives zeros, or a training on noise alone."""
        nobodys = self.shard | {"source": NOTHING, "part": None, "stream": False}
        return replace(self, shard=nobodys, policy=self.policy | {"simulation": False}, census="")

    def paid_with(self, key: str) -> "Job":
        """The job with the noise key of a private training, in hexadecimal, which the ledger gave for its event."""
        return replace(self, work=self.work.paid_with(key))

    def to_json(self) -> str:
        """The job as one line of JSON."""
        fields = asdict(self)
        return json.dumps(fields | {"work": {self.work.kind: fields["work"]}})

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        """The job that `to_json` wrote."""
        fields = json.loads(line)
        ((kind, work),) = fields.pop("work").items()
        spread, part, compute = fields.pop("spread"), fields.pop("part"), fields.pop("compute")
        return cls(
            **fields,
            work=work_of(kind, work),
            spread=None if spread is None else Spread(**spread),
            part=None if part is None else (part[0], part[1]),
            compute=Compute(**compute),
        )


Private: TypeAlias = Callable[[Job, Callable[[int], None]], Sum]
"""The part of a job that opens the shard: a function of the job with its key, and of a callback for percents."""


def release_of(text: str) -> plan_pb2.Release:
    """The release message that a job holds in hexadecimal."""
    return plan_pb2.Release.FromString(bytes.fromhex(text))


def is_device_full(error: BaseException) -> bool:
    """Whether an error is torch's for a device whose memory is exhausted; torch may not be imported here."""
    return type(error).__name__ == "OutOfMemoryError" or any(each in str(error) for each in FULL)


def is_exhausted(error: BaseException) -> bool:
    """Whether an error means that memory is exhausted: Python's own error, or torch's."""
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "alloc" in str(error).lower())
