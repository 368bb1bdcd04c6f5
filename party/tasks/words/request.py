"""The checks that all tasks about words share: the release, the vocabulary and the window."""

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
    """The path of the provided vocabulary. gives: the mechanisms that the kind has, by their fields in a release.

    Raises `Refusal`: REQUEST for a release that the kind cannot make, and for an invalid window; ARTEFACT.
    """
    answering(given.release)
    if given.release.WhichOneof("mechanism") not in gives:
        raise cannot_give(kind, given.release)
    vocabulary = given.provided("vocabulary", task.vocabulary_sha256)
    if not 1 <= task.window <= MOST_WINDOW:
        raise wrong(f"window = {task.window} makes no sense; use 1 to {MOST_WINDOW} words.")
    return str(vocabulary)


def size_of(vocabulary: str) -> int:
    """Number of words of the provided vocabulary. Blocks. Raises `Refusal` (ARTEFACT) for an invalid one."""
    try:
        return len(vocabulary_in(Path(vocabulary)))
    except TrainingError as error:
        raise Refusal(Reason.ARTEFACT, str(error)) from None
