"""A text model that was provided, as a party trains it: its files put together, its units read, ready for gradients."""

import contextlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aggregation.gradients import GradientMechanism
from learning.adapting import Lora, adapt, unflatten
from learning.batching import Tokens, encode, encode_documents, losses
from learning.encoders import classifier, language_model, longest
from learning.feature_units import FeatureUnits, head_losses
from learning.features import features_apart, head_alone
from learning.labelled import LabelMap, ScoreRange
from learning.private_training import Losses, MicroBatch, Units
from learning.text_units import TextUnits, probe_of
from party.ensembles import public_rows
from party.errors import TrainingError
from party.job import UNKNOWN, Job, TextWork
from party.labelling import columns_of, targets_of
from party.reading import labelled_units, tell_if_few
from party.runs import private_folder
from party.text_reading import census_of, plain_units
from protos.conclave.v1 import plan_pb2

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

DOMAINS: Final = LabelMap(("private", "public"))
"""Classes of a domain classifier, in order."""

_AT_ONCE: Final = 2048
"""Texts that the encoder sees between two words of progress."""

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Ready:
    """What is trained, and on what.

    model: with its tokenizer; trained: it, or its own last layer where that alone is trained and `units` are what it
    sees: its parameters in the order of `learning.adapting` are those of the model. probe: what to try the model on;
    None for a layer that needs no trial.
    """

    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    trained: nn.Module
    units: Units
    losses: Losses
    probe: MicroBatch | None


@dataclass(frozen=True, slots=True)
class _Read:
    """Units of tokens. rows: all examples. members: as of `TextUnits`. own: units of this party's."""

    rows: Sequence[Tokens]
    labels: Tensor | None
    members: Sequence[Sequence[int]] | None
    own: int


def put_together(text: TextWork) -> None:
    """Have the model's files lie in `text.folder` under their names. Idempotent."""
    folder = Path(text.folder)
    private_folder(folder)
    for name, path in text.files.items():
        place = folder / name
        place.parent.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.link(path, place)


def ready(job: Job, text: TextWork, progress: Progress) -> Ready:
    """Load the model, read this party's units, and see the encoder through them where the last layer alone is trained.

    The job's census is on disk when this returns. Memory: the model, the shard's tokens and, where they take their
    place, the vectors of all examples, 4 bytes a number.
    Raises `ConclaveError`: `ModelError` for a model that cannot be had or adapted, what `party.reading` raises for the
    shard, `TrainingError` for public texts that are none.
    """
    model, tokenizer, classes = _model(job, text)
    adapt(model, text.adapt, seed=text.seed, lora=Lora(text.rank, text.alpha) if text.adapt == "lora" else None)
    head = None if text.objective == "language" else head_alone(model)
    read = _read(job, text, model, tokenizer, progress if head is None else within(progress, 0, 50))
    if (declared := job.declared_size) is not None:
        tell_if_few(read.own, needed=declared, why="[policy] declared_size")
    if head is None:
        units = TextUnits(model.config, read.rows, read.labels, members=read.members)
        return Ready(model, tokenizer, model, units, losses, probe_of(model.config, classes))
    assert read.labels is not None
    vectors = _vectors(model, read.rows, job, within(progress, 50, 100))
    seen = FeatureUnits(vectors, read.labels, members=read.members)
    return Ready(model, tokenizer, head, seen, head_losses, None)


def begin(text: TextWork, trained: nn.Module, count: int, mechanism: GradientMechanism) -> None:
    """Set what is trained to the parameters that were provided.

    count: trainable numbers. Raises `TrainingError` where these, the model's and those that the mechanism bounds are
    not as many, and for one that is not finite.
    """
    if count != mechanism.parameters:
        raise TrainingError(
            f"the model trains {count:,} numbers, and the plan's terms bound {mechanism.parameters:,}. Start a new run "
            "with the same model and adapt at both ends."
        )
    vector = np.fromfile(text.parameters, "<f4")
    if len(vector) != count or Path(text.parameters).stat().st_size != 4 * count:
        raise TrainingError(
            f"the parameters that were provided are {len(vector):,} numbers, the model trains {count:,}."
        )
    if not np.isfinite(vector).all():
        raise TrainingError("the parameters that were provided hold NaN or infinity. Use a smaller learning rate.")
    unflatten(trained, torch.from_numpy(vector.astype(np.float32, copy=False)))


def within(progress: Progress, low: int, high: int) -> Progress:
    """The progress of a part of the work, from percent `low` of the whole to `high`."""
    return lambda percent: progress(percent if percent == UNKNOWN else low + percent * (high - low) // 100)


def _model(job: Job, text: TextWork) -> "tuple[PreTrainedModel, PreTrainedTokenizerBase, int | None]":
    """The model, its tokenizer and its classes, as `probe_of` takes them."""
    if text.objective == "language":
        return *language_model(text.folder), None
    targets: LabelMap | ScoreRange = DOMAINS
    if text.objective == "labels":
        targets = targets_of(_labelled(text), job.shard_table)
    classes = len(targets.names) if isinstance(targets, LabelMap) else 0
    return *classifier(text.folder, targets, seed=text.seed), classes


def _read(
    job: Job,
    text: TextWork,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    progress: Progress,
) -> _Read:
    most = longest(model, text.longest)

    def done(units: int) -> None:
        progress(job.percent(units))

    if text.objective == "labels":
        labelled, shard = _labelled(text), job.shard_table
        with census_of(job) as census:
            found = labelled_units(
                shard,
                columns_of(labelled, shard),
                targets_of(labelled, shard),
                tokenizer,
                longest=most,
                by_user=job.by_user,
                cache=Path(job.cache),
                census=census,
                done=done,
            )
        return _Read(found.rows, torch.from_numpy(found.labels), found.members, len(found))
    spoken = encode_documents if text.objective == "language" else encode
    plain = plain_units(job, partial(spoken, tokenizer, longest=most), longest=most, done=done)
    if text.objective == "language":
        return _Read(plain.rows, None, plain.members, len(plain))
    public = public_rows(Path(text.texts), tokenizer, pairs=False, longest=most)
    labels = torch.zeros(len(plain.rows) + len(public), dtype=torch.int64)
    labels[len(plain.rows) :] = 1
    members: list[Sequence[int]] | None = None
    if plain.members is not None:
        members = [*plain.members, *([place] for place in range(len(plain.rows), len(labels)))]
    return _Read([*plain.rows, *public], labels, members, len(plain))


def _vectors(model: "PreTrainedModel", rows: Sequence[Tokens], job: Job, progress: Progress) -> NDArray[np.float32]:
    found: list[NDArray[np.float32]] = []
    known: dict[int, tuple[int, ...]] = {}
    for start in range(0, len(rows), _AT_ONCE):
        found.append(features_apart(model, rows[start : start + _AT_ONCE], known))
        progress(job.percent(start))
    return np.concatenate(found)


def _labelled(text: TextWork) -> plan_pb2.LabelledText:
    return plan_pb2.LabelledText.FromString(bytes.fromhex(text.labelled))
