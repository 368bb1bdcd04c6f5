"""The request for word teachers: what they learn, and their queries."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Final, Literal, NamedTuple, Self

from safetensors import SafetensorError, safe_open

from party.tasks.task import Given, Work, wrong
from party.tasks.words.request import check_words, size_of
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.refusal import Reason, Refusal

MOST_TEACHERS: Final = 1000

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
class TeachersWork(Work):
    """A checked `party_pb2.TeachersTask`, with its secrets.

    slot_key: assigns units to teachers. training_key: the noise key of DP-SGD, and its release; empty without DP-SGD.
    """

    kind: ClassVar[str] = "teachers"

    vocabulary: str
    window: int
    teachers: int
    reference: str
    alignment: Literal["initialisation", "procrustes"]
    queries: list[int]
    classes: list[int]
    layers: list[Literal["centre", "context"]]
    vote: Literal["probable", "lift"]
    seed: int
    slot_key: str
    training: str
    training_key: str
    expected_batch: float
    learning_rate: float

    def paid_with(self, key: str) -> Self:
        """The work with the noise key of DP-SGD, where teachers are trained by it."""
        return replace(self, training_key=key) if self.training else self


WORK: Final = TeachersWork


class _Bounds(NamedTuple):
    """What a release bounds in teachers' answers: classes of votes, layers and width of hidden states; 0 for none."""

    classes: int
    layers: int
    width: int


def checked(task: party_pb2.TeachersTask, given: Given) -> TeachersWork:
    """Check the request. Raises `Refusal`: ARTEFACT for what never came, REQUEST for invalid values or a missing
    charge.
    """
    vocabulary = check_words(TeachersWork.kind, ("joint", "thresholded", "free"), task, given)
    release, run = given.release, given.run
    reference = given.provided("reference", task.reference_sha256)
    if not 1 <= task.teachers <= MOST_TEACHERS:
        raise wrong(f"{task.teachers} teachers make no sense; use 1 to {MOST_TEACHERS}.")
    _check_asked(task, release)
    try:
        alignment, vote = _ALIGNMENTS[task.alignment], _VOTES[task.vote]
        layers = [_LAYERS[layer] for layer in task.layers]
    except KeyError:
        raise wrong("an alignment, a layer or a kind of vote is one that this party does not know.") from None
    paid = run.release(release.free.after) if release.HasField("free") else None
    if paid is not None and not (0 < task.expected_batch < math.inf and 0 < task.learning_rate < math.inf):
        raise wrong("private training needs an expected batch and a learning rate, finite and above 0.")
    return TeachersWork(
        vocabulary=vocabulary,
        window=task.window,
        teachers=task.teachers,
        reference=str(reference),
        alignment=alignment,
        queries=list(task.queries),
        classes=list(task.classes),
        layers=layers,
        vote=vote,
        seed=run.terms.seed,
        slot_key=given.slot_key,
        training="" if paid is None else paid.SerializeToString().hex(),
        training_key="",
        expected_batch=task.expected_batch,
        learning_rate=task.learning_rate,
    )


def fits(work: TeachersWork, release: plan_pb2.Release, memory: int) -> None:
    """Raises `Refusal`: ARTEFACT for an invalid vocabulary or reference, REQUEST for a word not in the vocabulary.

    A reference of other words or another width than the terms say is refused as ARTEFACT too.
    """
    size = size_of(work.vocabulary)
    for name, words in (("query", work.queries), ("class", work.classes)):
        if words and max(words) >= size:
            raise wrong(f"a {name} is word {max(words):,}, and the vocabulary has {size:,} words, counted from 0.")
    known, width = _shape(Path(work.reference))
    if known != size:
        raise Refusal(
            Reason.ARTEFACT,
            f"the reference that was provided knows {known:,} words, the vocabulary has {size:,}.",
        )
    bounded = _bounds(release).width
    if bounded not in (0, width):
        raise Refusal(
            Reason.ARTEFACT,
            f"the reference that was provided has {width} dimensions, and the plan's terms bound hidden states of "
            f"{bounded}.",
        )
    paid = paid_before(work)
    parameters = size * (2 * width + 1)
    if paid is not None and paid.gradients.parameters != parameters:
        raise Refusal(
            Reason.ARTEFACT,
            f"the reference that was provided has {parameters:,} parameters, and the plan's terms pay for a training "
            f"of {paid.gradients.parameters:,}.",
        )


def paid_before(work: TeachersWork) -> plan_pb2.Release | None:
    """The release of DP-SGD, where teachers are trained by it."""
    return plan_pb2.Release.FromString(bytes.fromhex(work.training)) if work.training else None


def _check_asked(task: party_pb2.TeachersTask, release: plan_pb2.Release) -> None:
    """Check that queries, classes and layers are as many as the mechanism was priced for, and all distinct."""
    bounds = _bounds(release)
    if release.HasField("joint") and len(task.queries) > release.charges:
        raise wrong(f"{len(task.queries)} queries are asked, and release {release.name} is paid for {release.charges}.")
    for name, listed in (("query", task.queries), ("class", task.classes), ("layer", task.layers)):
        if len(set(listed)) != len(listed):
            raise wrong(f"a {name} is listed twice; an answer is given once a word.")
    if not task.queries:
        raise wrong("no query is listed.")
    if bounds.classes and len(task.classes) != bounds.classes:
        raise wrong(
            f"{len(task.classes)} classes are listed, and release {release.name} bounds votes over {bounds.classes}."
        )
    if bounds.layers and len(task.layers) != bounds.layers:
        raise wrong(f"{len(task.layers)} layers are listed, and release {release.name} bounds {bounds.layers}.")


def _shape(reference: Path) -> tuple[int, int]:
    """Words and dimensions of a skip-gram on disk. Its values are read where torch is. Raises `Refusal` (ARTEFACT)."""
    try:
        with safe_open(reference, framework="numpy") as file:
            shape = file.get_slice("inputs").get_shape()
    except SafetensorError:
        shape = []
    if len(shape) != 2:
        raise Refusal(Reason.ARTEFACT, "the reference that was provided is no skip-gram in the safetensors format.")
    return shape[0], shape[1]


def _bounds(release: plan_pb2.Release) -> _Bounds:
    match release.WhichOneof("mechanism"):
        case "joint":
            votes, hidden = release.joint.votes, release.joint.hidden  # a mechanism that is absent has 0 of everything
            return _Bounds(votes.classes, hidden.layers, hidden.width)
        case "free":
            free = release.free
            return _Bounds(free.classes, free.layers, free.width if free.layers else 0)
    return _Bounds(release.thresholded.classes, 0, 0)
