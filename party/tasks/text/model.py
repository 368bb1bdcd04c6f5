"""A text model that was provided, as a party trains it: its files put together, its units read, ready for gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import Tensor, nn

from aggregation.mechanisms.gradients import GradientMechanism
from learning.models.adapting import Lora, adapt, unflatten
from learning.models.batching import Tokens, encode, encode_documents, losses
from learning.models.encoders import classifier, language_model, longest, tokens_of
from learning.models.features import features_apart, head_alone
from learning.private_training.feature_units import FeatureUnits, head_losses
from learning.private_training.per_example import PerExample, check_apart
from learning.private_training.text_units import TextUnits, probe_of
from learning.private_training.units import Losses, MicroBatch, Units
from learning.text.labelled import LabelMap, ScoreRange
from party.admission.labels import columns_of, targets_of
from party.errors import TrainingError
from party.shard.labelled import Members, labelled_units, tell_if_few
from party.shard.plain import census_of, plain_units
from party.tasks.ensemble.training import public_rows
from party.tasks.job import Job, TextWork
from party.tasks.text.trials import try_model, try_tokenizer
from protos.conclave.v1 import plan_pb2

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DOMAINS: Final = LabelMap(("private", "public"))
"""Classes of a domain classifier, in order."""

Progress = Callable[[int], None]
"""Is given whole percents, of public numbers alone: what was read of a shard is told to nobody."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that was provided, with its tokenizer, as it was tried; nothing private has been near it.

    trained: the model, or its own last layer where that alone is trained: its parameters in the order of
    `learning.models.adapting` are those of the model. gradients: what tells those of one unit from another's. public:
    the public texts that a domain classifier learns against, as tokens; none for others.
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    trained: nn.Module
    losses: Losses
    gradients: PerExample
    public: Sequence[Tokens]

    @property
    def head_alone(self) -> bool:
        """Whether the last layer alone is trained, on what it sees of the units."""
        return self.trained is not self.model


@dataclass(frozen=True, slots=True)
class _Read:
    """Units of tokens. rows: all examples. members: as of `TextUnits`. own: units of this party's."""

    rows: Sequence[Tokens]
    labels: Tensor | None
    members: Sequence[Sequence[int]] | None
    own: int


def loaded(job: Job, text: TextWork) -> Loaded:
    """The model that was provided, adapted, and tried on made-up text. Nothing of the shard has a part in it.

    Memory: the model. Raises `ModelError` for a model that cannot be had or adapted, or whose gradients cannot be told
    apart by examples; `TrainingError` for one that fails at made-up text, and for public texts that are none.
    """
    model, tokenizer, classes = _model(job, text)
    adapt(model, text.adapt, seed=text.seed, lora=Lora(text.rank, text.alpha) if text.adapt == "lora" else None)
    head = None if text.objective == "language" else head_alone(model)
    most = longest(model, text.longest)
    pairs = text.objective == "labels" and columns_of(_labelled(text), job.shard_table).second is not None
    rows = try_tokenizer(tokenizer, tokens_of(model), most, documents=text.objective == "language", pairs=pairs)
    try_model(model, rows, classes, head=head)
    public: Sequence[Tokens] = ()
    if text.objective == "domain":
        public = public_rows(Path(text.texts), tokenizer, pairs=False, longest=most)
    if head is not None:
        return Loaded(model, tokenizer, head, head_losses, PerExample(head), public)
    gradients = PerExample(model)
    if (probe := probe_of(model.config, classes)) is not None:
        _try(gradients, probe)
    return Loaded(model, tokenizer, model, losses, gradients, public)


def units_of(job: Job, text: TextWork, found: Loaded) -> Units:
    """This party's units as the model takes them, seen through the encoder where the last layer alone is trained.

    There may be no unit, or none with an example. The job's census is on disk when this returns. Memory: the shard's
    tokens and, where they take their place, the vectors of all examples, 4 bytes a number. Raises what
    `party.shard.labelled` raises for the shard.
    """
    model, read = found.model, _read(job, text, found)
    if (declared := job.declared_size) is not None:
        tell_if_few(read.own, needed=declared, why="[policy] declared_size")
    if not found.head_alone:
        return TextUnits(model.config, read.rows, read.labels, members=read.members)
    assert read.labels is not None
    return FeatureUnits(features_apart(model, read.rows, {}), read.labels, members=read.members)


def _try(gradients: PerExample, probe: MicroBatch) -> None:
    """Raises `ModelError` for a model whose gradients cannot be told apart by examples."""

    def loss(part: slice) -> Tensor:
        labels = None if probe.labels is None else probe.labels[part]
        return losses(gradients.model, {name: each[part] for name, each in probe.inputs.items()}, labels)

    check_apart(gradients, loss, probe.units)


def start_of(text: TextWork, mechanism: GradientMechanism) -> Tensor:
    """The parameters that were provided, float32 [parameters], before a shard is opened.

    Raises `TrainingError` where they are not as many as the mechanism bounds, and for one that is not finite.
    """
    vector = np.fromfile(text.parameters, "<f4")
    if len(vector) != mechanism.parameters or Path(text.parameters).stat().st_size != 4 * mechanism.parameters:
        raise TrainingError(
            f"the parameters that were provided are {len(vector):,} numbers, and the plan's terms bound "
            f"{mechanism.parameters:,}."
        )
    if not np.isfinite(vector).all():
        raise TrainingError("the parameters that were provided hold NaN or infinity. Use a smaller learning rate.")
    return torch.from_numpy(vector.astype(np.float32, copy=False))


def begin(trained: nn.Module, count: int, start: Tensor) -> None:
    """Set what is trained to the parameters that were provided, `start_of`.

    count: trainable numbers. Raises `TrainingError` where these and the provided ones are not as many.
    """
    if count != len(start):
        raise TrainingError(
            f"the model trains {count:,} numbers, and the plan's terms bound {len(start):,}. Start a new run with the "
            "same model and adapt at both ends."
        )
    unflatten(trained, start)


def within(progress: Progress, low: int, high: int) -> Progress:
    """The progress of a part of the work, from percent `low` of the whole to `high`."""
    return lambda percent: progress(low + percent * (high - low) // 100)


def _model(job: Job, text: TextWork) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase, int | None]":
    """The model, its tokenizer and its classes, as `probe_of` takes them."""
    if text.objective == "language":
        return *language_model(text.folder), None
    targets: LabelMap | ScoreRange = DOMAINS
    if text.objective == "labels":
        targets = targets_of(_labelled(text), job.shard_table)
    classes = len(targets.names) if isinstance(targets, LabelMap) else 0
    return *classifier(text.folder, targets, seed=text.seed), classes


def _read(job: Job, text: TextWork, found: Loaded) -> _Read:
    tokenizer, most, known = found.tokenizer, longest(found.model, text.longest), tokens_of(found.model)
    if text.objective == "labels":
        labelled, shard = _labelled(text), job.shard_table
        with census_of(job) as census:
            read = labelled_units(
                shard,
                columns_of(labelled, shard),
                targets_of(labelled, shard),
                tokenizer,
                longest=most,
                known=known,
                by_user=job.by_user,
                cache=Path(job.cache),
                frank=job.frank,
                census=census,
            )
        return _Read(read.rows, torch.from_numpy(read.labels), read.members, len(read))
    spoken = encode_documents if text.objective == "language" else encode
    plain = plain_units(job, partial(spoken, tokenizer, longest=most, known=known), longest=most)
    if text.objective == "language":
        return _Read(plain.rows, None, plain.members, len(plain))
    public = found.public
    labels = torch.zeros(len(plain.rows) + len(public), dtype=torch.int64)
    labels[len(plain.rows) :] = 1
    members = None
    if plain.members is not None:
        members = Members(np.append(plain.members.stops, np.arange(len(plain.rows), len(labels)) + 1))
    return _Read([*plain.rows, *public], labels, members, len(plain))


def _labelled(text: TextWork) -> plan_pb2.LabelledText:
    return plan_pb2.LabelledText.FromString(bytes.fromhex(text.labelled))
