"""A submission as its submitter may see it, and as the status page shows it."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from aggregation.errors import ConclaveError
from coordinator.serving.child import RUN, told
from coordinator.serving.outcome import opened
from coordinator.serving.scheduling import before
from coordinator.serving.submissions import (
    CANCELLED,
    FAILED,
    FINISHED,
    QUEUED,
    RUNNING,
    STOPPED,
    Submission,
)
from coordinator.store.watching import View, look
from protos.conclave.v1 import coordinator_pb2

STATES: Final = {
    QUEUED: coordinator_pb2.STATE_QUEUED,
    RUNNING: coordinator_pb2.STATE_RUNNING,
    STOPPED: coordinator_pb2.STATE_STOPPED,
    FINISHED: coordinator_pb2.STATE_FINISHED,
    FAILED: coordinator_pb2.STATE_FAILED,
    CANCELLED: coordinator_pb2.STATE_CANCELLED,
}
WORDS: Final = {number: word for word, number in STATES.items()}
LONGEST: Final = 200


def viewed(
    submission: Submission, folder: Path, queued: Sequence[Submission] = (), hidden: Sequence[Path] = ()
) -> coordinator_pb2.Submission:
    """A submission with what the store of its run shows. queued: all that wait. hidden: paths that nobody reads."""
    seen = coordinator_pb2.Submission(
        id=submission.id,
        name=submission.name,
        recipe=submission.recipe,
        state=STATES[submission.state],
        why=submission.why,
        submitted=submission.submitted,
        began=submission.began or 0.0,
        ended=submission.ended or 0.0,
        before=before(submission, queued) if submission.state == QUEUED else 0,
        parties=submission.asks,
        cancelling=submission.cancelling,
    )
    try:
        store = opened(folder)
        if store is not None:
            with closing(store):
                _add_run(seen, look(store), hidden)
    except ConclaveError as error:
        seen.why = seen.why or told(str(error), folder / RUN, *hidden)
    return seen


def _add_run(seen: coordinator_pb2.Submission, view: View, hidden: Sequence[Path]) -> None:
    seen.run = view.run
    seen.heuristic = view.heuristic
    if view.epsilon is not None:
        seen.epsilon = view.epsilon
    for name, state in view.parties.items():
        seen.states[name] = told(state, *hidden)[:LONGEST]
    for stage in view.stages:
        seen.stages.add(name=stage.name, seconds=stage.seconds, finished=stage.finished)
    for part in view.parts:
        added = seen.parts.add(label=part.label, done=max(0, part.done), note=told(part.note, *hidden)[:LONGEST])
        if part.total is not None:
            added.total = max(0, part.total)
