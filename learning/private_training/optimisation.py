"""The optimiser on noisy sums of gradients, and its state. All of it is public."""

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from aggregation.errors import ConclaveError, IntegrityError
from learning.errors import Diverged
from learning.models.optimisers import Schedule, uncompiled

LARGEST = 1e6
"""A parameter of this size or more shows that a training has diverged."""


@dataclass(frozen=True, slots=True)
class Optimisation:
    """The settings of the optimiser on noisy sums; public.

    expected_batch: what a sum is divided by, in units, from a declared public number of them, never from a shard's own
    number. learning_rate: the highest; `schedule` says what share of it a step
    takes. optimiser: AdamW or SGD with momentum. decay: AdamW's or SGD's weight decay.
    Raises `ConclaveError` for a batch or a rate that is not above 0.
    Source: DP-SGD (Abadi et al. 2016, algorithm 1, whose lot L is `expected_batch`); AdamW (Loshchilov & Hutter 2019).
    """

    expected_batch: float
    learning_rate: float
    optimiser: Literal["adamw", "sgd"] = "adamw"
    schedule: Schedule = field(default_factory=Schedule)
    momentum: float = 0.9
    decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("expected_batch", "learning_rate"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConclaveError(f"{name} is {value}; it must be a number above 0.")


class Training:
    """A training under way: an optimiser on one vector of parameters, float32 [parameters], that takes noisy sums.

    Its state can be stored; a training that continues from it ends the same.
    Source: DP-SGD (Abadi et al. 2016, algorithm 1, "descent").
    """

    def __init__(self, start: Tensor, settings: Optimisation, steps: int):
        self.settings = settings
        self.steps = steps
        self.done = 0
        self._point = nn.Parameter(start.clone())
        with uncompiled():
            if settings.optimiser == "adamw":
                # "foreach" has the bits of the plain loop; "fused" is quicker by far, and has others.
                self._optimiser: torch.optim.Optimizer = torch.optim.AdamW(
                    [self._point], settings.learning_rate, weight_decay=settings.decay, foreach=True
                )
            else:
                self._optimiser = torch.optim.SGD(
                    [self._point], settings.learning_rate, settings.momentum, weight_decay=settings.decay
                )

    @property
    def point(self) -> Tensor:
        """The parameters, float32 [parameters]."""
        return self._point.detach()

    def step(self, noisy_sum: NDArray[np.float32]) -> None:
        """Go one step down a noisy sum of gradients, [parameters], which it uses up.

        Raises `Diverged` where the parameters would go to infinity; they stay where they were, the step is done, the
        optimiser forgets what it had of those before, and others may follow.
        """
        settings, before = self.settings, self.point.clone()
        (group,) = self._optimiser.param_groups
        group["lr"] = settings.learning_rate * settings.schedule.scale(self.done, self.steps)
        self._point.grad = torch.from_numpy(noisy_sum).div_(settings.expected_batch)
        with uncompiled():
            self._optimiser.step()
        self._point.grad = None
        self.done += 1
        if not bool((self.point.abs() < LARGEST).all()):
            self.point.copy_(before)
            self._optimiser.state.clear()
            raise Diverged("Private training went to infinity. Use a smaller learning rate or a larger batch.")

    def state(self) -> dict[str, Tensor]:
        """All that `resume` needs, by name."""
        own = self._optimiser.state.get(self._point, {})
        kept = {f"optimiser.{name}": value for name, value in own.items() if isinstance(value, Tensor)}
        return {"point": self._point.detach(), "done": torch.tensor([self.done]), **kept}

    def resume(self, state: dict[str, Tensor]) -> None:
        """Go on from what `state` gave. Raises `IntegrityError` for a state of another shape."""
        try:
            point, done = state["point"], int(state["done"].item())
            if point.shape != self._point.shape or point.dtype != torch.float32 or not 0 <= done <= self.steps:
                raise ValueError
        except (KeyError, ValueError, RuntimeError):
            raise IntegrityError("A checkpoint is not of this training.") from None
        with torch.no_grad():
            self._point.copy_(point)
        own = {name.removeprefix("optimiser."): value for name, value in state.items() if name.startswith("optimiser.")}
        if own:
            self._optimiser.state[self._point] = own
        self.done = done
