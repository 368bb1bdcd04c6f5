"""Models and units that a process keeps for its next job on the same text."""

from typing import Protocol

from learning.private_training.units import Units
from party.tasks.job import Job
from party.tasks.text.model import Loaded, loaded, units_of
from party.tasks.text.request import OnModel


class Keeps(Protocol):
    """Loads a model and reads units once for several jobs on the same text."""

    def loaded(self, job: Job, work: OnModel) -> Loaded: ...

    def units(self, job: Job, work: OnModel) -> Units: ...


class Kept:
    """The model, units and vectors that a process keeps from step to step of a training.

    Memory: that of `party.tasks.text.model.loaded` and `units_of`, for one training.
    """

    def __init__(self) -> None:
        self._reads = ""
        self._loaded: Loaded | None = None
        self._units: Units | None = None

    def loaded(self, job: Job, work: OnModel) -> Loaded:
        """The job's model, loaded unless the last job had the same. Raises as `party.tasks.text.model.loaded`."""
        if self._loaded is None or self._reads != job.reads:
            self._loaded = self._units = None  # never two models at a time
            self._loaded = loaded(job.reading.shard, work.model, work.lesson, by_user=job.by_user)
            self._reads = job.reads
        return self._loaded

    def units(self, job: Job, work: OnModel) -> Units:
        """The job's units, read unless the last job had the same. Raises as `party.tasks.text.model.units_of`."""
        found = self.loaded(job, work)
        if self._units is None:
            self._units = units_of(job.reading, work.model, work.lesson, found)
        return self._units
