"""Bounding real vectors: each clipped to an L2 norm and put on an integer grid, so that the bound holds in integers."""

import numpy as np
from numpy.typing import NDArray

from aggregation import grid
from aggregation.arrays import IntArray
from aggregation.errors import IntegrityError


def to_grid(vectors: NDArray[np.floating], clip: float, levels: int) -> IntArray:
    """Clip every row to L2 norm `clip` and put it on the grid of step clip/levels: int64, of the same shape.

    vectors: [n, dimension], of either sign. clip: above 0 and finite, as is levels/clip. levels: 1 to 2^20.
    Every integer row has norm at most `levels`, checked in integers: exactly, not only up to rounding. Values are
    rounded to the nearest; a row that would round past the bound is truncated towards zero instead. A row's outcome
    depends on that row alone, bit for bit, not on the rows beside it (`aggregation.grid`).

    Memory: some eight times that of the vectors; rows that go into one sum may be given in slices.
    Raises `IntegrityError` for anything but a two-dimensional array of finite real numbers.
    """
    rows = _checked(vectors)
    starts = np.arange(len(rows)) * rows.shape[1]
    steps = grid.to_grid(np.abs(rows).ravel(), starts, clip, levels).reshape(rows.shape)
    return np.where(rows < 0, -steps, steps)


def _checked(vectors: NDArray[np.floating]) -> NDArray[np.float64]:
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2:
        kind = f"{type(vectors).__name__} of {getattr(vectors, 'ndim', '?')} dimensions"
        raise IntegrityError(f"Vectors must be an array [vectors, dimension]; this is a {kind}.")
    if not (np.issubdtype(vectors.dtype, np.floating) or np.issubdtype(vectors.dtype, np.integer)):
        raise IntegrityError(f"Vectors must be made of real numbers; these are {vectors.dtype}.")
    rows = np.ascontiguousarray(vectors, dtype=np.float64)
    if not np.isfinite(rows).all():
        raise IntegrityError("A vector holds NaN or infinity; every value must be a finite number.")
    return rows
