"""Federated DP-SGD on simulated parties' units in clear, for rows of a comparison that no recipe has."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.noise.stream import NoiseStream
from coordinator.progress.progress import Progress

if TYPE_CHECKING:
    from learning.private_training.optimisation import Optimisation, Training
    from learning.private_training.units import Losses, Units


KEPT: Final = "training.safetensors"
KEPT_EVERY: Final = 30.0
"""Seconds between two writings of a training's state, which for all of a model takes some."""


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
    kept: Callable[[Callable[[Path], bool]], Path | None] = lambda same: None,
) -> NDArray[np.float32]:
    """Train a module by federated DP-SGD from `start`, float32 [parameters]; returns [parameters].

    stream: the noise stream of labels, each asked once: a step, a party and a purpose. kept: the folder of this
    training's state, so that one that was stopped goes on after the last that was written; see
    `coordinator.comparing.simulated_run.kept_folder`. None keeps nothing. The cost under add-or-remove of one unit is
    `mechanism.event()`: a step that is taken again, because its state was not written, releases nothing.
    Source: DP-SGD, Abadi et al. 2016, algorithm 1.
    """
    import torch

    from learning.models.adapting import unflatten
    from learning.private_training import checkpoints
    from learning.private_training.clipped_sum import clipped_sum
    from learning.private_training.optimisation import Training
    from learning.private_training.per_example import PerExample

    descent = Training(torch.from_numpy(start), optimisation, mechanism.steps)
    digest = _digest(work, start, mechanism, optimisation)
    folder = kept(lambda found: _resumed(descent, found / KEPT, digest))
    unflatten(work.module, descent.point)
    gradients = PerExample(work.module)
    written = time.monotonic()
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
        if folder is not None and (descent.done == mechanism.steps or time.monotonic() - written > KEPT_EVERY):
            checkpoints.write(folder / KEPT, descent.state(), digest)
            written = time.monotonic()
    return np.array(descent.point.numpy())


def _digest(
    work: Trainable, start: NDArray[np.float32], mechanism: GradientMechanism, optimisation: "Optimisation"
) -> str:
    """SHA-256, hex, of what a state belongs to, but for the units' content."""
    told = [asdict(mechanism), asdict(optimisation), [len(each) for each in work.units]]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode() + start.tobytes()).hexdigest()


def _resumed(descent: "Training", state: Path, digest: str) -> bool:
    """Have a training go on from a state, if it is its own."""
    from aggregation.errors import IntegrityError
    from learning.private_training import checkpoints

    try:
        descent.resume(checkpoints.read(state, digest))
    except IntegrityError:
        return False
    return True
