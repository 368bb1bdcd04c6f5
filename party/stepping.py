"""A party's part of one step that all parties take together: of a secret sample of its units, the sum of their clipped
gradients, on the mechanism's grid. What was read for one step serves all that follow.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from aggregation.gradients import GradientMechanism
from aggregation.noise import NoiseStream
from learning.per_example import PerExample, check_apart
from learning.private_training import AT_ONCE, clipped_sum, tell_left_out
from party.job import Job
from party.text_models import Ready, begin, ready
from party.work import wrapped


class Kept:
    """What a process read and put together for a training, from step to step: model, units, vectors.

    Memory: as of `party.text_models.ready`, of one training.
    """

    def __init__(self) -> None:
        self._reads = ""
        self._ready: tuple[Ready, PerExample] | None = None

    def of(self, job: Job, progress: Callable[[int], None]) -> tuple[Ready, PerExample]:
        """What the job is about, read if the last job was about something else."""
        if self._ready is None or self._reads != job.reads:
            self._ready = None  # not two at a time
            assert job.text is not None
            made = ready(job, job.text, progress)
            self._ready = made, _apart(made)
            self._reads = job.reads
        return self._ready


def step(job: Job, mechanism: GradientMechanism, progress: Callable[[int], None], kept: Kept) -> NDArray[np.int32]:
    """The sum of clipped gradients of a Poisson sample: int32 [1, parameters] modulo 2**32, grid units, no noise.

    The sample is drawn from the job's key, which is secret, secure and of this step and attempt alone. Adding or
    removing one unit moves the sum as `GradientMechanism` says. An empty sample gives zeros. Memory: beside what is
    `kept`, as of `learning.private_training.clipped_sum`.
    A unit whose loss or gradient is no finite number counts as an empty one; this process' log says how many did.
    Raises `ConclaveError` like `party.text_models.ready` and `begin`.
    """
    assert job.text is not None
    found, gradients = kept.of(job, progress)
    begin(job.text, found.trained, gradients.count, mechanism)
    stream = NoiseStream.from_key(bytes.fromhex(job.text.key)).child("batch")
    taken = mechanism.batch(len(found.units), stream)
    total = clipped_sum(gradients, found.units.micro_batches(taken), found.losses, mechanism, tell_left_out)
    made = np.empty(mechanism.parameters, np.int32)
    for start in range(0, len(total), AT_ONCE):
        made[start : start + AT_ONCE] = wrapped(mechanism.contribute_part(total[start : start + AT_ONCE]))
    return made[None, :]


def _apart(found: Ready) -> PerExample:
    """Raises `ModelError` for a model whose gradients cannot be told apart by examples."""
    gradients, probe = PerExample(found.trained), found.probe
    if probe is not None:

        def loss(part: slice) -> Tensor:
            labels = None if probe.labels is None else probe.labels[part]
            return found.losses(found.trained, {name: each[part] for name, each in probe.inputs.items()}, labels)

        check_apart(gradients, loss, probe.units)
    return gradients
