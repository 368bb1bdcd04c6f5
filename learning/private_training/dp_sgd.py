"""Private training (DP-SGD, Abadi et al. 2016, algorithm 1) of any model whose gradients
`learning.private_training.per_example` tells apart: secret Poisson batches, every unit's gradient clipped, sums on an
integer grid under noise, an optimiser on them.

What a step releases is a noisy sum; model, optimiser and checkpoints are post-processing of such sums and of public
values. Where several parties train together, a party's part of a step is
`learning.private_training.clipped_sum.clipped_sum` alone.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from aggregation.arrays import FloatArray
from aggregation.errors import ConclaveError
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.noise.stream import NoiseStream
from learning.errors import Diverged
from learning.models.adapting import flatten, unflatten
from learning.private_training import checkpoints
from learning.private_training.clipped_sum import clipped_sum, tell_left_out
from learning.private_training.optimisation import Optimisation, Training
from learning.private_training.per_example import PerExample, check_apart
from learning.private_training.units import Losses, MicroBatch, Units

if TYPE_CHECKING:
    from dp_accounting import DpEvent

AT_ONCE = 1 << 20
"""Numbers that are rounded and noised at a time: some 32 MiB of arrays."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trained:
    """A model trained under `mechanism`, whose event is its price under add-or-remove of one unit."""

    model: nn.Module
    mechanism: GradientMechanism

    @property
    def event(self) -> "DpEvent":
        """What the training cost."""
        return self.mechanism.event()


def train_private(
    model: nn.Module,
    units: Units,
    losses: Losses,
    mechanism: GradientMechanism,
    optimisation: Optimisation,
    *,
    stream: NoiseStream,
    probe: MicroBatch | None = None,
    checkpoint: Path | None = None,
    checkpoint_steps: int = 10,
    on_step: Callable[[float], None] | None = None,
) -> Trained:
    """Train the parameters that require gradients, in place, from the model's public start.

    One unit more or less costs `mechanism.event()` under add-or-remove, on the assumptions in `GradientMechanism`:
    `stream` is secret, secure and of this training alone. The words for step t are those of two of its children, for
    t's batch and for t's noise. A training that goes on from its `checkpoint`, or begins again, draws for a step what
    was drawn for that step before, and nothing of it had left but to the checkpoint: no draw is added to two sums that
    anybody sees. A checkpoint of other settings, units of another number among them, or of another stream is refused.

    losses: every example's own, in which no other has a part. probe: made-up or public units, one example each, on
    which `learning.private_training.per_example.check_apart` tries whether the model keeps examples apart, before
    anything else. checkpoint: a file, written whole with mode 0600, removed when the model is trained. on_step: told
    the fraction done. Memory: the model; activations and what came back to them for one `MicroBatch`; 16 bytes a
    trainable number, the optimiser's 8, and `AT_ONCE` numbers. What units hold fails nothing: one whose loss or
    gradient is no number is an empty one, and a step to infinity is not taken. This process' log says how many there
    were. Raises `ModelError` for a model whose gradients cannot be told apart, `IntegrityError` for a checkpoint of
    something else.
    Source: DP-SGD (Abadi et al. 2016, algorithm 1).
    """
    gradients = PerExample(model)
    training = Training(flatten(model), optimisation, mechanism.steps)
    if gradients.count != mechanism.parameters:
        raise ConclaveError(
            f"The model trains {gradients.count:,} numbers, and the mechanism bounds {mechanism.parameters:,}."
        )
    if probe is not None:
        _try(gradients, probe, losses)
    digest = checkpoints.digest(mechanism, optimisation, len(units), stream)
    if checkpoint is not None and checkpoint.exists():
        training.resume(checkpoints.read(checkpoint, digest))
        unflatten(model, training.point)
    empty, held = 0, 0

    def left_out(found: int) -> None:
        nonlocal empty
        empty += found

    while training.done < mechanism.steps:
        step = training.done
        taken = units.micro_batches(mechanism.batch(len(units), stream.child("batch", step)))
        noisy = noised(
            clipped_sum(gradients, taken, losses, mechanism, left_out), mechanism, stream.child("noise", step)
        )
        try:
            training.step(noisy)
        except Diverged:
            held += 1
        del noisy
        unflatten(model, training.point)
        if checkpoint is not None and training.done % checkpoint_steps == 0:
            checkpoints.write(checkpoint, training.state(), digest)
        if on_step is not None:
            on_step(training.done / mechanism.steps)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    tell_left_out(empty)
    if held:
        _log.warning(
            "%s of %s steps would have gone to infinity and were not taken. Use a smaller learning rate or a larger "
            "batch.",
            f"{held:,}",
            f"{mechanism.steps:,}",
        )
    return Trained(model, mechanism)


def _try(gradients: PerExample, probe: MicroBatch, losses: Losses) -> None:
    def loss(part: slice) -> Tensor:
        labels = None if probe.labels is None else probe.labels[part]
        return losses(gradients.model, {name: each[part] for name, each in probe.inputs.items()}, labels)

    check_apart(gradients, loss, probe.units)


def noised(total: FloatArray, mechanism: GradientMechanism, stream: NoiseStream) -> NDArray[np.float32]:
    """A step's released sum [parameters]: it is on the grid, with its noise, in the gradient's units.

    Source: DP-SGD (Abadi et al. 2016, algorithm 1, "add noise").
    """
    made = np.empty(len(total), dtype=np.float32)
    for start in range(0, len(total), AT_ONCE):
        part = mechanism.contribute_part(total[start : start + AT_ONCE])
        part += mechanism.noise_share(part.shape, stream)
        made[start : start + AT_ONCE] = mechanism.release(part).values
    return made
