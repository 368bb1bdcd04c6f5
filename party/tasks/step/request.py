"""A party's part of one step that all parties take together, as it is asked for."""

import secrets
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Self

from party.store.keys import KEY_BYTES, insecure_key
from party.tasks.task import Given, Work, cannot_give
from party.tasks.text.request import Lesson, TextModel, check_parameters, labelled_of, model_of, parameters_of
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.steps import is_step


@dataclass(frozen=True, slots=True)
class StepWork(Work):
    """`party_pb2.StepTask`, checked.

    parameters: where those lie that the step starts from, float32. key: 32 secret bytes in hexadecimal, of the step's
    sample.
    """

    kind: ClassVar[str] = "step"
    stays: ClassVar[bool] = True

    model: TextModel
    lesson: Lesson
    parameters: str
    key: str

    def bare(self) -> Self:
        """All but where the step starts and whom it samples."""
        return replace(self, parameters="", key="")


WORK: Final = StepWork


def checked(task: party_pb2.StepTask, given: Given) -> StepWork:
    """Raises `Refusal`: REQUEST for what is no step, and as `model_of`, `labelled_of` and `parameters_of`."""
    if not is_step(given.release):
        raise cannot_give(StepWork.kind, given.release)
    return StepWork(
        model=model_of(task.model, given),
        lesson=Lesson(labelled=labelled_of(given, StepWork.kind)),
        key=_sample_key(task, given).hex(),
        parameters=parameters_of(given, task.parameters_sha256),
    )


def fits(work: StepWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal` (ARTEFACT) for parameters of another number than the terms bound."""
    check_parameters(work.parameters, release)


def paid_before(work: StepWork) -> plan_pb2.Release | None:
    """None: a step pays for itself."""
    return None


def _sample_key(task: party_pb2.StepTask, given: Given) -> bytes:
    """Of one attempt at one step, and drawn anew where its training is begun again."""
    terms = given.run.terms
    if terms.privacy.insecure_reproducible_noise:
        return insecure_key(terms.seed, given.config.name, f"{task.release} sample {task.attempt}")
    return secrets.token_bytes(KEY_BYTES)
