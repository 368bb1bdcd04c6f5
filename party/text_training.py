"""A text model that this party trains alone under DP-SGD, once the ledger has paid; its parameters are what leaves."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from aggregation.gradients import GradientMechanism
from aggregation.noise import NoiseStream
from learning.adapting import flatten, trainable
from learning.private_training import Optimisation, train_private
from learning.schedules import Schedule
from party.job import Job, TextWork
from party.text_models import Ready, begin, ready


def train(job: Job, mechanism: GradientMechanism, progress: Callable[[int], None]) -> NDArray[np.int32]:
    """Train as `learn` does: the bits of the parameters, float32 [1, parameters], viewed as int32. Raises like it."""
    found = learn(job, mechanism, progress)
    return flatten(found.trained).numpy().astype("<f4", copy=False).view("<i4")[None, :]


def learn(job: Job, mechanism: GradientMechanism, progress: Callable[[int], None]) -> Ready:
    """Train from the parameters that were provided. progress: is given the percent of the plan's steps.

    Every unit's part is clipped, and every step noised from the job's key, which belongs to this training alone: the
    price under add-or-remove of one unit is `mechanism.event()`. It goes on from the checkpoint beside the result where
    it was ended, and draws for a step what was drawn for that step before, as `train_private` says.
    Raises `ConclaveError` like `party.text_models.ready`, `begin` and `train_private`.
    """
    assert job.text is not None
    found = ready(job, job.text)
    begin(job.text, found.trained, sum(each.numel() for each in trainable(found.trained).values()), mechanism)
    train_private(
        found.trained,
        found.units,
        found.losses,
        mechanism,
        optimisation(job.text),
        stream=NoiseStream.from_key(bytes.fromhex(job.text.key)),
        probe=found.probe,
        checkpoint=Path(job.result).with_suffix(".checkpoint"),
        on_step=lambda done: progress(min(99, int(100 * done))),
    )
    return found


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
