"""Minimising over a bias for every word and vectors, the same way each time: what the fits of this room share."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from learning.models.optimisers import uncompiled

HISTORY = 10
"""Steps that L-BFGS remembers."""

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""A function of bias [V] and vectors [n, d], float32, that returns the loss, a float64 scalar, and its gradient by
each.
"""


def minimise(
    start: tuple[Tensor, Tensor],
    scale: tuple[Tensor, Tensor],
    objective: Objective,
    steps: int,
    on_step: Callable[[float], None] | None,
) -> tuple[Tensor, Tensor]:
    """L-BFGS from `start`, (bias [V], vectors [n, d]), to where it is after `steps`.

    Returns bias and vectors, float32.

    scale: square roots of typical curvatures, of the shapes of `start` or broadcast to them; frequent words are far
    more curved, and in coordinates scaled by that one step size suits all. on_step: told the fraction done. The point
    and the loss are float64: a sum over millions of cells in float32 hides what a step gained.
    Source: L-BFGS (Liu & Nocedal 1989).
    """
    size, shape = start[0].numel(), start[1].shape
    scaled = torch.cat([start[0] * scale[0], (start[1] * scale[1]).reshape(-1)])
    point = torch.nn.Parameter(scaled.double())
    most, done = steps + steps // 4, 0
    with uncompiled():
        optimiser = torch.optim.LBFGS(
            [point],
            max_iter=steps,
            max_eval=most,
            history_size=HISTORY,
            line_search_fn="strong_wolfe",
            tolerance_grad=0.0,
            tolerance_change=0.0,
        )

    def unpack() -> tuple[Tensor, Tensor]:
        return point[:size].float() / scale[0], point[size:].float().view(shape) / scale[1]

    @torch.no_grad()  # the optimiser turns gradients on, and with them every block of a sum would be kept for a second
    def closure() -> Tensor:
        nonlocal done
        loss, by_bias, by_vectors = objective(*unpack())
        point.grad = torch.cat([by_bias / scale[0], (by_vectors / scale[1]).reshape(-1)]).double()
        done += 1
        if on_step is not None:
            on_step(min(done / most, 1.0))
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    if on_step is not None:
        on_step(1.0)
    found = unpack()
    optimiser.state.clear()  # else its history stays beside the next fit's until the garbage collector runs
    point.grad = None
    return found


@contextmanager
def fixed_threads(size: int) -> Iterator[None]:
    """Fix the number of threads, because sums depend on how they are split: one up to V = 2,048, where more threads
    gain little and lose much on a busy machine; above, one for each core, eight at most.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1 if size <= 2048 else min(os.cpu_count() or 1, 8))
    try:
        yield
    finally:
        torch.set_num_threads(before)
