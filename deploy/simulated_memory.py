"""What simulated parties of one process read and made, for all that they are asked: text, models, sums."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from learning.models import features
from learning.models.batching import Tokens
from learning.models.encoders import digest
from learning.private_training.units import Units
from party.shard.memory import Memory
from party.tasks.job import Job
from party.tasks.text.model import Loaded, loaded, units_of
from party.tasks.text.request import OnModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OF_ONE_SEED: Final = ("sums", "answers", "votes", "models", "encoders", "domains", "trials")
"""What is kept for the plans of one seed alone: all of it for many seeds would fill the memory."""


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
        kind = "domains" if work.lesson.objective == "domain" else "units"
        return self.once(kind, of, lambda: units_of(job.reading, model, work.lesson, found, self._vectors))

    def vectors(self, model: "PreTrainedModel", rows: Sequence[Tokens]) -> NDArray[np.float32]:
        """The input vectors of a model's last layer, [texts, width], as parties compute them; every encoder reads the
        same texts once.
        """
        encoder, texts = digest(model.base_model), hashlib.sha256()
        for row in rows:
            texts.update(b"%d %d " % (len(row), row.second))
            texts.update(row.ids.tobytes())
        agreeing: dict[int, tuple[int, ...]] = self.once("agreeing", encoder, dict)
        of = (encoder, texts.digest())
        return self.once("vectors", of, lambda: features.features_apart(model, rows, agreeing))

    def _vectors(self, model: "PreTrainedModel", blocks: Sequence[Sequence[Tokens]]) -> NDArray[np.float32]:
        found = [self.vectors(model, block) for block in blocks]
        return found[0] if len(found) == 1 else np.concatenate(found)


def _model(job: Job, work: OnModel) -> tuple[str, str, str]:
    """What a model depends on: nothing of a party but what its columns say."""
    shard = job.reading.shard.model_copy(update={"part": None})
    return shard.model_dump_json(), repr(work.model), repr(work.lesson)


def _encoder(found: Loaded) -> bytes:
    """What is below the last layer, which has no seed."""
    return digest(found.model.base_model)
