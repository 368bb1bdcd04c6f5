"""Learning rate schedules: each step's learning rate as a share of the highest."""

import math
from dataclasses import dataclass
from typing import Literal

from aggregation.errors import ConclaveError


@dataclass(frozen=True, slots=True)
class Schedule:
    """A rise over the first steps, then a fall, or none.

    warm_up: the share of all steps over which the rate rises, in [0, 1). kind: after that it is constant, falls in a
    straight line, or falls as half a cosine, without restarts; to zero after the last step,
    so no step is taken at zero. Raises `ConclaveError` for another kind or a share outside [0, 1).
    Source: the cosine is that of Loshchilov & Hutter 2017.
    """

    kind: Literal["linear", "cosine", "constant"] = "linear"
    warm_up: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.warm_up < 1:
            raise ConclaveError(f"A warm-up of {self.warm_up:g} is no share of the steps. Give one from 0 to under 1.")
        if self.kind not in ("linear", "cosine", "constant"):
            raise ConclaveError(f"There is no schedule {self.kind!r}. Use linear, cosine or constant.")

    def scale(self, step: int, steps: int) -> float:
        """The factor, in (0, 1], of step 0 <= step < steps. Raises `ValueError` for a step outside these."""
        if not 0 <= step < steps:
            raise ValueError(f"Step {step} is none of {steps}.")
        rising = int(self.warm_up * steps)
        if step < rising:
            return (step + 1) / (rising + 1)
        done = (step - rising) / (steps - rising)
        if self.kind == "linear":
            return 1 - done
        return (1 + math.cos(math.pi * done)) / 2 if self.kind == "cosine" else 1.0
