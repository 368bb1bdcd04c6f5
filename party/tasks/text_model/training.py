"""Trains a text model at this party alone under DP-SGD, once the ledger has charged it, and releases parameters,
scores, or texts that it writes.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.said import FreeTexts
from aggregation.noise.stream import NoiseStream
from learning.models.adapting import flatten
from learning.models.optimisers import Schedule
from learning.private_training.dp_sgd import train_private
from learning.private_training.optimisation import Optimisation
from party.provided.written import written
from party.releasing.mechanisms import mechanism_of
from party.shard.public_texts import public_texts
from party.tasks.job import Job, Private, release_of
from party.tasks.text.kept import Keeps, Kept
from party.tasks.text.model import Loaded, begin, placed, start_of, tilted, within
from party.tasks.text.request import Descent
from party.tasks.text_model.request import TextModelWork
from party.tasks.text_model.scoring import score
from party.tasks.text_model.writing import check, write


def prepare(
    job: Job, work: TextModelWork, mechanism: GradientMechanism | FreeAnswers | FreeTexts, kept: Keeps | None
) -> Private:
    """Prepare everything of a training except its units: the model, the texts to score where scores are asked, and what
    is to be written where texts are.

    kept: whose model and units are used; None where this job is the process' only one.

    Raises `ConclaveError` as `party.tasks.text.model.placed` and `started` do, and `TrainingError` for invalid texts,
    and as `party.tasks.text_model.writing.check`.
    """
    kept = kept or Kept()
    training = mechanism_of(release_of(work.training))
    assert isinstance(training, GradientMechanism)
    with placed(work.model, job.memory):
        texts = public_texts(Path(work.scored), pairs=False) if work.scored else []
        found = started(job, work, training, kept)
        writing = work.writing
        asked = None if writing is None else written(Path(writing.written), texts=False, part=writing.part)
        if isinstance(mechanism, FreeTexts):
            assert asked is not None
            assert work.writing is not None
            check(mechanism, found, asked, work.writing, work.model.longest)

    def finish(job: Job, progress: Callable[[int], None]) -> NDArray[np.int32]:
        if isinstance(mechanism, GradientMechanism):
            return train(job, mechanism, found, kept, progress)
        learn(job, training, found, kept, within(progress, 0, 80))
        if isinstance(mechanism, FreeTexts):
            assert asked is not None
            assert work.writing is not None
            if isinstance(kept, Kept):
                kept.forget_units()
            return write(mechanism, found, asked, work.writing, Path(job.result), progress)
        return score(mechanism, found, texts, progress, longest=work.model.longest)

    return finish


def train(
    job: Job, mechanism: GradientMechanism, found: Loaded, kept: Keeps, progress: Callable[[int], None]
) -> NDArray[np.int32]:
    """Train as `learn` does: the bits of the parameters, float32 [1, parameters], viewed as int32. Raises as
    `learn`.
    """
    learn(job, mechanism, found, kept, progress)
    return flatten(found.trained).numpy().astype("<f4", copy=False).view("<i4")[None, :]


def started(job: Job, work: TextModelWork, mechanism: GradientMechanism, kept: Keeps) -> Loaded:
    """The model with the provided parameters.

    Raises `ConclaveError` as `party.tasks.text.model.loaded`, `tilted`, `start_of` and `begin` do, and for invalid
    optimiser settings.
    """
    optimisation(work.descent)
    start = start_of(work.parameters, mechanism)
    found = tilted(kept.loaded(job, work), work.lesson)
    begin(found.trained, found.gradients.count, start)
    return found


def learn(job: Job, mechanism: GradientMechanism, found: Loaded, kept: Keeps, progress: Callable[[int], None]) -> None:
    """Train the `started` model in place. progress: is told the percentage of the plan's steps.

    Every unit's gradient is clipped, and every step gets noise from the job's key, which belongs to this training
    alone: the cost under add-or-remove of one unit is `mechanism.event()`. An interrupted training continues from the
    checkpoint beside the result, and draws for a step what was drawn for that step before, as `train_private` says.
    Raises `ConclaveError` as `party.tasks.text.model.units_of` and `train_private` do.
    """
    work = job.work
    assert isinstance(work, TextModelWork)
    train_private(
        found.trained,
        kept.units(job, work),
        found.losses,
        mechanism,
        optimisation(work.descent),
        stream=NoiseStream.from_key(bytes.fromhex(work.key)),
        checkpoint=job.checkpoint,
        on_step=lambda done: progress(min(99, int(100 * done))),
    )


def optimisation(descent: Descent) -> Optimisation:
    """The optimiser settings of the job."""
    return Optimisation(
        expected_batch=descent.expected_batch,
        learning_rate=descent.learning_rate,
        optimiser=descent.optimiser,
        schedule=Schedule(descent.schedule, descent.warm_up),
        momentum=descent.momentum,
        decay=descent.decay,
    )
