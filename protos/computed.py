"""What a party computes a run with: a public fact of its machine and its file, in which no record plays a part."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from protos.conclave.v1 import party_pb2
from protos.refusal import plain

_LONGEST: Final = 32


@dataclass(frozen=True, slots=True, order=True)
class Computed:
    """The kind of a device and the precision of a model's arithmetic on it; by default those of every machine."""

    device: str = "cpu"
    precision: str = "float32"

    @property
    def usual(self) -> bool:
        """Whether any machine can compute so: on the processor, in single precision."""
        return self == Computed()

    def __str__(self) -> str:
        return f"{self.device} in {self.precision}"

    @classmethod
    def told(cls, said: party_pb2.JoinResponse) -> Self:
        """What a party told, without characters that a terminal or Markdown would interpret."""
        return cls(plain(said.device)[:_LONGEST] or "cpu", plain(said.precision)[:_LONGEST] or "float32")

    @property
    def fields(self) -> Mapping[str, str]:
        """Its fields of `party_pb2.JoinResponse`: none for what is usual."""
        return {} if self.usual else {"device": self.device, "precision": self.precision}
