"""What every task about words is checked for: a release that it can give, a vocabulary and a window."""

from pathlib import Path

from party.errors import TrainingError
from party.provided.words import vocabulary_in
from party.releasing.mechanisms import answering
from party.tasks.task import Given, cannot_give, wrong
from protos.conclave.v1 import party_pb2
from protos.refusal import Reason, Refusal

MOST_WINDOW = 1000


def check_words(
    kind: str,
    gives: tuple[str, ...],
    task: party_pb2.CooccurrenceTask | party_pb2.MomentsTask | party_pb2.TeachersTask,
    given: Given,
) -> str:
    """Where the vocabulary lies that was provided. gives: mechanisms, by their fields in a release.

    Raises `Refusal`: REQUEST for a release that the kind cannot give, and an odd window; ARTEFACT.
    """
    answering(given.release)
    if given.release.WhichOneof("mechanism") not in gives:
        raise cannot_give(kind, given.release)
    vocabulary = given.provided("vocabulary", task.vocabulary_sha256)
    if not 1 <= task.window <= MOST_WINDOW:
        raise wrong(f"window = {task.window} makes no sense; use 1 to {MOST_WINDOW} words.")
    return str(vocabulary)


def size_of(vocabulary: str) -> int:
    """Words of the vocabulary that was provided. Blocks. Raises `Refusal` (ARTEFACT) for one that is none."""
    try:
        return len(vocabulary_in(Path(vocabulary)))
    except TrainingError as error:
        raise Refusal(Reason.ARTEFACT, str(error)) from None
