"""A party's part of one step of DP-SGD: the sum, on the mechanism's grid, of the clipped gradients of a secret sample.

What was read for one step serves all that follow.
"""

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.noise.stream import NoiseStream
from learning.private_training.clipped_sum import clipped_sum, tell_left_out
from learning.private_training.dp_sgd import AT_ONCE
from party.tasks.job import Job, Private
from party.tasks.result import wrapped
from party.tasks.step.request import StepWork
from party.tasks.text.kept import Keeps, Kept
from party.tasks.text.model import begin, start_of, tilted

__all__ = ["Kept", "prepare", "step"]


def prepare(job: Job, work: StepWork, mechanism: GradientMechanism, kept: Keeps) -> Private:
    """Prepare everything of a step except its units.

    Raises `ConclaveError` as `party.tasks.text.model.placed`, `loaded`, `tilted`, `start_of` and `begin` do.
    """
    with kept.placed(job, work):
        start = start_of(work.parameters, mechanism)
        found = tilted(kept.loaded(job, work), work.lesson)
        begin(found.trained, found.gradients.count, start)
    return lambda job, progress: step(job, work, mechanism, kept)


def step(job: Job, work: StepWork, mechanism: GradientMechanism, kept: Keeps) -> NDArray[np.int32]:
    """The sum of clipped gradients of a Poisson sample: int32 [1, parameters] modulo 2**32, grid units, no noise.

    The model has the job's parameters, as `prepare` leaves it. The sample is drawn from the job's key, which is secret
    and belongs to this step and attempt alone. Adding or removing one unit moves the sum as `GradientMechanism` says.
    An empty sample gives zeros. A unit whose loss or gradient is not finite counts as empty; this process' log says how
    many were. Memory: beside what is `kept`, as of `learning.private_training.clipped_sum.clipped_sum`. Raises
    `ConclaveError` like `party.tasks.text.model.units_of`.
    """
    found, units = tilted(kept.loaded(job, work), work.lesson), kept.units(job, work)
    stream = NoiseStream.from_key(bytes.fromhex(work.key)).child("batch")
    taken = mechanism.batch(len(units), stream)
    total = clipped_sum(found.gradients, units.micro_batches(taken), found.losses, mechanism, tell_left_out)
    made = np.empty(mechanism.parameters, np.int32)
    for start in range(0, len(total), AT_ONCE):
        made[start : start + AT_ONCE] = wrapped(mechanism.contribute_part(total[start : start + AT_ONCE]))
    return made[None, :]
