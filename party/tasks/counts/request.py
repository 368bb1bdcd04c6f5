"""The request for clipped pair counts."""

from dataclasses import dataclass
from typing import ClassVar, Final

from aggregation.mechanisms.outside import OUTSIDE
from party.tasks.result import CELL
from party.tasks.task import Given, Work
from party.tasks.words.request import check_words, size_of
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal


@dataclass(frozen=True, slots=True)
class CountsWork(Work):
    """A checked `party_pb2.CooccurrenceTask`. window: context words on each side."""

    kind: ClassVar[str] = "cooccurrence"

    vocabulary: str
    window: int


WORK: Final = CountsWork


def checked(task: party_pb2.CooccurrenceTask, given: Given) -> CountsWork:
    """Check the request. Raises `Refusal` as `check_words` does."""
    vocabulary = check_words(CountsWork.kind, ("counts", OUTSIDE), task, given)
    return CountsWork(vocabulary, task.window)


def fits(work: CountsWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal`: ARTEFACT for an invalid vocabulary, MEMORY for counts of more words than `memory` holds."""
    size = size_of(work.vocabulary)
    if CELL * size**2 > memory * 2**20:
        raise Refusal(
            Reason.MEMORY,
            f"counts of {size:,} words take {CELL * size**2 / 2**20:,.0f} MiB, and this party's file allows "
            f"[limits] memory_mib = {memory:,}. Use a smaller vocabulary.",
        )


def paid_before(work: CountsWork) -> plan_pb2.Release | None:
    """None: the release itself is charged."""
    return None
