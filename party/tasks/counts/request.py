"""Clipped counts as they are asked for."""

from dataclasses import dataclass
from typing import ClassVar, Final

from party.tasks.result import CELL
from party.tasks.task import Given, Work
from party.tasks.words.request import check_words, size_of
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal


@dataclass(frozen=True, slots=True)
class CountsWork(Work):
    """What is to be counted; `party_pb2.CooccurrenceTask`, checked. window: context words on each side."""

    kind: ClassVar[str] = "cooccurrence"

    vocabulary: str
    window: int


WORK: Final = CountsWork


def checked(task: party_pb2.CooccurrenceTask, given: Given) -> CountsWork:
    """Raises `Refusal` as `check_words`."""
    vocabulary = check_words(CountsWork.kind, ("counts",), task, given)
    return CountsWork(vocabulary, task.window)


def fits(work: CountsWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal`: ARTEFACT for a vocabulary that is none, MEMORY for counts of more words than `memory` holds."""
    size = size_of(work.vocabulary)
    if CELL * size**2 > memory * 2**20:
        raise Refusal(
            Reason.MEMORY,
            f"counts of {size:,} words take {CELL * size**2 / 2**20:,.0f} MiB, and this party's file allows "
            f"[limits] memory_mib = {memory:,}. Use a smaller vocabulary.",
        )


def paid_before(work: CountsWork) -> plan_pb2.Release | None:
    """None: what is made pays for itself."""
    return None
