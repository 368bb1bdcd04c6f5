"""A party's language models on disjoint units, and what they say of tokens that are asked.

A teacher depends only on its own units and on public values: its start, the plan's seed, the texts that are asked. So
adding or removing one unit changes one teacher. What teachers say leaves as differences from the public model, one
vector of every token and teacher, clipped and summed under noise; or, of one teacher, as softened outcomes, for which
no proof exists.
"""

import hashlib
import logging
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from aggregation.errors import IntegrityError
from aggregation.mechanisms.said import FreeTargets, SoftenedTargets
from aggregation.mechanisms.vectors import DifferencesMechanism
from aggregation.noise.stream import NoiseStream
from learning.classification.training import fit
from learning.errors import Diverged
from learning.language.generation import Texts
from learning.language.speaker import Speaker
from learning.models.adapting import ADAPTERS, Lora, adapt, flatten, unflatten
from learning.models.agreement import made_up_rows
from learning.models.batching import Tokens
from learning.models.compute import device_of, on_device
from learning.models.encoders import language_model, longest, speaking_model, tokens_of
from learning.models.pairs import PairForm
from learning.swing.answers import cells_kept, differences_of_texts
from learning.swing.differences import Cells
from party.errors import TrainingError
from party.provided.written import Written, written
from party.shard.labelled import tell_if_few
from party.shard.memory import Memory
from party.shard.plain import PlainUnits
from party.shard.units import slot
from party.tasks.job import Job, Private
from party.tasks.language_teachers.request import LanguageTeachersWork
from party.tasks.language_teachers.softening import Softening, softening_of
from party.tasks.result import Sum, wrapped
from party.tasks.text.documents import answered, documents
from party.tasks.text.ensembles import examples_of, settings_of
from party.tasks.text.model import placed
from party.tasks.text.request import Paired, TextModel
from party.tasks.text.trials import try_model, try_pairs, try_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger("conclave.party")

FOLDER: Final = ".saying"


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked, all of it public: the model, its tokenizer, the texts, and what stands before each.

    cells: the public model's outcomes, from which differences are taken; None where softened outcomes are asked.
    softening: how these are softened; None for differences.
    """

    start: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    texts: Texts
    before: list[list[int]]
    cells: Cells | None
    softening: Softening | None


def prepare(
    job: Job, work: LanguageTeachersWork, mechanism: DifferencesMechanism | SoftenedTargets, kept: Memory | None
) -> Private:
    """Check everything except the party's units: the provided model, the texts and what belongs to them.

    Raises `ConclaveError` where these cannot be used.
    """
    with placed(work.model, job.memory):
        start, tokenizer = _started(work.model, paired=work.pairs is not None)
        most = longest(start, work.model.longest)
        rows = try_tokenizer(tokenizer, tokens_of(start), most, documents=True, pairs=False)
        if work.pairs is not None:
            rows = try_pairs(tokenizer, tokens_of(start), _form(work, work.pairs, start))
        try_model(start, rows, None, apart=False)
        asked = _asked(mechanism, work, start, tokenizer)
        if device_of(start).type != "cpu":
            made_up = made_up_rows(tokens_of(start), most, 0) if work.pairs is None else [max(rows, key=len)]
            _try_longest(start, made_up, work)
    if isinstance(mechanism, SoftenedTargets):
        return lambda job, progress: soften(job, mechanism, asked, progress, kept)
    return lambda job, progress: differ(job, mechanism, asked, progress, kept)


def differ(
    job: Job,
    mechanism: DifferencesMechanism,
    asked: Asked,
    progress: Callable[[int], None],
    memory: Memory | None = None,
) -> Sum:
    """Train this party's teachers, and bound how far they are from the public model at every token: int64 [tokens,
    cells], summed over teachers.

    Adding or removing one unit changes one vector a token: see `learning.swing.differences`. A teacher without a unit
    says what the public model says. So does one whose training diverges; only the party's log says so, because a
    failure would reveal something of its units. Memory: the shard's tokens (`party.shard.labelled.TokenRows`), the
    model with its gradients, and all vectors [teachers, tokens, cells]. Raises `ConclaveError` where the shard cannot
    be used.
    """
    assert asked.cells is not None
    cells, plain = asked.cells, np.ones(len(asked.texts.ids))
    all_of = _teachers(job, asked)

    def say(number: int) -> NDArray[np.float64] | None:
        taught = all_of.taught(number)
        if taught is None:
            return None
        unflatten(asked.start, taught)
        return differences_of_texts(Speaker(asked.start), asked.texts, asked.before, plain, cells)

    kept = Memory() if memory is None else memory
    of = [all_of.depends(number, "written", "outcomes") for number in range(len(all_of.places))]
    found = kept.each("said", of, say, partial(_told, progress))
    all_of.tell_if_diverged(found)
    said = np.zeros((len(found), *cells.public.shape))
    for own, each in zip(said, found, strict=True):
        if each is not None:
            own[...] = each
    return mechanism.contribute(said)


def soften(
    job: Job,
    mechanism: SoftenedTargets,
    asked: Asked,
    progress: Callable[[int], None],
    memory: Memory | None = None,
) -> NDArray[np.int32]:
    """Train this party's one teacher, and soften what it says of every token: int32 [tokens, columns]. It is a
    heuristic: see `SoftenedTargets`.

    A text that is asked twice gets one answer, so that asking again averages no noise away. A party whose training
    diverges, or that has no unit, answers as the public model does. Memory: as of `differ`, and as of
    `learning.language.soft_targets.graded`. Raises `ConclaveError` where the shard cannot be used.
    """
    assert asked.softening is not None
    work = _work(job)

    kept, whole = Memory() if memory is None else memory, _teachers(job, asked)
    # The teacher is the same whatever is softened, and with whichever key.
    (taught,) = kept.each("taught", [whole.depends(0)], whole.taught, partial(_told, progress))
    whole.tell_if_diverged([taught])
    unflatten(asked.start, asked.softening.first if taught is None else taught)
    folder = Path(job.result).with_suffix(FOLDER)
    stream = NoiseStream.from_key(bytes.fromhex(work.key))
    targets = asked.softening.said(Speaker(asked.start), asked.texts, asked.before, stream, folder)
    made = wrapped(mechanism.contribute((targets.ids, targets.codes)))
    del targets
    shutil.rmtree(folder, ignore_errors=True)
    return made


@dataclass(frozen=True, slots=True)
class _Teachers:
    """A party's teachers before they are trained. places: of each the positions of its examples, in reading order."""

    work: LanguageTeachersWork
    start: "PreTrainedModel"
    first: Tensor
    read: PlainUnits
    places: tuple[NDArray[np.int64], ...]

    def taught(self, number: int) -> Tensor | None:
        """What one teacher learned; None where it learned nothing that can be used."""
        if not len(self.places[number]):
            return None
        with suppress(Diverged):
            return _taught(self.start, self.first, self.read, self.places[number], self.work, number)
        return None

    def depends(self, number: int, *files: str) -> tuple[str, bytes]:
        """What a teacher depends on: public values, its number and its own examples. files: on which of its work's
        files what is made of it depends, too. Files and folders are named by what they hold.
        """
        work, own = self.work, hashlib.sha256()
        for place in self.places[number]:
            row = self.read.rows[int(place)]
            own.update(b"%d %d " % (len(row), row.second))
            own.update(row.ids.tobytes())
        model = replace(work.model, files={}, folder=Path(work.model.folder).name)
        asked, outcomes = (Path(getattr(work, name)).name if name in files else "" for name in ("written", "outcomes"))
        public = replace(work, model=model, slot_key="", clues="", key="", written=asked, outcomes=outcomes)
        return f"{number} of {public!r}", own.digest()

    def tell_if_diverged(self, found: Sequence[object | None]) -> None:
        """Say in the party's log how many learned nothing from examples that they have. found: of every teacher."""
        diverged = sum(len(own) > 0 and each is None for own, each in zip(self.places, found, strict=True))
        if diverged:
            log.warning(
                "%s of %s language models went to infinity and say what their public start does. Plan with a smaller "
                "learning rate.",
                f"{diverged:,}",
                f"{len(self.places):,}",
            )


def _teachers(job: Job, asked: Asked) -> _Teachers:
    """The teachers of this party's units. Raises `ConclaveError` where the shard cannot be used."""
    work = _work(job)
    key = bytes.fromhex(work.slot_key)
    read = _read(job, work, asked, lambda unit: slot(key, unit, work.teachers))
    if (declared := job.reading.declared_size) is not None:
        tell_if_few(len(read), needed=declared, why="[policy] declared_size")
    assert read.slots is not None
    places = tuple(examples_of(read.slots, read.members, work.teachers))
    return _Teachers(work, asked.start, flatten(asked.start).clone(), read, places)


def _told(progress: Callable[[int], None], done: int, total: int) -> None:
    """total: all teachers, also those without a unit: how many these are is nobody's to see."""
    progress(min(99, 100 * done // total))


def _read(job: Job, work: LanguageTeachersWork, asked: Asked, slot_of: Callable[[str], int]) -> PlainUnits:
    """This party's units: single texts, or pairs of which a teacher learns the answers."""
    start, tokenizer, known = asked.start, asked.tokenizer, tokens_of(asked.start)
    if work.pairs is not None:
        form = _form(work, work.pairs, start)
        return answered(job.reading, tokenizer, work.pairs.second, form, known=known, slot_of=slot_of)
    most = longest(start, work.model.longest)
    return documents(job.reading, tokenizer, "", longest=most, known=known, slot_of=slot_of)


def _form(work: LanguageTeachersWork, pairs: Paired, start: "PreTrainedModel") -> PairForm:
    """How this model reads the plan's pairs."""
    return PairForm(pairs.separator, longest(start, work.model.longest), pairs.answer, False).of(start.config)


def _taught(
    start: "PreTrainedModel",
    first: Tensor,
    read: PlainUnits,
    places: NDArray[np.int64],
    work: LanguageTeachersWork,
    number: int,
) -> Tensor:
    """What one teacher learns, from the public start. Raises `Diverged`."""
    unflatten(start, first)
    rng = np.random.default_rng([work.model.seed, number])
    fit(start, [read.rows[int(place)] for place in places], None, settings_of(work.descent), rng)
    taught = flatten(start).clone()
    if not bool(taught.isfinite().all()):
        raise Diverged("What the teacher learned is not finite.")
    return taught


def _try_longest(start: "PreTrainedModel", made_up: list[Tokens], work: LanguageTeachersWork) -> None:
    """Train on one made-up example of the longest kind, and take back what was learned: after this no text alone
    exhausts the device's memory, which all of a party's teachers would notice. Raises `ComputeError` where this one
    does.
    """
    public = flatten(start).clone()
    once = replace(settings_of(work.descent), epochs=1)
    with suppress(Diverged):
        fit(start, made_up, None, once, np.random.default_rng(0))
    start.zero_grad(set_to_none=True)
    unflatten(start, public)


def _started(text: TextModel, *, paired: bool) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """The model that every teacher starts from, and its tokenizer. Of pairs an encoder may read the inputs."""
    start, tokenizer = (speaking_model if paired else language_model)(text.folder)
    adapt(start, text.adapt, seed=text.seed, lora=Lora(text.rank, text.alpha) if text.adapt in ADAPTERS else None)
    return on_device(start), tokenizer


def _asked(
    mechanism: DifferencesMechanism | SoftenedTargets,
    work: LanguageTeachersWork,
    start: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
) -> Asked:
    """What is asked. Raises `TrainingError` for texts that the model cannot read, and for outcomes that no token of it
    has.
    """
    given: Written = written(Path(work.written), texts=True)
    tokens = tokens_of(start)
    if given.largest >= tokens:
        raise TrainingError(f"the model has {tokens:,} tokens, and the texts hold number {given.largest:,}.")
    if max(map(len, given.texts)) + given.longest_opening > longest(start, work.model.longest):
        raise TrainingError("the model that was provided reads no texts of this length. Provide another model.")
    texts = Texts.joined([np.array(each, np.int32) for each in given.texts], 0)
    if isinstance(mechanism, SoftenedTargets):
        clues = Path(work.clues) if work.clues else None
        softening = softening_of(mechanism, clues, texts, tokenizer, tokens, flatten(start).clone())
        return Asked(start, tokenizer, texts, given.before, None, softening)
    cells = _cells(Path(work.outcomes), mechanism.outcomes - 1, tokens, given.tokens)
    return Asked(start, tokenizer, texts, given.before, cells, None)


def _cells(path: Path, top: int, tokens: int, asked: int) -> Cells:
    if top >= tokens:
        raise TrainingError(f"the best {top:,} of {tokens:,} tokens leave no other. Plan with fewer.")
    kind = FreeTargets("public", top, tokens)
    rows = np.fromfile(path, "<i4").astype(np.int64)
    if rows.size != asked * kind.columns:
        raise TrainingError(
            f"the outcomes that were provided are {rows.size:,} numbers, and {asked:,} tokens have "
            f"{asked * kind.columns:,}."
        )
    try:
        return cells_kept(*kind.targets(rows.reshape(asked, kind.columns)))
    except IntegrityError as error:
        raise TrainingError(f"the outcomes that were provided cannot be used: {error}") from None


def _work(job: Job) -> LanguageTeachersWork:
    work: Any = job.work
    assert isinstance(work, LanguageTeachersWork)
    return work
