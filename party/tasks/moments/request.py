"""The request for clipped moments."""

from dataclasses import dataclass
from typing import ClassVar, Final

from party.tasks.task import Given, Work
from party.tasks.words.request import check_words, size_of
from protos.conclave.v1 import party_pb2, plan_pb2


@dataclass(frozen=True, slots=True)
class MomentsWork(Work):
    """A checked `party_pb2.MomentsTask`. window: context words on each side."""

    kind: ClassVar[str] = "moments"

    vocabulary: str
    window: int
    directions: str


WORK: Final = MomentsWork


def checked(task: party_pb2.MomentsTask, given: Given) -> MomentsWork:
    """Check the request. Raises `Refusal` as `check_words` does, and ARTEFACT for directions that never came."""
    vocabulary = check_words(MomentsWork.kind, ("vectors",), task, given)
    return MomentsWork(vocabulary, task.window, str(given.provided("directions", task.directions_sha256)))


def fits(work: MomentsWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal` (ARTEFACT) for an invalid vocabulary."""
    size_of(work.vocabulary)


def paid_before(work: MomentsWork) -> plan_pb2.Release | None:
    """None: the release itself is charged."""
    return None
