"""Vectors clipped to an L2 norm and put on an integer grid: the bound holds in integers, not only up to rounding."""

import numpy as np
from numpy.typing import NDArray

from aggregation.arrays import FloatArray, IntArray


def to_grid(magnitudes: FloatArray, starts: NDArray[np.integer], clip: float, levels: int) -> IntArray:
    """Magnitudes `[n]` >= 0 of consecutive non-empty rows to integers `[n]` of norm at most `levels` in every row.

    starts: where each row begins, `[rows]`. clip: the L2 norm that `levels` stands for; levels at most 2^20. Each
    integer is the clipped magnitude times levels/clip, rounded; a clipped row that rounds past the bound is truncated
    instead.

    Sums run in order within one row (`bincount`), and every other step is one correctly rounded operation, so that
    a row's outcome cannot depend on its neighbours.
    """
    if not magnitudes.size:
        return np.zeros(0, dtype=np.int64)
    lengths = np.diff(np.append(starts, magnitudes.size))
    row = np.repeat(np.arange(starts.size), lengths)
    largest = np.maximum.reduceat(magnitudes, starts)
    largest[largest == 0] = 1.0
    shape = magnitudes / largest[row]
    length = np.sqrt(np.bincount(row, weights=shape * shape))
    with np.errstate(over="ignore"):
        within = largest * length <= clip
    length[length == 0] = 1.0
    grid = np.where(within[row], np.minimum(magnitudes, clip) * (levels / clip), 0.0)
    grid += np.where(within[row], 0.0, shape * (levels / length)[row])

    steps = np.rint(grid).astype(np.int64)
    over = _over(steps, starts, levels)[row]
    steps[over] = np.floor(grid[over]).astype(np.int64)
    while (over := _over(steps, starts, levels)[row]).any():  # only if the float norm itself was off
        steps[over] = np.maximum(steps[over] - 1, 0)
    return steps


def _over(steps: IntArray, starts: NDArray[np.integer], levels: int) -> NDArray[np.bool_]:
    return np.asarray(np.add.reduceat(steps * steps, starts) > levels**2)
