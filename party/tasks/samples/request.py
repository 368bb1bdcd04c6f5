"""The request for a noisy vector of each text, or a noisy sequence."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, Self

from aggregation.mechanisms.samples import SamplesMechanism
from aggregation.mechanisms.sequences import SequencesMechanism
from party.releasing.mechanisms import mechanism_of
from party.tasks.result import CELL
from party.tasks.task import Given, Work, cannot_give, wrong
from party.tasks.text.request import Lesson, TextModel, labelled_of, model_of
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal

MOST_PROVIDED: Final = 1 << 26
"""Bytes of a file with a projection, or with a layer."""


@dataclass(frozen=True, slots=True)
class SamplesWork(Work):
    """A checked `party_pb2.SamplesTask`.

    projection: path of what the encoder's vectors are projected by; empty where a layer samples. layer: path of that
    layer's parameters; empty where vectors are projected. slot_key: 32 secret bytes in hexadecimal, which decide what
    is chosen of too many texts. key: for the noise, 32 bytes in hexadecimal, set when the release is charged.
    """

    kind: ClassVar[str] = "samples"
    models: ClassVar[bool] = True

    model: TextModel
    lesson: Lesson
    projection: str
    slot_key: str
    key: str = ""
    layer: str = ""

    def paid_with(self, key: str) -> Self:
        """The work with its key."""
        return replace(self, key=key)


WORK: Final = SamplesWork


def checked(task: party_pb2.SamplesTask, given: Given) -> SamplesWork:
    """Check the request. Raises `Refusal`: REQUEST for a release of anything else, where a record is no text, and for
    a projection where a layer samples, or the reverse; as `model_of` and `labelled_of` do.
    """
    layered = given.release.HasField("sequences")
    if not layered and not given.release.HasField("samples"):
        raise cannot_give(SamplesWork.kind, given.release)
    if bool(task.layer_sha256) != layered or bool(task.projection_sha256) == layered:
        raise wrong(
            "noisy vectors are projected, and noisy sequences sampled by a layer: provide the one, and only it."
        )
    labelled = given.run.terms.labelled
    if layered and (labelled.kind == plan_pb2.TEXT_KIND_PAIR or labelled.second):
        raise wrong("noisy sequences are of single texts, and this plan reads pairs.")
    if given.run.terms.privacy.record != plan_pb2.RECORD_DOCUMENT:
        raise wrong('a label belongs to a document; plan with record = "document".')
    if task.model.adapt != party_pb2.ADAPT_HEAD:
        raise wrong('the encoder is public and nothing of it is trained; plan with adapt = "head".')
    return SamplesWork(
        model=model_of(task.model, given),
        lesson=Lesson("labels", labelled_of(given, SamplesWork.kind)),
        projection="" if layered else str(given.provided("projection", task.projection_sha256)),
        slot_key=given.slot_key,
        layer=str(given.provided("layer", task.layer_sha256)) if layered else "",
    )


def fits(work: SamplesWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal`: ARTEFACT for too large a projection or layer, MEMORY where the rows take more than the job
    may.
    """
    what, path = ("layer", work.layer) if work.layer else ("projection", work.projection)
    if (size := Path(path).stat().st_size) > MOST_PROVIDED:
        raise Refusal(Reason.ARTEFACT, f"the {what} that was provided has {size:,} bytes; no more than 2^26 may.")
    mechanism = mechanism_of(release)
    assert isinstance(mechanism, SamplesMechanism | SequencesMechanism)
    cells = mechanism.rows * mechanism.columns
    held = math.ceil((2 if work.layer else 6) * CELL * cells / 2**20)
    if memory and held > memory:
        raise Refusal(
            Reason.MEMORY,
            f"{mechanism.rows:,} rows of {mechanism.columns - 1:,} numbers take {held:,} MiB, and [limits] memory_mib "
            f"of the party file allows {memory:,}.",
        )


def paid_before(work: SamplesWork) -> plan_pb2.Release | None:
    """None: the release itself is charged."""
    return None
