"""The request for language models on disjoint units, and what they say might stand in every token's place."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, Self

from party.provided.written import Written
from party.tasks.task import Given, Work, cannot_give, wrong
from party.tasks.text.request import Descent, Paired, TextModel, descent_of, model_of, paired_of
from party.tasks.text.voice import written_fits
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal

MOST_TEACHERS: Final = 1000
MOST_CLUES: Final = 1 << 20
"""Bytes of a file of privacy clue words."""
_CELL: Final = 4


@dataclass(frozen=True, slots=True)
class LanguageTeachersWork(Work):
    """A checked `party_pb2.LanguageTeachersTask`.

    slot_key: 32 secret bytes in hexadecimal, which assign units to teachers. written: path of the openings, codes and
    texts. outcomes: path of what the public model says of their tokens; empty where softened outcomes are released.
    clues: path of the privacy clue words; empty where no temperature grows. softened: whether softened outcomes are
    released. key: for the noise on these, 32 bytes in hexadecimal, set when the release is charged. pairs: whose
    answers are learned; None for single texts.
    """

    kind: ClassVar[str] = "language_teachers"
    models: ClassVar[bool] = True

    model: TextModel
    slot_key: str
    teachers: int
    descent: Descent
    written: str
    outcomes: str = ""
    clues: str = ""
    softened: bool = False
    key: str = ""
    pairs: Paired | None = None

    def paid_with(self, key: str) -> Self:
        """The work with its key, where it draws noise itself."""
        return replace(self, key=key) if self.softened else self


WORK: Final = LanguageTeachersWork


def checked(task: party_pb2.LanguageTeachersTask, given: Given) -> LanguageTeachersWork:
    """Check the request. Raises `Refusal`: REQUEST for a release of anything but differences or softened outcomes,
    where a record is no text, and for invalid values; ARTEFACT; and as `model_of` and `paired_of` do.
    """
    release, terms = given.release, given.run.terms
    softened = release.HasField("softened")
    if not softened and not release.HasField("differences"):
        raise cannot_give(LanguageTeachersWork.kind, release)
    if terms.privacy.record == plan_pb2.RECORD_PAIR:
        raise wrong('a text model learns from texts, and a record is a pair of words; plan with record = "document".')
    most = 1 if softened else MOST_TEACHERS
    if not 1 <= task.teachers <= most:
        raise wrong(f"{task.teachers} teachers make no sense; use 1 to {most:,}.")
    descent = descent_of(task.descent)
    if not (descent.epochs and descent.batch):
        raise wrong(f"{descent.epochs} epochs in batches of {descent.batch} train nothing; use 1 or more of each.")
    grows = softened and release.softened.strength > 0
    if bool(task.outcomes_sha256) == softened or bool(task.clues_sha256) != grows:
        raise wrong(
            "differences are from what the public model says, and only temperatures that grow need clue words; the "
            "request names too much or too little."
        )
    model = model_of(task.model, given)
    return LanguageTeachersWork(
        model=model,
        slot_key=given.slot_key,
        teachers=task.teachers,
        descent=descent,
        written=str(given.provided("written", task.written_sha256)),
        outcomes="" if softened else str(given.provided("outcomes", task.outcomes_sha256)),
        clues=str(given.provided("clues", task.clues_sha256)) if grows else "",
        softened=softened,
        pairs=paired_of(given, model.longest),
    )


def fits(work: LanguageTeachersWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal`: ARTEFACT for invalid texts and for outcomes of other texts, REQUEST for more than the release
    is paid for and for too long texts, MEMORY where what teachers say takes more than the job may.
    """
    paid = None if work.softened else release.differences.tokens  # no text has less than a token
    found = written_fits(work.written, release, work.model.longest, paid=paid)
    if work.softened:
        columns = release.softened.top * (1 if release.softened.tokens <= 1 << 16 else 2)
        if work.clues and Path(work.clues).stat().st_size > MOST_CLUES:
            raise Refusal(Reason.ARTEFACT, f"the clue words that were provided are more than {MOST_CLUES:,} bytes.")
    else:
        columns = work.teachers * release.differences.outcomes
        _differ(work, found, release)
    held = 6 * _CELL * found.tokens * columns / 2**20
    if memory and held > memory:
        raise Refusal(
            Reason.MEMORY,
            f"what {work.teachers:,} teachers say of {found.tokens:,} tokens takes {held:,.0f} MiB, and [limits] "
            f"memory_mib of the party file allows {memory:,}.",
        )


def paid_before(work: LanguageTeachersWork) -> plan_pb2.Release | None:
    """None: the release itself is charged."""
    return None


def _differ(work: LanguageTeachersWork, found: Written, release: plan_pb2.Release) -> None:
    """Check that just those tokens are asked that are paid for, and that the outcomes are of so many."""
    if found.tokens != (paid := release.differences.tokens):
        raise wrong(f"{found.tokens:,} tokens are asked, and release {release.name} is paid for {paid:,}.")
    top = release.differences.outcomes - 1
    size = Path(work.outcomes).stat().st_size
    if size not in (_CELL * found.tokens * top, 2 * _CELL * found.tokens * top):
        raise Refusal(
            Reason.ARTEFACT,
            f"the outcomes that were provided take {size:,} bytes, and {top:,} of each of {found.tokens:,} tokens take "
            "4 or 8 each.",
        )
