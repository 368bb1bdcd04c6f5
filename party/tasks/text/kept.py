"""Models and units that a process keeps for its next job on the same text."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol

from learning.private_training.units import Units
from party.shard.memory import Memory
from party.shard.plain import PlainUnits
from party.shard.reading import Reading
from party.tasks.job import Job
from party.tasks.text.model import Loaded, Vectors, loaded, placed, units_of, vectors_of
from party.tasks.text.request import TOKENIZER_FILES, OnModel, TextModel, TokenizerFiles


class Keeps(Protocol):
    """Loads a model and reads units once for several jobs on the same text."""

    def loaded(self, job: Job, work: OnModel) -> Loaded: ...

    def units(self, job: Job, work: OnModel) -> Units: ...

    def placed(self, job: Job, work: OnModel) -> AbstractContextManager[None]: ...


def documents_once(
    memory: Memory,
    reading: Reading,
    model: TextModel | TokenizerFiles,
    coded: str,
    longest: int,
    read: Callable[[], PlainUnits],
) -> PlainUnits:
    """The documents of a shard, read once for all work that reads them alike: counts of tokens, and language models.

    model: of which only what it reads text by plays a part. longest: tokens of a document at most. Raises as `read`.
    """
    files = tuple(sorted((name, path) for name, path in model.files.items() if name in TOKENIZER_FILES))
    return memory.once("documents", (reading.whose, files, coded, longest), read)


def same_model(job: Job, work: OnModel) -> str:
    """What a job's model is made of: of its party only the shard's columns. A provided file is known by its digest."""
    shard = job.reading.shard.model_copy(update={"part": None})
    files = {name: Path(path).name for name, path in work.model.files.items()}
    lesson = replace(work.lesson, tilt="", texts=Path(work.lesson.texts).name)
    return repr((shard.model_dump_json(), replace(work.model, files=files, folder=""), lesson, job.by_user))


class Kept:
    """The model, units and vectors that a process keeps from step to step of a training.

    Memory: that of `party.tasks.text.model.loaded` and `units_of`, for one training.
    """

    def __init__(self, models: Memory | None = None) -> None:
        """models: of simulated parties that share this process and take turns with one model; None for one party."""
        self._models = models
        self._reads = ""
        self._loaded: Loaded | None = None
        self._units: Units | None = None

    def loaded(self, job: Job, work: OnModel) -> Loaded:
        """The job's model, loaded unless the last job had the same. Raises as `party.tasks.text.model.loaded`."""
        if self._loaded is None or self._reads != job.reads:
            self._loaded = self._units = None  # never two models at a time
            self._loaded = self._load(job, work)
            self._reads = job.reads
        return self._loaded

    def units(self, job: Job, work: OnModel) -> Units:
        """The job's units, read unless the last job had the same. Raises as `party.tasks.text.model.units_of`."""
        found = self.loaded(job, work)
        if self._units is None:
            vectors: Vectors = vectors_of
            if self._models is not None:
                tried: dict[int, tuple[int, ...]] = self._models.last("agreeing", same_model(job, work), dict)
                vectors = partial(vectors_of, agreeing=tried)
            self._units = units_of(job.reading, work.model, work.lesson, found, vectors)
        return self._units

    def placed(self, job: Job, work: OnModel) -> AbstractContextManager[None]:
        """As `party.tasks.text.model.placed`, unless another simulated party's model is the same: it is placed, and
        loaded.
        """
        if self._models is not None and self._models.has("models", same_model(job, work)):
            return nullcontext()
        return placed(work.model, job.memory)

    def _load(self, job: Job, work: OnModel) -> Loaded:
        def load() -> Loaded:
            return loaded(job.reading.shard, work.model, work.lesson, by_user=job.by_user)

        return load() if self._models is None else self._models.last("models", same_model(job, work), load)

    def forget_units(self) -> None:
        """Drop the units, so that what follows has as much memory whatever was read."""
        self._units = None
