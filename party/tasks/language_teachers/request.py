"""The request for language models on disjoint units, and what they say might stand in every token's place."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from party.tasks.task import Given, Work, cannot_give, wrong
from party.tasks.text.request import Descent, TextModel, descent_of, model_of
from party.tasks.text.voice import written_fits
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal

MOST_TEACHERS: Final = 1000
_CELL: Final = 4


@dataclass(frozen=True, slots=True)
class LanguageTeachersWork(Work):
    """A checked `party_pb2.LanguageTeachersTask`.

    slot_key: 32 secret bytes in hexadecimal, which assign units to teachers. written: path of the openings, codes and
    texts. outcomes: path of what the public model says of their tokens.
    """

    kind: ClassVar[str] = "language_teachers"
    models: ClassVar[bool] = True

    model: TextModel
    slot_key: str
    teachers: int
    descent: Descent
    written: str
    outcomes: str


WORK: Final = LanguageTeachersWork


def checked(task: party_pb2.LanguageTeachersTask, given: Given) -> LanguageTeachersWork:
    """Check the request. Raises `Refusal`: REQUEST for a release of anything but hidden states of one layer, where a
    record is no text, and for invalid values; ARTEFACT; and as `model_of` does.
    """
    release, terms = given.release, given.run.terms
    bounds = release.joint.hidden
    if not release.HasField("joint") or release.joint.HasField("votes") or bounds.layers != 1 or bounds.width < 2:
        raise cannot_give(LanguageTeachersWork.kind, release)
    if terms.privacy.record == plan_pb2.RECORD_PAIR:
        raise wrong('a text model learns from texts, and a record is a pair of words; plan with record = "document".')
    if not 1 <= task.teachers <= MOST_TEACHERS:
        raise wrong(f"{task.teachers} teachers make no sense; use 1 to {MOST_TEACHERS:,}.")
    descent = descent_of(task.descent)
    if not (descent.epochs and descent.batch):
        raise wrong(f"{descent.epochs} epochs in batches of {descent.batch} train nothing; use 1 or more of each.")
    return LanguageTeachersWork(
        model=model_of(task.model, given),
        slot_key=given.slot_key,
        teachers=task.teachers,
        descent=descent,
        written=str(given.provided("written", task.written_sha256)),
        outcomes=str(given.provided("outcomes", task.outcomes_sha256)),
    )


def fits(work: LanguageTeachersWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal`: ARTEFACT for invalid texts and for outcomes of other texts, REQUEST for more tokens than the
    release is paid for and for too long texts, MEMORY where what teachers say takes more than the job may.
    """
    found = written_fits(work.written, release, work.model.longest)
    if found.tokens > release.charges:
        raise wrong(f"{found.tokens:,} tokens are asked, and release {release.name} is paid for {release.charges:,}.")
    top = release.joint.hidden.width - 1
    size = Path(work.outcomes).stat().st_size
    if size not in (_CELL * found.tokens * top, 2 * _CELL * found.tokens * top):
        raise Refusal(
            Reason.ARTEFACT,
            f"the outcomes that were provided take {size:,} bytes, and {top:,} of each of {found.tokens:,} tokens take "
            "4 or 8 each.",
        )
    held = 3 * _CELL * work.teachers * found.tokens * (top + 1) / 2**20
    if memory and held > memory:
        raise Refusal(
            Reason.MEMORY,
            f"what {work.teachers:,} teachers say of {found.tokens:,} tokens takes {held:,.0f} MiB, and [limits] "
            f"memory_mib of the party file allows {memory:,}.",
        )


def paid_before(work: LanguageTeachersWork) -> plan_pb2.Release | None:
    """None: the release itself is charged."""
    return None
