"""A provided text model as a party trains it: its files put together, its units read, ready for gradients."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aggregation.mechanisms.gradients import GradientMechanism
from learning.models.adapting import ADAPTERS, Lora, adapt, unflatten
from learning.models.agreement import rounded
from learning.models.batching import Tokens, encode, form_of, losses
from learning.models.checkpoints import ModelError
from learning.models.compute import device_of, on_device
from learning.models.encoders import classifier, language_model, longest, tokens_of
from learning.models.features import features_apart, head_alone, tokens_held
from learning.private_training import clipped_sum
from learning.private_training.feature_units import FeatureUnits, head_losses
from learning.private_training.per_example import PerExample, check_apart
from learning.private_training.text_units import MOST_EXAMPLES, TextUnits, probe_of, shape_of, tokens_at_once
from learning.private_training.units import Losses, MicroBatch, Units
from learning.text.labelled import LabelMap, ScoreRange
from party.admission.labels import columns_of, targets_of
from party.errors import TrainingError
from party.provided.models import put_together, put_tokenizer_together
from party.shard.labelled import Members, labelled_units, tell_if_few
from party.shard.plain import PlainUnits, plain_units
from party.shard.public_texts import public_texts
from party.shard.reading import Reading
from party.shard_table import ShardTable
from party.tasks.text.documents import codes_in, documents, tilt_in
from party.tasks.text.request import Lesson, TextModel, TokenizerFiles
from party.tasks.text.trials import try_codes, try_model, try_tokenizer
from protos.conclave.v1 import plan_pb2

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DOMAINS: Final = LabelMap(("private", "public"))
"""Classes of a domain classifier, in order."""

Vectors = Callable[["PreTrainedModel", Sequence[Sequence[Tokens]], int], NDArray[np.float32]]
"""A function that returns the input vectors of a model's last layer for blocks of texts, [texts, width], in passes of
so many tokens.
"""
Documents = Callable[..., PlainUnits]
"""A function that reads a party's documents, as `party.tasks.text.documents.documents` does."""
Progress = Callable[[int], None]
"""A callback for whole percents that depend on public numbers only; how much of a shard was read is never reported."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A provided model with its tokenizer, tried on made-up text; nothing private has touched it.

    trained: the model, or its last layer where only that is trained, with parameters in the order of
    `learning.models.adapting`. gradients: computes the gradients of single units. public: the public texts that a
    domain classifier is trained against, as tokens; none for others. tokens: in one pass of this party's text, padding
    included: as many as the device holds, whatever the text is.
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    trained: nn.Module
    losses: Losses
    gradients: PerExample
    public: Sequence[Tokens]
    tokens: int

    @property
    def head_alone(self) -> bool:
        """Whether only the last layer is trained, on its input vectors."""
        return self.trained is not self.model


@dataclass(frozen=True, slots=True)
class _Read:
    """Tokenised units. rows: all examples. members: as in `TextUnits`. own: number of this party's units."""

    rows: Sequence[Tokens]
    labels: Tensor | None
    members: Sequence[Sequence[int]] | None
    own: int


@contextmanager
def placed(text: TextModel | TokenizerFiles, memory: int) -> Iterator[None]:
    """Put the checked model, or what it reads text by, into its folder. memory: MiB that it may take; 0 for any.

    Raises `TrainingError` for a file that is not accepted. The message of a `ModelError` from here does not name the
    folder.
    """
    if isinstance(text, TokenizerFiles):
        put_tokenizer_together(text.files, Path(text.folder))
    else:
        put_together(text.files, Path(text.folder), memory)
    try:
        yield
    except ModelError as error:
        raise ModelError(_unplaced(str(error), text.folder)) from error


def loaded(shard: ShardTable, text: TextModel, lesson: Lesson, *, by_user: bool = False) -> Loaded:
    """The provided model, adapted, put on the device of `learning.models.compute.running`, and tried there on made-up
    text; the shard plays no part.

    by_user: whether units have several examples. Memory: the model. Raises `ComputeError` for a device that does not
    hold one unit of the longest kind; `ModelError` for a model that cannot be loaded or adapted, or whose gradients
    cannot be computed per example; `TrainingError` for one that fails on made-up text, and for invalid public texts.
    """
    model, tokenizer, classes = _model(shard, text, lesson)
    adapt(model, text.adapt, seed=text.seed, lora=Lora(text.rank, text.alpha) if text.adapt in ADAPTERS else None)
    on_device(model)
    head = None if lesson.objective == "language" else head_alone(model)
    most = longest(model, text.longest)
    pairs = lesson.objective == "labels" and columns_of(labelled_in(lesson.labelled), shard).second is not None
    rows = try_tokenizer(tokenizer, tokens_of(model), most, documents=lesson.objective == "language", pairs=pairs)
    if (codes := codes_in(lesson.coded, shard)) is not None:
        try_codes(tokenizer, tokens_of(model), most, codes.texts)
    try_model(model, rows, classes, head=head)
    public: Sequence[Tokens] = ()
    if lesson.objective == "domain":
        public = public_rows(Path(lesson.texts), tokenizer, pairs=False, longest=most)
    if head is not None:
        return Loaded(model, tokenizer, head, head_losses, PerExample(head), public, tokens_held(model, most))
    gradients, probe = PerExample(model), probe_of(model.config, classes)
    _try(gradients, probe)
    tokens = tokens_at_once(kind := device_of(model).type)
    if kind != "cpu":
        tokens = clipped_sum.tokens_held(
            gradients,
            partial(shape_of, model.config, probe.labels),
            losses,
            longest=rounded(most, form_of(model.config).longest, kind),
            examples=MOST_EXAMPLES if by_user else 1,
            tokens=tokens,
        )
    return Loaded(model, tokenizer, model, losses, gradients, public, tokens)


def tilted(found: Loaded, lesson: Lesson) -> Loaded:
    """The same model, whose losses are those of its logits with the lesson's tilt, if it has one.

    Raises `TrainingError` for a tilt that does not fit the model.
    """
    if not lesson.tilt:
        return found
    tilt = tilt_in(lesson.tilt, tokens_of(found.model)).to(device_of(found.model))
    return replace(found, losses=partial(losses, tilt=tilt))


def public_rows(path: Path, tokenizer: "PreTrainedTokenizerBase", *, pairs: bool, longest: int) -> list[Tokens]:
    """The provided public texts, tokenised in order. Raises as `public_texts` does."""
    given = public_texts(path, pairs=pairs)
    first = [each[0] if pairs else each for each in given]
    second = [each[1] for each in given] if pairs else None
    return encode(tokenizer, first, second, longest=longest).rows


def vectors_of(
    model: "PreTrainedModel",
    blocks: Sequence[Sequence[Tokens]],
    tokens: int,
    agreeing: dict[int, tuple[int, ...]] | None = None,
) -> NDArray[np.float32]:
    """The input vectors of a model's last layer, [texts, width]; a vector's bits depend on its own text alone.

    agreeing: as `known` of `features_apart`, which says what is found out once for several parties; None for one.
    """
    rows = blocks[0] if len(blocks) == 1 else [row for block in blocks for row in block]
    return features_apart(model, rows, {} if agreeing is None else agreeing, tokens)


def units_of(
    reading: Reading,
    text: TextModel,
    lesson: Lesson,
    found: Loaded,
    vectors: Vectors = vectors_of,
    read_documents: Documents = documents,
) -> Units:
    """This party's units as the model takes them: as vectors of the encoder where only the last layer is trained.

    vectors: computes these; read_documents: reads those of a language model. There may be no unit, or none with an
    example. The census is on disk when this returns. Memory: the shard's tokens or, in their place, the vectors of all
    examples, 4 bytes a number. Raises what `party.shard.labelled` raises for the shard.
    """
    model, read = found.model, _read(reading, text, lesson, found, read_documents)
    if (declared := reading.declared_size) is not None:
        tell_if_few(read.own, needed=declared, why="[policy] declared_size")
    if not found.head_alone:
        return TextUnits(
            model.config,
            read.rows,
            read.labels,
            members=read.members,
            tokens_at_once=found.tokens,
            device=device_of(model).type,
        )
    assert read.labels is not None
    own = len(read.rows) - len(found.public)
    blocks = [read.rows[:own], found.public] if found.public else [read.rows]
    return FeatureUnits(vectors(model, blocks, found.tokens), read.labels, members=read.members)


def _try(gradients: PerExample, probe: MicroBatch) -> None:
    """Raises `ModelError` for a model whose gradients cannot be computed per example."""

    def loss(part: slice) -> Tensor:
        labels = None if probe.labels is None else probe.labels[part]
        return losses(gradients.model, {name: each[part] for name, each in probe.inputs.items()}, labels)

    check_apart(gradients, loss, probe.units)


def start_of(parameters: str, mechanism: GradientMechanism) -> Tensor:
    """The provided parameters, float32 [parameters], read before the shard is opened.

    Raises `TrainingError` where their number differs from the mechanism's, and for one that is not finite.
    """
    vector = np.fromfile(parameters, "<f4")
    if len(vector) != mechanism.parameters or Path(parameters).stat().st_size != 4 * mechanism.parameters:
        raise TrainingError(
            f"the parameters that were provided are {len(vector):,} numbers, and the plan's terms bound "
            f"{mechanism.parameters:,}."
        )
    if not np.isfinite(vector).all():
        raise TrainingError("the parameters that were provided hold NaN or infinity. Use a smaller learning rate.")
    return torch.from_numpy(vector.astype(np.float32, copy=False))


def begin(trained: nn.Module, count: int, start: Tensor) -> None:
    """Set the trained parameters to the provided ones, `start_of`.

    count: number of trainable parameters. Raises `TrainingError` where the provided ones are not as many.
    """
    if count != len(start):
        raise TrainingError(
            f"the model trains {count:,} numbers, and the plan's terms bound {len(start):,}. Start a new run with the "
            "same model and adapt at both ends."
        )
    unflatten(trained, start)


def within(progress: Progress, low: int, high: int) -> Progress:
    """The progress of a part of the work, mapped to the range from `low` to `high` percent of the whole."""
    return lambda percent: progress(low + percent * (high - low) // 100)


def _model(
    shard: ShardTable, text: TextModel, lesson: Lesson
) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase, int | None]":
    """The model, its tokenizer and its classes, in the form that `probe_of` takes."""
    if lesson.objective == "language":
        return *language_model(text.folder), None
    targets: LabelMap | ScoreRange = DOMAINS
    if lesson.objective == "labels":
        targets = targets_of(labelled_in(lesson.labelled), shard)
    classes = len(targets.names) if isinstance(targets, LabelMap) else 0
    return *classifier(text.folder, targets, seed=text.seed), classes


def _read(reading: Reading, text: TextModel, lesson: Lesson, found: Loaded, read_documents: Documents) -> _Read:
    tokenizer, most, known = found.tokenizer, longest(found.model, text.longest), tokens_of(found.model)
    if lesson.objective == "labels":
        labelled, shard = labelled_in(lesson.labelled), reading.shard
        with reading.counted() as census:
            read = labelled_units(
                shard,
                columns_of(labelled, shard),
                targets_of(labelled, shard),
                tokenizer,
                longest=most,
                known=known,
                by_user=reading.by_user,
                cache=reading.cache,
                frank=reading.frank,
                census=census,
            )
        return _Read(read.rows, torch.from_numpy(read.labels), read.members, len(read))
    if lesson.objective == "language":
        spoken = read_documents(reading, tokenizer, lesson.coded, longest=most, known=known)
        return _Read(spoken.rows, None, spoken.members, len(spoken))
    encoded = partial(encode, tokenizer, longest=most, known=known)
    plain = plain_units(reading, encoded, longest=most, second=lesson.second or None)
    public = found.public
    labels = torch.zeros(len(plain.rows) + len(public), dtype=torch.int64)
    labels[len(plain.rows) :] = 1
    members = None
    if plain.members is not None:
        members = Members(np.append(plain.members.stops, np.arange(len(plain.rows), len(labels)) + 1))
    return _Read([*plain.rows, *public], labels, members, len(plain))


def labelled_in(text: str) -> plan_pb2.LabelledText:
    """The plan's message that a job holds in hexadecimal."""
    return plan_pb2.LabelledText.FromString(bytes.fromhex(text))


def _unplaced(sentence: str, folder: str) -> str:
    """A sentence about the model without the name of this party's folder."""
    provided = "that was provided"
    for found, said in (
        (f"model folder {folder}", f"model {provided}"),
        (f"checkpoint {folder}", f"checkpoint {provided}"),
        (folder, f"the model {provided}"),
    ):
        sentence = sentence.replace(found, said)
    return sentence[:1].upper() + sentence[1:]
