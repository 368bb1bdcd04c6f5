"""A party's language models on disjoint units, and how far what they say of public tokens is from the public model.

A teacher depends only on its own units and on public values: its start, the plan's seed, the texts that are asked. So
adding or removing one unit changes one teacher, and with it one vector of every token.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from aggregation.errors import IntegrityError
from aggregation.mechanisms.joint import JointMechanism, TeacherSignal
from aggregation.mechanisms.said import FreeTargets
from learning.classification.training import fit
from learning.errors import Diverged
from learning.language.differences import Outcomes, differences
from learning.language.generation import Texts
from learning.language.speaker import Speaker
from learning.models.adapting import ADAPTERS, Lora, adapt, flatten, unflatten
from learning.models.compute import on_device
from learning.models.encoders import language_model, longest, tokens_of
from party.errors import TrainingError
from party.provided.written import Written, written
from party.shard.labelled import tell_if_few
from party.shard.memory import Memory
from party.shard.plain import PlainUnits
from party.shard.units import slot
from party.tasks.job import Job, Private
from party.tasks.language_teachers.request import LanguageTeachersWork
from party.tasks.text.documents import documents
from party.tasks.text.ensembles import examples_of, settings_of
from party.tasks.text.model import placed
from party.tasks.text.request import TextModel
from party.tasks.text.trials import try_model, try_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger("conclave.party")


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is asked, all of it public: the texts, what stands before each, and the public model's outcomes."""

    texts: Texts
    before: list[list[int]]
    outcomes: Outcomes


def prepare(job: Job, work: LanguageTeachersWork, mechanism: JointMechanism, kept: Memory | None) -> Private:
    """Check everything except the party's units: the provided model, the texts and the public model's outcomes.

    Raises `ConclaveError` where these cannot be used.
    """
    with placed(work.model, job.memory):
        start, tokenizer = _started(work.model)
        asked = _asked(mechanism, work, start)
        most = longest(start, work.model.longest)
        rows = try_tokenizer(tokenizer, tokens_of(start), most, documents=True, pairs=False)
        try_model(start, rows, None, apart=False)

    def finish(job: Job, progress: Callable[[int], None]) -> sparse.csr_array:
        return say(job, work, mechanism, asked, start, tokenizer, progress, kept)

    return finish


def say(
    job: Job,
    work: LanguageTeachersWork,
    mechanism: JointMechanism,
    asked: _Asked,
    start: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    progress: Callable[[int], None],
    memory: Memory | None = None,
) -> sparse.csr_array:
    """Train this party's teachers, let them say what might stand in every token's place, and bound what they say:
    int64 [tokens, cells], summed over teachers.

    Adding or removing one unit changes one vector a token: see `aggregation.mechanisms.hidden.HiddenMechanism`. Memory:
    the shard's tokens (`party.shard.labelled.TokenRows`), the model with its gradients, and all vectors in float32
    [teachers, tokens, cells]. Raises `ConclaveError` where the shard cannot be used.
    """

    def make() -> NDArray[np.float32]:
        return answers(job, work, asked, start, tokenizer, progress)

    states: Any = make() if memory is None else memory.once("answers", (job.reading.whose, repr(work)), make)
    return sparse.csr_array(mechanism.contribute(TeacherSignal(None, states[:, :, None, :])))


def answers(
    job: Job,
    work: LanguageTeachersWork,
    asked: _Asked,
    start: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    progress: Callable[[int], None],
) -> NDArray[np.float32]:
    """How far each teacher's probabilities are from the public model's, unbounded and in clear: float32 [teachers,
    tokens, cells]. They must not leave the party like this.

    A teacher without a unit says what the public model says. So does one whose training diverges; only the party's log
    says so, because a failure would reveal something of its units.
    """
    key = bytes.fromhex(work.slot_key)
    read = documents(
        job.reading,
        tokenizer,
        "",
        longest=longest(start, work.model.longest),
        known=tokens_of(start),
        slot_of=lambda unit: slot(key, unit, work.teachers),
    )
    if (declared := job.reading.declared_size) is not None:
        tell_if_few(len(read), needed=declared, why="[policy] declared_size")
    first, found, diverged = flatten(start), np.zeros((work.teachers, *asked.outcomes.shape), np.float32), 0
    assert read.slots is not None
    for number, places in enumerate(examples_of(read.slots, read.members, work.teachers)):
        if len(places):
            try:
                found[number] = _taught(start, first, read, places, work, number, asked)
            except Diverged:
                diverged += 1
        progress(min(99, 100 * (number + 1) // work.teachers))
    if diverged:
        log.warning(
            "%s of %s language models went to infinity and say what their public start does. Plan with a smaller "
            "learning rate.",
            f"{diverged:,}",
            f"{work.teachers:,}",
        )
    return found


def _taught(
    start: "PreTrainedModel",
    first: Tensor,
    read: PlainUnits,
    places: NDArray[np.int64],
    work: LanguageTeachersWork,
    number: int,
    asked: _Asked,
) -> NDArray[np.float32]:
    """What one teacher says, [tokens, cells]. Raises `Diverged`."""
    unflatten(start, first)
    rng = np.random.default_rng([work.model.seed, number])
    fit(start, [read.rows[int(place)] for place in places], None, settings_of(work.descent), rng)
    said = differences(Speaker(start), asked.texts, asked.before, asked.outcomes)
    if not np.isfinite(said).all():
        raise Diverged("What the teacher says is not finite.")
    return said


def _started(text: TextModel) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """The model that every teacher starts from, and its tokenizer."""
    start, tokenizer = language_model(text.folder)
    adapt(start, text.adapt, seed=text.seed, lora=Lora(text.rank, text.alpha) if text.adapt in ADAPTERS else None)
    return on_device(start), tokenizer


def _asked(mechanism: JointMechanism, work: LanguageTeachersWork, start: "PreTrainedModel") -> _Asked:
    """The texts that are asked. Raises `TrainingError` for texts that the model cannot read, and for outcomes that no
    token of it has.
    """
    assert mechanism.hidden is not None
    given: Written = written(Path(work.written), texts=True)
    tokens, top = tokens_of(start), mechanism.hidden.width - 1
    if given.largest >= tokens:
        raise TrainingError(f"the model has {tokens:,} tokens, and the texts hold number {given.largest:,}.")
    if max(map(len, given.texts)) + given.longest_opening > longest(start, work.model.longest):
        raise TrainingError("the model that was provided reads no texts of this length. Provide another model.")
    if top > tokens:
        raise TrainingError(f"the best {top:,} of {tokens:,} tokens make no sense. Plan with fewer.")
    kind = FreeTargets("public", top, tokens)
    rows = np.fromfile(work.outcomes, "<i4").astype(np.int64)
    if rows.size != given.tokens * kind.columns:
        raise TrainingError(
            f"the outcomes that were provided are {rows.size:,} numbers, and {given.tokens:,} tokens have "
            f"{given.tokens * kind.columns:,}."
        )
    try:
        ids, codes = kind.targets(rows.reshape(given.tokens, kind.columns))
    except IntegrityError as error:
        raise TrainingError(f"the outcomes that were provided cannot be used: {error}") from None
    texts = Texts.joined([np.array(each, np.int32) for each in given.texts], 0)
    return _Asked(texts, given.before, Outcomes(ids, codes))
