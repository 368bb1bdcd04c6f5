"""A party's classifiers on disjoint units, and their votes on public texts (PATE: Papernot et al. 2017, section 2).

A classifier depends only on its own units and on public values: its start, the plan's seed, the texts that are asked.
So adding or removing one unit changes one classifier, and with it one vote per text.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn

from aggregation.arrays import IntArray
from aggregation.mechanisms.joint import JointMechanism, TeacherSignal
from learning.classification.training import Fit, fit, fit_head, predict, predict_head
from learning.errors import Diverged
from learning.models.adapting import ADAPTERS, Lora, adapt, flatten, unflatten
from learning.models.agreement import made_up_rows
from learning.models.batching import TOKENS, Tokens
from learning.models.compute import device_of, on_device
from learning.models.encoders import classifier, longest, tokens_of
from learning.models.features import features, head_alone, tokens_held
from learning.text.labelled import LabelMap, ScoreRange, TextColumns
from party.admission.labels import columns_of, targets_of
from party.errors import TrainingError
from party.shard.labelled import LabelledUnits, labelled_units, tell_if_few
from party.shard.memory import Memory
from party.shard.plain import take_census
from party.shard.public_texts import public_texts
from party.shard.reading import Reading
from party.shard.units import slot
from party.shard_table import ShardTable
from party.tasks.ensemble.request import EnsembleWork
from party.tasks.job import Job, Private
from party.tasks.ray_tasks import gathered
from party.tasks.text.ensembles import examples_of, settings_of
from party.tasks.text.model import labelled_in, placed, public_rows
from party.tasks.text.request import TextModel
from party.tasks.text.trials import try_model, try_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

log = logging.getLogger("conclave.party")


def prepare(job: Job, work: EnsembleWork, mechanism: JointMechanism, kept: Memory | None) -> Private:
    """Check everything except the party's units: the provided model, and the texts that are asked.

    Raises `ConclaveError` where these cannot be used, the labels are scores, or the mechanism is for other answers.
    """
    shard = job.reading.shard

    def trial() -> None:
        with placed(work.model, job.memory):
            _try(work, shard, mechanism)

    if kept is None:
        trial()
    else:
        all_parties = shard.model_copy(update={"part": None}).model_dump_json()
        kept.once("trials", (all_parties, repr(work.model), work.texts, mechanism.classes), trial)
    return lambda job, progress: vote(job, work, mechanism, progress, kept)


def _try(work: EnsembleWork, shard: ShardTable, mechanism: JointMechanism) -> None:
    columns, targets = _labelled(work, shard)
    if mechanism.hidden is not None or mechanism.classes != len(targets.names):
        raise TrainingError(
            f"an ensemble votes for one of {len(targets.names):,} classes, and the release takes "
            f"{mechanism.classes:,} classes{' and hidden states' if mechanism.hidden is not None else ''}."
        )
    pairs = columns.second is not None
    public_texts(Path(work.texts), pairs=pairs)
    start, tokenizer = _started(work.model, targets)
    most = longest(start, work.model.longest)
    rows = try_tokenizer(tokenizer, tokens_of(start), most, documents=False, pairs=pairs)
    try_model(start, rows, len(targets.names), head=head_alone(start), apart=False)
    if (
        device_of(start).type != "cpu"
    ):  # after this no text alone exhausts its memory, which all classifiers would notice
        (one,) = made_up_rows(tokens_of(start), most, 0)
        learner = Learner.of(start, [one], settings_of(work.descent), tokens_held(start, most))
        with suppress(Diverged):
            learner.votes([one], np.zeros(1, np.int64), np.random.default_rng(0))


def vote(
    job: Job,
    work: EnsembleWork,
    mechanism: JointMechanism,
    progress: Callable[[int], None],
    memory: Memory | None = None,
) -> sparse.csr_array:
    """Train this party's classifiers, let them vote, and bound the votes: int64 `[queries, classes]`, summed over
    classifiers.

    Adding or removing one unit changes one vote per query: see `aggregation.mechanisms.votes.VotesMechanism`. Memory:
    the shard's tokens (`party.shard.labelled.TokenRows`), the model with its gradients, and, where only the last layer
    is trained, one classifier's features and those of the queries. Raises `ConclaveError` where the shard or its labels
    cannot be used.
    """
    if memory is not None:
        of = (job.reading.whose, repr(work))
        voted = memory.once("votes", of, lambda: some_answers(job, work, range(work.teachers), progress))
        return mechanism.contribute(voted)
    columns, _ = _labelled(work, job.reading.shard)
    census = partial(take_census, job.reading, columns=columns)
    return mechanism.contribute(gathered(job, work.teachers, progress, partial(some_answers, job, work), census))


def some_answers(job: Job, work: EnsembleWork, numbers: range, progress: Callable[[int], None]) -> TeacherSignal:
    """The votes of the classifiers with these numbers, unbounded and in clear. Raises as `vote`."""
    columns, targets = _labelled(work, job.reading.shard)
    return TeacherSignal(answers(job.reading, work, columns, targets, progress, numbers), None)


def _labelled(work: EnsembleWork, shard: ShardTable) -> tuple[TextColumns, LabelMap]:
    labelled = labelled_in(work.labelled)
    return columns_of(labelled, shard), classes_of(targets_of(labelled, shard))


def classes_of(targets: LabelMap | ScoreRange) -> LabelMap:
    """The classes that classifiers can vote for. Raises `TrainingError` for a range of scores."""
    if isinstance(targets, ScoreRange):
        raise TrainingError(
            "votes are of classes, and the plan's labels are scores. Use a system that learns scores, or plan classes."
        )
    return targets


def answers(
    reading: Reading,
    work: EnsembleWork,
    columns: TextColumns,
    targets: LabelMap,
    progress: Callable[[int], None],
    numbers: range | None = None,
) -> IntArray:
    """Votes, unbounded and in clear: int64 [teachers, queries], positions in the label map. They must not leave the
    party like this.

    numbers: of the classifiers that vote; by default all.

    A classifier without a unit votes as the public start does. So does one whose training diverges; only the party's
    log says so, because a failure would reveal something of its units.
    """
    start, tokenizer = _started(work.model, targets)
    most = longest(start, work.model.longest)
    queries = public_rows(Path(work.texts), tokenizer, pairs=columns.second is not None, longest=most)
    read = _read(reading, work, columns, targets, tokenizer, most, tokens_of(start))
    labels = read.labels.astype(np.int64, copy=False)
    tokens = TOKENS if device_of(start).type == "cpu" else tokens_held(start, most)
    learner = Learner.of(start, queries, settings_of(work.descent), tokens)
    numbers = range(work.teachers) if numbers is None else numbers
    votes = np.empty((len(numbers), len(queries)), np.int64)
    assert read.slots is not None
    diverged = 0
    for number, places in enumerate(examples_of(read.slots, read.members, work.teachers)):
        if number not in numbers:
            continue
        own = [read.rows[place] for place in places.tolist()]
        rng = np.random.default_rng([work.model.seed, number])
        try:
            votes[number - numbers.start] = learner.votes(own, labels[places], rng)
        except Diverged:
            diverged += 1
            votes[number - numbers.start] = learner.votes([], labels[:0], rng)
        progress(min(99, 100 * (number + 1 - numbers.start) // len(numbers)))
    if diverged:
        log.warning(
            "%s of %s classifiers went to infinity and vote as their public start does. Plan with a smaller learning "
            "rate.",
            f"{diverged:,}",
            f"{len(numbers):,}",
        )
    return votes


def _started(text: TextModel, targets: LabelMap) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase]":
    """The model that every classifier starts from, and its tokenizer."""
    start, tokenizer = classifier(text.folder, targets, seed=text.seed)
    adapt(start, text.adapt, seed=text.seed, lora=Lora(text.rank, text.alpha) if text.adapt in ADAPTERS else None)
    return on_device(start), tokenizer


@dataclass(frozen=True, slots=True)
class Learner:
    """Trains one classifier after another, each from the same start.

    trained: the part of the model that is trained, possibly only its last layer; start: its start parameters. train:
    trains it on examples, in place; say: its logits [queries, classes].
    """

    trained: nn.Module
    start: Tensor
    train: Callable[[list[Tokens], NDArray[np.int64], np.random.Generator], None]
    say: Callable[[], NDArray[np.float32]]

    @classmethod
    def of(cls, model: "PreTrainedModel", queries: list[Tokens], settings: Fit, tokens: int) -> "Learner":
        """A learner for a model. Where only the last layer is trained, the encoder processes each text once; otherwise
        in every pass.

        tokens: in one pass of the encoder alone. Examples of two classifiers are never in one batch, because a batch's
        content affects rounding.
        """
        head = head_alone(model)
        if head is None:

            def train(own: list[Tokens], labels: NDArray[np.int64], rng: np.random.Generator) -> None:
                fit(model, own, labels, settings, rng)

            return cls(model, flatten(model), train, partial(predict, model, queries))
        asked = features(model, queries, tokens)

        def train_head(own: list[Tokens], labels: NDArray[np.int64], rng: np.random.Generator) -> None:
            fit_head(head, features(model, own, tokens), labels, settings, rng)

        return cls(head, flatten(head), train_head, partial(predict_head, head, asked))

    def votes(self, own: list[Tokens], labels: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
        """The classes [queries] that a classifier trained on these examples names, or the start's without examples.

        Raises `learning.errors.Diverged`.
        """
        unflatten(self.trained, self.start)
        if own:
            self.train(own, labels, rng)
        return np.asarray(self.say().argmax(axis=1))


def _read(
    reading: Reading,
    work: EnsembleWork,
    columns: TextColumns,
    targets: LabelMap,
    tokenizer: "PreTrainedTokenizerBase",
    most: int,
    known: int,
) -> LabelledUnits:
    key = bytes.fromhex(work.key)
    with reading.counted() as census:
        read = labelled_units(
            reading.shard,
            columns,
            targets,
            tokenizer,
            longest=most,
            known=known,
            by_user=reading.by_user,
            cache=reading.cache,
            frank=reading.frank,
            census=census,
            slot_of=lambda unit: slot(key, unit, work.teachers),
        )
    if (declared := reading.declared_size) is not None:
        tell_if_few(len(read), needed=declared, why="[policy] declared_size")
    return read
