"""What the simulated parties of one process share between tasks: text that was read, models and sums."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from learning.models import features
from learning.models.batching import Tokens
from learning.models.encoders import digest
from learning.models.forked import in_processes
from learning.private_training.units import Units
from party.shard.memory import Memory
from party.shard.plain import PlainUnits
from party.shard.reading import Reading
from party.tasks.job import Job
from party.tasks.text.documents import documents
from party.tasks.text.kept import documents_once
from party.tasks.text.model import Loaded, loaded, placed, units_of
from party.tasks.text.request import Lesson, OnModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Made = TypeVar("Made")

OF_ONE_SEED: Final = ("sums", "answers", "said", "votes", "models", "encoders", "domains", "trials")
"""Kinds of things that are kept for one seed only: keeping them for many seeds would fill the memory."""


class SimulatedMemory(Memory):
    """A `Memory` that also keeps text models and units for all parties and plans, as `party.tasks.text.kept.Kept` does.

    Parties take turns with a model: each sets it to the parameters that it was provided. processes: how many of one
    thread make at once what `each` is asked for.
    """

    def __init__(self, processes: int = 1) -> None:
        super().__init__()
        self._processes = processes

    def loaded(self, job: Job, work: OnModel) -> Loaded:
        """The job's model, which all parties share. Raises as `party.tasks.text.model.loaded`."""

        def load() -> Loaded:
            return loaded(job.reading.shard, work.model, _untilted(work.lesson), by_user=job.by_user)

        return self.once("models", (*_model(job, work), job.by_user), load)

    def units(self, job: Job, work: OnModel) -> Units:
        """The job's units, read once for all seeds unless the layers that see them depend on the seed.

        Raises as `party.tasks.text.model.units_of`.
        """
        found, model = self.loaded(job, work), work.model
        seen_by = self.once("encoders", _model(job, work), lambda: _encoder(found) if found.head_alone else b"")
        of = (job.reading.whose, seen_by or model.folder, model.longest, repr(_untilted(work.lesson)))
        kind = "domains" if work.lesson.objective == "domain" else "units"

        def read(reading: Reading, tokenizer: "PreTrainedTokenizerBase", coded: str, **how: Any) -> PlainUnits:
            make = partial(documents, reading, tokenizer, coded, **how)
            return documents_once(self, reading, model, coded, how["longest"], make)

        return self.once(kind, of, lambda: units_of(job.reading, model, work.lesson, found, self._vectors, read))

    def placed(self, job: Job, work: OnModel) -> AbstractContextManager[None]:
        """As `party.tasks.text.model.placed`."""
        return placed(work.model, job.memory)

    def vectors(
        self, model: "PreTrainedModel", rows: Sequence[Tokens], tokens: int | None = None
    ) -> NDArray[np.float32]:
        """The input vectors of a model's last layer, [texts, width], as parties compute them. Each encoder reads the
        same texts only once.
        """
        encoder, texts = digest(model.base_model), hashlib.sha256()
        for row in rows:
            texts.update(b"%d %d " % (len(row), row.second))
            texts.update(row.ids.tobytes())
        agreeing: dict[int, tuple[int, ...]] = self.once("agreeing", encoder, dict)
        of = (encoder, texts.digest())
        return self.once("vectors", of, lambda: features.features_apart(model, rows, agreeing, tokens))

    def _made(self, make: Callable[[int], Made], places: Sequence[int]) -> Iterator[tuple[int, Made]]:
        yield from in_processes(make, places, self._processes)

    def _vectors(
        self, model: "PreTrainedModel", blocks: Sequence[Sequence[Tokens]], tokens: int
    ) -> NDArray[np.float32]:
        found = [self.vectors(model, block, tokens) for block in blocks]
        return found[0] if len(found) == 1 else np.concatenate(found)


def _model(job: Job, work: OnModel) -> tuple[str, str, str]:
    """What a model depends on: of a party only its shard's columns, not its part of the text."""
    shard = job.reading.shard.model_copy(update={"part": None})
    return shard.model_dump_json(), repr(work.model), repr(_untilted(work.lesson))


def _untilted(lesson: Lesson) -> Lesson:
    """The lesson without its tilt, which neither the model nor its units depend on."""
    return replace(lesson, tilt="")


def _encoder(found: Loaded) -> bytes:
    """Digest of the layers below the last one; they do not depend on the seed."""
    return digest(found.model.base_model)
