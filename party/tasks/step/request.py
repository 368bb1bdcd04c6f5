"""The request for a party's part of one step that all parties take together."""

import secrets
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from party.store.keys import KEY_BYTES, insecure_key
from party.tasks.task import Given, Work, cannot_give, wrong
from party.tasks.text.request import (
    Lesson,
    TextModel,
    check_parameters,
    labelled_of,
    model_of,
    parameters_of,
    spoken_of,
)
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.steps import is_step


@dataclass(frozen=True, slots=True)
class StepWork(Work):
    """A checked `party_pb2.StepTask`.

    parameters: path of the step's start parameters, float32. key: 32 secret bytes in hexadecimal, for the step's
    sample.
    """

    kind: ClassVar[str] = "step"
    stays: ClassVar[bool] = True
    models: ClassVar[bool] = True

    model: TextModel
    lesson: Lesson
    parameters: str
    key: str

    def bare(self) -> Self:
        """The work without the start parameters, the sample and the tilt, by which nothing is read."""
        return replace(self, parameters="", key="", lesson=replace(self.lesson, tilt=""))


WORK: Final = StepWork


def checked(task: party_pb2.StepTask, given: Given) -> StepWork:
    """Check the request. Raises `Refusal`: REQUEST for an invalid step, and as `model_of`, `labelled_of`, `spoken_of`
    and `parameters_of` do.
    """
    if not is_step(given.release):
        raise cannot_give(StepWork.kind, given.release)
    return StepWork(
        model=model_of(task.model, given),
        lesson=_lesson(task, given),
        key=_sample_key(task, given).hex(),
        parameters=parameters_of(given, task.parameters_sha256),
    )


def fits(work: StepWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal` (ARTEFACT) where the number of parameters differs from the terms."""
    check_parameters(work.parameters, release)


def paid_before(work: StepWork) -> plan_pb2.Release | None:
    """None: a step pays for itself."""
    return None


def _lesson(task: party_pb2.StepTask, given: Given) -> Lesson:
    if task.objective == party_pb2.OBJECTIVE_LANGUAGE:
        return spoken_of(given, task.tilt_sha256)
    if task.objective not in (party_pb2.OBJECTIVE_UNSPECIFIED, party_pb2.OBJECTIVE_LABELS):
        raise wrong("a step is of labels or of language; a domain classifier is trained by each party alone.")
    if task.tilt_sha256:
        raise wrong("a tilt is added to a language model's logits, and this step is of another model.")
    return Lesson(labelled=labelled_of(given, StepWork.kind))


def _sample_key(task: party_pb2.StepTask, given: Given) -> bytes:
    """The sample key of one attempt at one step, drawn anew where its training is begun again."""
    terms = given.run.terms
    if terms.privacy.insecure_reproducible_noise:
        return insecure_key(terms.seed, given.config.name, f"{task.release} sample {task.attempt}")
    return secrets.token_bytes(KEY_BYTES)
