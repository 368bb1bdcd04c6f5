"""The request for classifiers on disjoint units."""

from dataclasses import dataclass
from typing import ClassVar, Final

from party.tasks.task import Given, Work, cannot_give, wrong
from party.tasks.text.request import Descent, TextModel, descent_of, labelled_of, model_of, texts_in
from protos.conclave.v1 import party_pb2, plan_pb2

MOST_CLASSIFIERS: Final = 1000


@dataclass(frozen=True, slots=True)
class EnsembleWork(Work):
    """A checked `party_pb2.EnsembleTask`.

    labelled: the plan's message in hexadecimal. key: 32 secret bytes in hexadecimal, which assign units to teachers.
    texts: path of the public texts that teachers vote on.
    """

    kind: ClassVar[str] = "ensemble"
    models: ClassVar[bool] = True

    model: TextModel
    labelled: str
    key: str
    texts: str
    teachers: int
    descent: Descent


WORK: Final = EnsembleWork


def checked(task: party_pb2.EnsembleTask, given: Given) -> EnsembleWork:
    """Check the request. Raises `Refusal`: REQUEST for invalid values, and as `model_of` and `labelled_of` do."""
    if not given.release.HasField("joint"):
        raise cannot_give(EnsembleWork.kind, given.release)
    model = model_of(task.model, given)
    if not 1 <= task.teachers <= MOST_CLASSIFIERS:
        raise wrong(f"{task.teachers} teachers make no sense; use 1 to {MOST_CLASSIFIERS:,}.")
    descent = descent_of(task.descent)
    if not (descent.epochs and descent.batch):
        raise wrong(f"{descent.epochs} epochs in batches of {descent.batch} train nothing; use 1 or more of each.")
    key = given.slot_key
    return EnsembleWork(
        model=model,
        labelled=labelled_of(given, EnsembleWork.kind),
        key=key,
        texts=str(given.provided("texts", task.texts_sha256)),
        teachers=task.teachers,
        descent=descent,
    )


def fits(work: EnsembleWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal`: ARTEFACT for invalid texts, REQUEST for more texts than the release has charges."""
    texts = texts_in(work.texts)
    if len(texts) > release.charges:
        raise wrong(f"{len(texts):,} texts are asked, and release {release.name} is paid for {release.charges:,}.")


def paid_before(work: EnsembleWork) -> plan_pb2.Release | None:
    """None: the release itself is charged."""
    return None
