"""The request for what a language model that this party trained says might stand in every token's place."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from party.releasing.mechanisms import answering
from party.tasks.result import CELL
from party.tasks.task import Given, Work, cannot_give, wrong
from party.tasks.text.request import Lesson, TextModel, model_of
from party.tasks.text.voice import Voice, trained_path, voice_of, written_fits
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal

MOST_TEMPERATURE: Final = 1e6


@dataclass(frozen=True, slots=True)
class GradingWork(Work):
    """A checked `party_pb2.GradingTask`. parameters: path of those that this party trained and keeps. written: path of
    the openings, codes and texts.
    """

    kind: ClassVar[str] = "grading"
    models: ClassVar[bool] = True
    opens: ClassVar[bool] = False

    model: TextModel
    lesson: Lesson
    parameters: str
    written: str
    voice: Voice | None
    temperature: float


WORK: Final = GradingWork


def checked(task: party_pb2.GradingTask, given: Given) -> GradingWork:
    """Check the request. Raises `Refusal`: REQUEST for a release that is not of targets, before this party has written
    its texts, and for invalid numbers; and as `model_of` and `voice_of` do.
    """
    release, run = given.release, given.run
    answering(release)
    if release.WhichOneof("mechanism") != "targets":
        raise cannot_give(GradingWork.kind, release)
    after = run.release(release.targets.after)
    if run.operation(after.name) is None:
        raise wrong(f"release {after.name} is not trained yet, and its model grades texts; call Train for it first.")
    if not 0 < task.temperature <= MOST_TEMPERATURE:
        raise wrong(f"a temperature of {task.temperature:g} makes no sense; it is above 0.")
    return GradingWork(
        model=model_of(task.model, given),
        lesson=Lesson("language"),
        parameters=trained_path(given, after.texts.after),
        written=str(given.provided("written", task.written_sha256)),
        voice=voice_of(task.voice, given),
        temperature=task.temperature,
    )


def fits(work: GradingWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal`: ARTEFACT for invalid texts, REQUEST for too many or too long ones, MEMORY where what is said of
    them takes more than the job may.
    """
    found = written_fits(work.written, release, work.model.longest)
    if not Path(work.parameters).exists():
        raise wrong("the parameters of the model that wrote the texts are gone; start a new run.")
    targets = release.targets
    size = 3 * CELL * found.tokens * targets.top * (1 if targets.tokens <= 1 << 16 else 2)
    if memory and math.ceil(size / 2**20) > memory:
        raise Refusal(
            Reason.MEMORY,
            f"what is said of {found.tokens:,} tokens takes {size / 2**20:,.0f} MiB, and [limits] memory_mib of the "
            f"party file allows {memory:,}.",
        )


def paid_before(work: GradingWork) -> plan_pb2.Release | None:
    """None: it costs nothing, and the training was charged with the texts."""
    return None
