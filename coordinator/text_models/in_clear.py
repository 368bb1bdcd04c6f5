"""Federated DP-SGD on simulated parties' units in clear, for rows of a comparison that no recipe has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.noise.stream import NoiseStream
from coordinator.progress.progress import Progress

if TYPE_CHECKING:
    from learning.private_training.optimisation import Optimisation
    from learning.private_training.units import Losses, Units


@dataclass(frozen=True, slots=True)
class Trainable:
    """A module at its public start, and each party's units for that module."""

    module: Any
    units: "Sequence[Units]"
    losses: "Losses"


def trained_in_clear(
    work: Trainable,
    start: NDArray[np.float32],
    mechanism: GradientMechanism,
    optimisation: "Optimisation",
    stream: Callable[..., NoiseStream],
    progress: Progress,
) -> NDArray[np.float32]:
    """Train a module by federated DP-SGD from `start`, float32 [parameters]; returns [parameters].

    stream: the noise stream of labels, each asked once: a step, a party and a purpose. The cost under add-or-remove of
    one unit is `mechanism.event()`. Source: DP-SGD, Abadi et al. 2016, algorithm 1.
    """
    import torch

    from learning.models.adapting import unflatten
    from learning.private_training.clipped_sum import clipped_sum
    from learning.private_training.optimisation import Training
    from learning.private_training.per_example import PerExample

    unflatten(work.module, torch.from_numpy(start))
    gradients = PerExample(work.module)
    descent = Training(torch.from_numpy(start), optimisation, mechanism.steps)
    while descent.done < mechanism.steps:
        total = np.zeros(mechanism.parameters, np.int64)
        for number, units in enumerate(work.units):
            taken = mechanism.batch(len(units), stream(descent.done, number, "batch"))
            part = clipped_sum(gradients, units.micro_batches(taken), work.losses, mechanism)
            total += mechanism.contribute(part) + mechanism.noise_share(
                part.shape, stream(descent.done, number, "noise")
            )
        descent.step(mechanism.release(total, len(work.units)).values.astype(np.float32))
        unflatten(work.module, descent.point)
        progress.bar("training", descent.done, mechanism.steps)
    return np.array(descent.point.numpy())
