"""A text model that this party trains alone under DP-SGD, once the ledger has paid; its parameters are what leaves."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.noise.stream import NoiseStream
from learning.models.adapting import flatten
from learning.models.schedules import Schedule
from learning.private_training.dp_sgd import train_private
from learning.private_training.optimisation import Optimisation
from party.tasks.job import Job, TextWork
from party.tasks.text.model import Loaded, begin, loaded, start_of, units_of


def prepare(job: Job, mechanism: GradientMechanism) -> Callable[[Job, Callable[[int], None]], NDArray[np.int32]]:
    """Everything of a training but its units. Raises `ConclaveError` like `started`."""
    found = started(job, mechanism)
    return lambda job, progress: train(job, mechanism, found, progress)


def train(job: Job, mechanism: GradientMechanism, found: Loaded, progress: Callable[[int], None]) -> NDArray[np.int32]:
    """Train as `learn` does: the bits of the parameters, float32 [1, parameters], viewed as int32. Raises like it."""
    learn(job, mechanism, found, progress)
    return flatten(found.trained).numpy().astype("<f4", copy=False).view("<i4")[None, :]


def started(job: Job, mechanism: GradientMechanism) -> Loaded:
    """The model, at the parameters that were provided.

    Raises `ConclaveError` like `party.tasks.text.model.loaded`, `start_of` and `begin`, and for an odd optimisation.
    """
    assert job.text is not None
    optimisation(job.text)
    start = start_of(job.text, mechanism)
    found = loaded(job, job.text)
    begin(found.trained, found.gradients.count, start)
    return found


def learn(job: Job, mechanism: GradientMechanism, found: Loaded, progress: Callable[[int], None]) -> None:
    """Train the model that was `started`, in place. progress: is given the percent of the plan's steps.

    Every unit's part is clipped, and every step noised from the job's key, which belongs to this training alone: the
    price under add-or-remove of one unit is `mechanism.event()`. It goes on from the checkpoint beside the result where
    it was ended, and draws for a step what was drawn for that step before, as `train_private` says.
    Raises `ConclaveError` like `party.tasks.text.model.units_of` and `train_private`.
    """
    assert job.text is not None
    train_private(
        found.trained,
        units_of(job, job.text, found),
        found.losses,
        mechanism,
        optimisation(job.text),
        stream=NoiseStream.from_key(bytes.fromhex(job.text.key)),
        checkpoint=job.checkpoint,
        on_step=lambda done: progress(min(99, int(100 * done))),
    )


def optimisation(text: TextWork) -> Optimisation:
    """What the job says is done with noisy sums."""
    assert text.descent is not None
    descent = text.descent
    return Optimisation(
        expected_batch=descent.expected_batch,
        learning_rate=descent.learning_rate,
        optimiser=descent.optimiser,
        schedule=Schedule(descent.schedule, descent.warm_up),
        momentum=descent.momentum,
        decay=descent.decay,
    )
