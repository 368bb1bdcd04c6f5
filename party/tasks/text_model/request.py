"""The request for a text model that one party trains alone, and releases as parameters, as scores of texts or as texts
that it writes.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal, Self

from party.admission.labels import columns_of
from party.releasing.mechanisms import is_weights
from party.shard.public_texts import is_text
from party.tasks.task import Given, Work, cannot_give, wrong
from party.tasks.text.request import (
    Descent,
    Lesson,
    TextModel,
    check_parameters,
    descent_of,
    labelled_of,
    model_of,
    named,
    parameters_of,
    spoken_of,
    texts_in,
)
from party.tasks.text.voice import Voice, trained_path, voice_of, written_fits
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal

_OBJECTIVES: Final[Mapping[int, Literal["labels", "domain", "language"]]] = {
    party_pb2.OBJECTIVE_LABELS: "labels",
    party_pb2.OBJECTIVE_DOMAIN: "domain",
    party_pb2.OBJECTIVE_LANGUAGE: "language",
}


MOST_AT_ONCE: Final = 1 << 16
"""The most texts that are written at a time."""


@dataclass(frozen=True, slots=True)
class WritingWork:
    """A checked `party_pb2.Writing`. written: path of the openings and codes. part: which part of the codes this party
    writes texts for, and of how many. keeps: where the trained parameters are kept. seed: of what is drawn, public. The
    others: as of `learning.language.generation.Sampling`.
    """

    written: str
    part: tuple[int, int]
    voice: Voice | None
    top_k: int
    top_p: float
    temperature: float
    batch: int
    seed: int
    keeps: str


@dataclass(frozen=True, slots=True)
class TextModelWork(Work):
    """A checked `party_pb2.TextModelTask`.

    parameters: path of the training's start parameters, float32. training: the release, in hexadecimal, whose event is
    charged. scored: path of the texts that the model is to score, empty where it scores none. writing: the texts that
    it is to write; None where it writes none. key: for samples and noise, 32 bytes in hexadecimal, set when the
    training is charged.
    """

    kind: ClassVar[str] = "text_model"
    models: ClassVar[bool] = True

    model: TextModel
    lesson: Lesson
    parameters: str
    descent: Descent
    training: str
    scored: str = ""
    key: str = ""
    writing: WritingWork | None = None

    def paid_with(self, key: str) -> Self:
        """The work with its key."""
        return replace(self, key=key)

    def bare(self) -> Self:
        """The work without the start of the training, its draws and the tilt, by which nothing is read."""
        return replace(self, parameters="", key="", lesson=replace(self.lesson, tilt=""))


WORK: Final = TextModelWork


def checked(task: party_pb2.TextModelTask, given: Given) -> TextModelWork:
    """Check the request. Raises `Refusal`: REQUEST for invalid values, and as `model_of`, `labelled_of`, `spoken_of`
    and `parameters_of` do.
    """
    release, run = given.release, given.run
    if not is_weights(release) and not release.HasField("free") and not release.HasField("texts"):
        raise cannot_give(TextModelWork.kind, release)
    model = model_of(task.model, given)
    objective = named(_OBJECTIVES, task.objective, "an objective")
    scored = _scored(task, objective, given)
    writing = _writing(task, objective, given)
    descent = descent_of(task.descent)
    if not 0 < descent.expected_batch < math.inf:
        raise wrong("private training needs an expected batch, finite and above 0.")
    texts = second = ""
    if objective == "domain":
        texts = str(given.provided("texts", task.texts_sha256))
        second = _second(given)
    if objective != "labels" and run.terms.privacy.record == plan_pb2.RECORD_PAIR:
        raise wrong('a text model learns from texts, and a record is a pair of words; plan with record = "document".')
    if objective == "language":
        lesson = spoken_of(given, task.tilt_sha256)
    elif task.tilt_sha256:
        raise wrong("a tilt is added to a language model's logits, and the request trains another model.")
    else:
        labelled = labelled_of(given, TextModelWork.kind) if objective == "labels" else ""
        lesson = Lesson(objective, labelled, texts, second)
    return TextModelWork(
        model=model,
        lesson=lesson,
        parameters=parameters_of(given, task.parameters_sha256),
        descent=descent,
        training=_training(given).SerializeToString().hex(),
        scored=scored,
        writing=writing,
    )


def fits(work: TextModelWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal`: ARTEFACT for a wrong number of parameters and for invalid texts, REQUEST for too many or too
    long texts.

    The parameters must be as many as the terms bound, and the texts no more than the release has charges.
    """
    check_parameters(work.parameters, paid_before(work))
    if work.writing is not None:
        asked, longest = work.writing, work.model.longest
        written_fits(asked.written, release, longest, room=release.texts.longest, part=asked.part)
    if not work.scored:
        return
    texts = texts_in(work.scored)
    if not all(map(is_text, texts)):
        raise Refusal(Reason.ARTEFACT, "the texts to score are no JSON list of texts; pairs are not scored.")
    if len(texts) > release.charges:
        raise wrong(f"{len(texts):,} texts are asked, and release {release.name} has rows for {release.charges:,}.")


def paid_before(work: TextModelWork) -> plan_pb2.Release:
    """The release of the training, which is what costs, whatever is made from the model."""
    return plan_pb2.Release.FromString(bytes.fromhex(work.training))


def _second(given: Given) -> str:
    """The column of second texts, where the plan's labelled text consists of pairs; otherwise empty.

    PrivDistil trains one classifier for each field of a pair, and each would have to be paid for. Here one classifier
    learns from the texts of both fields: both are examples of their record, clipped together, at the cost of one.
    """
    terms = given.run.terms
    if not terms.HasField("labelled"):
        return ""
    return columns_of(terms.labelled, given.config.shard).second or ""


def _training(given: Given) -> plan_pb2.Release:
    """The release of the training that costs: the one that is made, or the one that it comes after."""
    release = given.release
    if release.HasField("free"):
        return given.run.release(release.free.after)
    return given.run.release(release.texts.after) if release.HasField("texts") else release


def _writing(task: party_pb2.TextModelTask, objective: str, given: Given) -> WritingWork | None:
    """What is to be written; None for a release of anything else."""
    release, asked = given.release, task.writing
    if release.HasField("texts") != task.HasField("writing") or (task.HasField("writing") and objective != "language"):
        raise wrong("texts are written by a language model, for a release of texts, and such a release needs them.")
    if not release.HasField("texts"):
        return None
    if not (asked.top_p > 0 and asked.top_p <= 1 and 0 < asked.temperature < math.inf):
        raise wrong(f"top_p = {asked.top_p:g} and temperature = {asked.temperature:g} draw no text.")
    if not 1 <= asked.batch <= MOST_AT_ONCE:
        raise wrong(f"{asked.batch:,} texts at a time make no sense; use 1 to {MOST_AT_ONCE:,}.")
    terms = given.run.terms
    number = list(terms.parties).index(given.config.name)
    return WritingWork(
        written=str(given.provided("written", asked.written_sha256)),
        part=(number, len(terms.parties)),
        voice=voice_of(asked.voice, given),
        top_k=asked.top_k,
        top_p=asked.top_p,
        temperature=asked.temperature,
        batch=asked.batch,
        seed=terms.seed + number,
        keeps=trained_path(given, release.texts.after),
    )


def _scored(task: party_pb2.TextModelTask, objective: str, given: Given) -> str:
    """The path of the texts to be scored; empty where a model's parameters are released."""
    release = given.release
    free = release.HasField("free")
    if objective != "domain" and (task.scored_sha256 or free):
        raise wrong("texts are scored by a domain classifier, and the request trains another model.")
    if not free:
        if task.scored_sha256:
            raise wrong(
                f"release {release.name} gives a model's parameters; texts are scored for a release of free answers."
            )
        return ""
    answers = release.free
    if (answers.classes, answers.layers, answers.width, answers.clip) != (0, 1, 1, 1.0):
        raise wrong(
            f"release {release.name} is of other answers; scores have no classes, 1 layer of width 1, and clip 1."
        )
    return str(given.provided("texts", task.scored_sha256))
