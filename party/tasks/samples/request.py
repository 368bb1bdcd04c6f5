"""The request for a noisy vector of each text."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, Self

from party.tasks.result import CELL
from party.tasks.task import Given, Work, cannot_give, wrong
from party.tasks.text.request import Lesson, TextModel, labelled_of, model_of
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal

MOST_PROJECTION: Final = 1 << 26
"""Bytes of a file with a projection."""


@dataclass(frozen=True, slots=True)
class SamplesWork(Work):
    """A checked `party_pb2.SamplesTask`.

    projection: path of what the encoder's vectors are projected by. slot_key: 32 secret bytes in hexadecimal, which
    decide what is chosen of too many texts. key: for the noise, 32 bytes in hexadecimal, set when the release is
    charged.
    """

    kind: ClassVar[str] = "samples"
    models: ClassVar[bool] = True

    model: TextModel
    lesson: Lesson
    projection: str
    slot_key: str
    key: str = ""

    def paid_with(self, key: str) -> Self:
        """The work with its key."""
        return replace(self, key=key)


WORK: Final = SamplesWork


def checked(task: party_pb2.SamplesTask, given: Given) -> SamplesWork:
    """Check the request. Raises `Refusal`: REQUEST for a release of anything else, and where a record is no text; as
    `model_of` and `labelled_of` do.
    """
    if not given.release.HasField("samples"):
        raise cannot_give(SamplesWork.kind, given.release)
    if given.run.terms.privacy.record != plan_pb2.RECORD_DOCUMENT:
        raise wrong('a label belongs to a document; plan with record = "document".')
    if task.model.adapt != party_pb2.ADAPT_HEAD:
        raise wrong('the encoder is public and nothing of it is trained; plan with adapt = "head".')
    return SamplesWork(
        model=model_of(task.model, given),
        lesson=Lesson("labels", labelled_of(given, SamplesWork.kind)),
        projection=str(given.provided("projection", task.projection_sha256)),
        slot_key=given.slot_key,
    )


def fits(work: SamplesWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal`: ARTEFACT for too large a projection, MEMORY where the rows take more than the job may."""
    size = Path(work.projection).stat().st_size
    if size > MOST_PROJECTION:
        raise Refusal(Reason.ARTEFACT, f"the projection that was provided has {size:,} bytes; no more than 2^26 may.")
    rows = release.samples
    held = math.ceil(6 * CELL * rows.rows * (rows.dimensions + 1) / 2**20)
    if memory and held > memory:
        raise Refusal(
            Reason.MEMORY,
            f"{rows.rows:,} rows of {rows.dimensions:,} numbers take {held:,} MiB, and [limits] memory_mib of the "
            f"party file allows {memory:,}.",
        )


def paid_before(work: SamplesWork) -> plan_pb2.Release | None:
    """None: the release itself is charged."""
    return None
