"""What a node asks of its training subprocess: one line of JSON, every path absolute."""

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Self

from aggregation.errors import ConclaveError
from learning.text.source import NOTHING
from party.config import PolicyTable, ShardTable
from protos.conclave.v1 import plan_pb2

UNKNOWN: Final = 255
"""The percent of work of which nobody is told how far it is: reading, above all."""


STORAGE: Final = "StorageError"
"""The kind of failure that is a full or read-only disk."""

MEMORY: Final = "MemoryError"
"""The kind of failure that is more memory than the job may hold."""


class Failure(NamedTuple):
    """Why there is no result: the kind, and a sentence.

    private: it came after the shard was opened, so that only the party's own log may have it.
    """

    kind: str
    sentence: str
    private: bool = False


class PartFailed(ConclaveError):
    """A part of a job, done elsewhere, that has no result."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.sentence)
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Spread:
    """The cluster of a party's own site that teachers are spread over, and into how many tasks."""

    address: str
    tasks: int


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
class Descent:
    """`party_pb2.Descent`, checked. expected_batch: of private training; epochs, batch: of training without noise."""

    learning_rate: float
    optimiser: Literal["adamw", "sgd"]
    schedule: Literal["constant", "linear", "cosine"]
    warm_up: float
    momentum: float
    decay: float
    expected_batch: float
    epochs: int
    batch: int


@dataclass(frozen=True, slots=True)
class TextWork:
    """What is to be learned of a text model: `party_pb2.StepTask`, `TextModelTask` or `EnsembleTask`, checked.

    kind: which of them. files: the model's, by name, where each was provided; folder: where they lie together under
    their names when the model is loaded. labelled: the plan's message in hexadecimal, empty where text alone is read.
    parameters: where the start lies, float32, empty for the model's own. key: 32 secret bytes in hexadecimal, of a
    step's sample, of a private training's samples and noise, or of who is in which teacher. texts: public ones.
    second: the column of second texts, which a domain classifier of pairs reads beside the first; empty otherwise.
    training: of `text_model` the release, in hexadecimal, whose event pays. scored: the texts that the model is to
    score, empty where its parameters are asked.
    """

    kind: Literal["step", "text_model", "ensemble"]
    files: dict[str, str]
    folder: str
    adapt: Literal["head", "lora", "full"]
    rank: int
    alpha: int
    longest: int
    seed: int
    labelled: str = ""
    parameters: str = ""
    key: str = ""
    objective: Literal["labels", "domain", "language"] = "labels"
    texts: str = ""
    second: str = ""
    training: str = ""
    scored: str = ""
    teachers: int = 0
    descent: Descent | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """What to do with the shard. `release` is the plan's message in hexadecimal; `result` is written whole or not.

    census: where hashes of what is read go (see `party.ledger.census`), under `census_key`; without it none are made.
    memory: MiB that the process may hold; 0 for any. spread: where teachers are trained; None for this machine. part:
    of a spread job, the first teacher and the one after the last, whose answers are then the result, unbounded
    (`party.tasks.ray_tasks`).
    """

    parent: int
    shard: dict[str, Any]
    policy: dict[str, Any]
    record: Literal["document", "sentence", "pair"]
    by_user: bool
    release: str
    cache: str
    result: str
    vocabulary: str = ""
    window: int = 0
    teaching: Teaching | None = None
    text: TextWork | None = None
    directions: str = ""
    census: str = ""
    census_key: str = ""
    memory: int = 0
    spread: Spread | None = None
    part: tuple[int, int] | None = None

    @property
    def shard_table(self) -> ShardTable:
        """The shard's table, checked again."""
        return ShardTable.model_validate(self.shard)

    @property
    def stays(self) -> bool:
        """Whether the process stays for the next job of its like: a step, which would read the shard again."""
        return self.text is not None and self.text.kind == "step"

    @property
    def reads(self) -> str:
        """What has to be read for the job, in one word for all steps of one training: all of it but what differs."""
        bare = None if self.text is None else replace(self.text, parameters="", key="")
        return replace(self, release="", result="", census="", text=bare).to_json()

    @property
    def frank(self) -> bool:
        """Whether a training may fail for what is in the shard, and say so: the text of a simulation is nobody's."""
        return bool(self.policy.get("simulation", False))

    @property
    def checkpoint(self) -> Path:
        """Where a private training leaves how far it is, to go on from there."""
        return Path(self.result).with_suffix(".checkpoint")

    @property
    def without_text(self) -> "Job":
        """The same job on a shard without a unit: what comes of it are zeros, or a training by noise alone."""
        nobodys = self.shard | {"source": NOTHING, "part": None, "stream": False}
        return replace(self, shard=nobodys, policy=self.policy | {"simulation": False}, census="")

    def paid_with(self, key: str) -> "Job":
        """The job with the noise key of a private training, in hexadecimal, which the ledger gave for its event.

        Any other job needs none: what noises its sums stays in the node.
        """
        if self.text is not None and self.text.kind == "text_model":
            return replace(self, text=replace(self.text, key=key))
        if self.teaching is not None and self.teaching.training:
            return replace(self, teaching=replace(self.teaching, training_key=key))
        return self

    @property
    def pairs(self) -> bool:
        """Whether every pair is a unit of its own."""
        return self.record == "pair" and not self.by_user

    @property
    def declared_size(self) -> int | None:
        """Records that the shard may be said to have, public; None where the party's file says nothing."""
        return PolicyTable.model_validate(self.policy).declared_size

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        """The job that `to_json` wrote."""
        fields = json.loads(line)
        teaching, text, spread = fields.pop("teaching"), fields.pop("text"), fields.pop("spread")
        part = fields.pop("part")
        if text is not None and text["descent"] is not None:
            text["descent"] = Descent(**text["descent"])
        return cls(
            **fields,
            teaching=None if teaching is None else Teaching(**teaching),
            text=None if text is None else TextWork(**text),
            spread=None if spread is None else Spread(**spread),
            part=None if part is None else (part[0], part[1]),
        )


def release_of(text: str) -> plan_pb2.Release:
    """The message that a job carries in hexadecimal."""
    return plan_pb2.Release.FromString(bytes.fromhex(text))
