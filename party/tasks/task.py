"""What `Train` may ask for: each kind of task checked against the plan's terms and turned into a job."""

import hmac
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, Self, cast

from safetensors import SafetensorError, safe_open

from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.registry import OF_TEACHERS, of_teachers
from party.admission.recipes import task_of, tasks_of
from party.config import PartyConfig
from party.errors import TrainingError
from party.provided.words import vocabulary_in
from party.releasing.mechanisms import against, answering
from party.store.artefacts import Artefacts
from party.store.keys import insecure_key, slot_key
from party.store.runs import Run
from party.tasks.job import Job, Spread, Teaching, release_of
from party.tasks.process import CELL
from party.tasks.text.request import TEXT_TASKS, check_text, provided, text_work
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.fields import word
from protos.refusal import Reason, Refusal

TRAINS: Final = ("cooccurrence", "moments", "teachers", *TEXT_TASKS)
MOST_TEACHERS: Final = 1000

_GIVES: Final[dict[str, frozenset[str]]] = {
    "cooccurrence": frozenset({"counts"}),
    "moments": frozenset({"vectors"}),
    "teachers": OF_TEACHERS,
}
_ALIGNMENTS: Final[dict[int, Literal["initialisation", "procrustes"]]] = {
    party_pb2.ALIGNMENT_INITIALISATION: "initialisation",
    party_pb2.ALIGNMENT_PROCRUSTES: "procrustes",
}
_LAYERS: Final[dict[int, Literal["centre", "context"]]] = {
    party_pb2.LAYER_CENTRE: "centre",
    party_pb2.LAYER_CONTEXT: "context",
}
_VOTES: Final[dict[int, Literal["probable", "lift"]]] = {
    party_pb2.VOTE_PROBABLE: "probable",
    party_pb2.VOTE_LIFT: "lift",
}


@dataclass(frozen=True, slots=True)
class Asks:
    """What a request is about: the kind of task and the release it trains for; of a step, for which attempt."""

    kind: str
    release: str
    attempt: int = 0

    @classmethod
    def of(cls, request: party_pb2.TrainRequest) -> Self:
        """Raises `Refusal` (REQUEST) for a task that this party does not know."""
        kind = request.WhichOneof("task")
        if kind not in TRAINS:
            raise _wrong(f"this party trains {', '.join(TRAINS)}; the request names no such task.")
        return cls(kind, getattr(request, kind).release, request.step.attempt if kind == "step" else 0)


def job_of(
    request: party_pb2.TrainRequest, run: Run, config: PartyConfig, artefacts: Artefacts, home: Path, census_key: bytes
) -> Job:
    """The job that does what a request asks.

    Raises `Refusal`: POLICY (`recipes`) for a task that the run's recipe does not have, ARTEFACT and REQUEST for one
    that cannot be done.
    """
    asks = Asks.of(request)
    release = run.release(asks.release)
    _admit_task(request, release, run.terms)
    privacy = run.terms.privacy
    job = Job(
        parent=os.getpid(),
        shard=config.shard.model_dump(),
        policy=config.policy.model_dump(),
        record=cast(Literal["document", "sentence", "pair"], word(plan_pb2.Record, privacy.record)),
        by_user=privacy.unit == plan_pb2.UNIT_USER,
        release=release.SerializeToString().hex(),
        cache=str(home / "cache"),
        result=str(run.counts(release.name, asks.attempt)),
        census=str(run.census(release.name)),
        census_key=census_key.hex(),
        memory=config.limits.memory_mib,
        spread=None if config.cluster is None else Spread(config.cluster.address, config.cluster.tasks),
    )
    if asks.kind in TEXT_TASKS:
        return replace(job, text=text_work(request, run, config, artefacts, home))
    mechanism = answering(release)
    if mechanism.kind not in _GIVES[asks.kind]:
        raise _wrong(f"release {release.name} is not one that {asks.kind} can give.")
    task = getattr(request, asks.kind)
    vocabulary = provided(artefacts, "vocabulary", task.vocabulary_sha256)
    if not 1 <= task.window <= 1000:
        raise _wrong(f"window = {task.window} makes no sense; use 1 to 1000 words.")
    return replace(
        job,
        vocabulary=str(vocabulary),
        window=task.window,
        teaching=_teaching(task, release, run, config.name, artefacts, home) if asks.kind == "teachers" else None,
        directions=str(provided(artefacts, "directions", task.directions_sha256)) if asks.kind == "moments" else "",
    )


def check_fit(job: Job) -> None:
    """What is asked against what was provided, before any training is charged. Blocks: it reads files.

    Raises `Refusal` as `check_text` does of a text model; else ARTEFACT for a vocabulary or a reference that is none,
    and for a reference of other words or another width than the terms say; REQUEST for a word not in the vocabulary;
    MEMORY for counts of more words than this party holds.
    """
    if job.text is not None:
        check_text(job, job.text)
        return
    try:
        size = len(vocabulary_in(Path(job.vocabulary)))
    except TrainingError as error:
        raise Refusal(Reason.ARTEFACT, str(error)) from None
    teaching = job.teaching
    if teaching is None:
        if not job.directions and CELL * size**2 > job.memory * 2**20:
            raise Refusal(
                Reason.MEMORY,
                f"counts of {size:,} words take {CELL * size**2 / 2**20:,.0f} MiB, and this party's file allows "
                f"[limits] memory_mib = {job.memory:,}. Use a smaller vocabulary.",
            )
        return
    for name, words in (("query", teaching.queries), ("class", teaching.classes)):
        if words and max(words) >= size:
            raise _wrong(f"a {name} is word {max(words):,}, and the vocabulary has {size:,} words, counted from 0.")
    known, width = _shape(Path(teaching.reference))
    if known != size:
        raise Refusal(
            Reason.ARTEFACT,
            f"the reference that was provided knows {known:,} words, the vocabulary has {size:,}.",
        )
    asked = of_teachers(answering(release_of(job.release)))
    if asked.layers and asked.width != width:
        raise Refusal(
            Reason.ARTEFACT,
            f"the reference that was provided has {width} dimensions, and the plan's terms bound hidden states of "
            f"{asked.width}.",
        )
    training = release_of(teaching.training).gradients if teaching.training else None
    parameters = size * (2 * width + 1)
    if training is not None and training.parameters != parameters:
        raise Refusal(
            Reason.ARTEFACT,
            f"the reference that was provided has {parameters:,} parameters, and the plan's terms pay for a training "
            f"of {training.parameters:,}.",
        )


def _admit_task(request: party_pb2.TrainRequest, release: plan_pb2.Release, terms: plan_pb2.Terms) -> None:
    task, known = task_of(request), tasks_of(terms, release)
    if task not in known:
        given = f"is given by {' or '.join(sorted(known))}" if known else "is given by no task"
        raise against("recipes", f"recipes: release {release.name} of {terms.recipe} {given}, not by {task}")


def _teaching(
    task: party_pb2.TeachersTask, release: plan_pb2.Release, run: Run, party: str, artefacts: Artefacts, home: Path
) -> Teaching:
    reference = provided(artefacts, "reference", task.reference_sha256)
    if not 1 <= task.teachers <= MOST_TEACHERS:
        raise _wrong(f"{task.teachers} teachers make no sense; use 1 to {MOST_TEACHERS}.")
    _check_words(task, release)
    try:
        alignment, vote = _ALIGNMENTS[task.alignment], _VOTES[task.vote]
        layers = [_LAYERS[layer] for layer in task.layers]
    except KeyError:
        raise _wrong("an alignment, a layer or a kind of vote is one that this party does not know.") from None
    paid = run.release(release.free.after) if release.HasField("free") else None
    if paid is not None and not (0 < task.expected_batch < math.inf and 0 < task.learning_rate < math.inf):
        raise _wrong("private training needs an expected batch and a learning rate, finite and above 0.")
    if run.terms.privacy.insecure_reproducible_noise:
        key = insecure_key(run.terms.seed, party, "slots")
    else:
        key = hmac.digest(slot_key(home), b"teachers", "sha256")
    return Teaching(
        teachers=task.teachers,
        reference=str(reference),
        alignment=alignment,
        queries=list(task.queries),
        classes=list(task.classes),
        layers=layers,
        vote=vote,
        seed=run.terms.seed,
        slot_key=key.hex(),
        training="" if paid is None else paid.SerializeToString().hex(),
        training_key="",
        expected_batch=task.expected_batch,
        learning_rate=task.learning_rate,
    )


def _check_words(task: party_pb2.TeachersTask, release: plan_pb2.Release) -> None:
    """Queries, classes and layers as many as the mechanism was priced for, and none twice."""
    mechanism = of_teachers(answering(release))
    votes, layers = mechanism.classes, mechanism.layers
    if Form.SUMMED in mechanism.forms and len(task.queries) > release.charges:
        raise _wrong(
            f"{len(task.queries)} queries are asked, and release {release.name} is paid for {release.charges}."
        )
    for name, listed in (("query", task.queries), ("class", task.classes), ("layer", task.layers)):
        if len(set(listed)) != len(listed):
            raise _wrong(f"a {name} is listed twice; an answer is given once a word.")
    if not task.queries:
        raise _wrong("no query is listed.")
    if votes and len(task.classes) != votes:
        raise _wrong(f"{len(task.classes)} classes are listed, and release {release.name} bounds votes over {votes}.")
    if layers and len(task.layers) != layers:
        raise _wrong(f"{len(task.layers)} layers are listed, and release {release.name} bounds {layers}.")


def _shape(reference: Path) -> tuple[int, int]:
    """Words and dimensions of a skip-gram on disk. Its values are read where torch is; raises `Refusal` (ARTEFACT)."""
    try:
        with safe_open(reference, framework="numpy") as file:
            shape = file.get_slice("inputs").get_shape()
    except SafetensorError:
        shape = []
    if len(shape) != 2:
        raise Refusal(Reason.ARTEFACT, "the reference that was provided is no skip-gram in the safetensors format.")
    return shape[0], shape[1]


def _wrong(what: str) -> Refusal:
    return Refusal(Reason.REQUEST, what)
