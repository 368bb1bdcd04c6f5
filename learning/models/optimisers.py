"""Optimisers: schedules of their learning rate, and their steps without torch's compiler.

The compiler takes a second to import, and nothing here uses it. Importing this needs no torch.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

from aggregation.errors import ConclaveError
from aggregation.imports import later


def _no_break() -> None:
    """Where the compiler would end one of its graphs, there is none."""


_ASKED: Final[dict[str, dict[str, object]]] = {"torch._dynamo": {"graph_break": _no_break}}


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


@contextmanager
def uncompiled() -> Iterator[None]:
    """A context in which making an optimiser and taking its steps do not import the compiler.

    torch keeps what the compiler answered in an attribute of the function; where another torch keeps it elsewhere, the
    compiler is imported as before.
    """
    import torch

    plain = getattr(torch.optim.Optimizer.add_param_group, "__wrapped__", None)
    if plain is not None and not hasattr(plain, "__dynamo_disable"):
        setattr(plain, "__dynamo_disable", plain)
    with later(_ASKED):
        yield
