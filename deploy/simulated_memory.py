"""What simulated parties of one process read and made, for all that they are asked: text, models, sums."""

from typing import Final

from learning.models.encoders import digest
from learning.private_training.units import Units
from party.shard.memory import Memory
from party.tasks.job import Job
from party.tasks.text.model import Loaded, loaded, units_of
from party.tasks.text.request import OnModel

OF_ONE_SEED: Final = ("sums", "answers", "votes", "models", "encoders")
"""What is kept of one seed's plans alone: many of these would fill the memory."""


class SimulatedMemory(Memory):
    """Also what a training process keeps of a text model (`party.tasks.text.kept.Kept`), for all parties and plans.

    Parties take turns at a model: each sets it to the parameters that it was provided.
    """

    def loaded(self, job: Job, work: OnModel) -> Loaded:
        """The job's model, one for all parties. Raises as `party.tasks.text.model.loaded`."""
        shard = job.reading.shard
        return self.once("models", _model(job, work), lambda: loaded(shard, work.model, work.lesson))

    def units(self, job: Job, work: OnModel) -> Units:
        """The job's units, read once for all seeds, unless what sees them has a seed. Raises as `units_of`."""
        found, model = self.loaded(job, work), work.model
        seen_by = self.once("encoders", _model(job, work), lambda: _encoder(found) if found.head_alone else b"")
        of = (job.reading.whose, seen_by or model.folder, model.longest, repr(work.lesson))
        return self.once("units", of, lambda: units_of(job.reading, model, work.lesson, found))


def _model(job: Job, work: OnModel) -> tuple[str, str, str]:
    """What a model depends on: nothing of a party but what its columns say."""
    shard = job.reading.shard.model_copy(update={"part": None})
    return shard.model_dump_json(), repr(work.model), repr(work.lesson)


def _encoder(found: Loaded) -> bytes:
    """What is below the last layer, which has no seed."""
    return digest(found.model.base_model)
