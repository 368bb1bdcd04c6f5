"""Clips real vectors to an L2 norm and rounds them to an integer grid; the bound holds exactly, in integers.

`to_grid` keeps a norm of `levels` by truncating the rows that would round past it; counts, vectors and hidden states
use it: their integers have d2 = levels exactly (votes: sqrt(2) levels) and d1 <= min(d2^2, sqrt(d) d2). Where many
small coordinates matter, truncating and rounding to the nearest lose them; `stochastic` keeps every coordinate's mean,
for a larger norm.
"""

import math

import numpy as np
from numpy.typing import NDArray

from aggregation.arrays import FloatArray, IntArray
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.noise.stream import NoiseStream

MOST_TRIES = 1000
MOST_FAILURE = 0.9


def to_grid(vectors: NDArray[np.floating], clip: float, levels: int) -> IntArray:
    """Clip every row to L2 norm `clip` and put it on the grid of step clip/levels: int64, of the same shape.

    vectors: [n, dimension], of either sign. clip: above 0 and finite, as is levels/clip. levels: 1 to 2^20.
    Every integer row has norm at most `levels`, checked in integers: exactly, not only up to rounding. Values are
    rounded to the nearest; a row that would round past the bound is truncated towards zero instead. A row's outcome
    depends on that row alone, bit for bit, not on the rows beside it (`magnitudes_to_grid`).

    Memory: some eight times that of the vectors; rows that go into one sum may be given in slices.
    Raises `IntegrityError` for anything but a two-dimensional array of finite real numbers.
    """
    rows = _checked(vectors)
    starts = np.arange(len(rows)) * rows.shape[1]
    steps = magnitudes_to_grid(np.abs(rows).ravel(), starts, clip, levels).reshape(rows.shape)
    return np.where(rows < 0, -steps, steps)


def magnitudes_to_grid(magnitudes: FloatArray, starts: NDArray[np.integer], clip: float, levels: int) -> IntArray:
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


def rounded_square(levels: int, dimension: int, failure: float) -> int:
    """Bound of the squared L2 norm, grid units squared, of what `stochastic` makes of one row.

        min((c + sqrt d)^2, c^2 + d/4 + sqrt(2 ln(1/b)) (c + sqrt(d)/2)),   c = levels, d = dimension, b = failure

    rounded down: a norm of integers, squared, is one. The first holds always; a row rounded once exceeds the second
    with probability at most b.

    This is the sensitivity squared under add-or-remove of one row. Where a unit changes one row into another, four
    times that. Raises `ConclaveError` for a failure outside 0 .. 0.9, and levels or a dimension below 1.
    Source: Kairouz, Liu & Steinke 2021, "The Distributed Discrete Gaussian Mechanism for Federated Learning with Secure
    Aggregation", proposition 22.
    """
    if levels < 1 or dimension < 1:
        raise ConclaveError(f"A grid of {levels} levels in {dimension} dimensions has no point but 0; use at least 1.")
    if not 0 < failure <= MOST_FAILURE:
        raise ConclaveError(f"The chance of rounding again is {failure}; it must be above 0, at most {MOST_FAILURE}.")
    root = math.sqrt(dimension)
    likely = levels**2 + dimension / 4 + math.sqrt(-2 * math.log(failure)) * (levels + root / 2)
    return math.floor(min((levels + root) ** 2, likely))


def stochastic(
    vectors: NDArray[np.floating], clip: float, levels: int, failure: float, stream: NoiseStream
) -> IntArray:
    """Clip every row to L2 norm `clip` and round it at random to the grid of step clip/levels: int64, same shape.

    Each coordinate goes up with the probability of its fraction, so that its mean stays, independently of the others. A
    row whose squared norm exceeds `rounded_square` is drawn again, whole; that happens with probability at most
    `failure` and pulls means towards 0 by about as much. The bound is checked in integers, so that it holds exactly for
    every row, however the draws fall: the sensitivity does not rest on them. The draws of different rows are
    independent: neighbouring data sets share those of all other units, and a divergence is never larger for a mixture
    over them than at its worst (joint quasi-convexity).

    vectors: [n, dimension] of either sign. clip: above 0 and finite. levels: at least 1; its square plus the dimension
    at most 2^40. A row that 1,000 draws do not fit, less likely than 1e-45, is truncated towards zero.

    Raises `IntegrityError` for anything but a two-dimensional array of finite real numbers, `ConclaveError` for a
    setting out of range.
    Source: conditional rounding (Kairouz, Liu & Steinke 2021, proposition 22).
    """
    exact = _scaled(vectors, clip, levels, float(levels))
    bound = rounded_square(levels, max(1, exact.shape[1]), failure)
    below = np.floor(exact)
    chance = exact - below  # probability of rounding up; exact, as both are on one binary grid
    base = below.astype(np.int64)
    out = np.empty_like(base)
    left = np.arange(len(base))
    for _ in range(MOST_TRIES):
        if not left.size:
            return out
        words = stream.uint64(left.size * exact.shape[1]).reshape(left.size, exact.shape[1])
        tried = base[left] + ((words >> np.uint64(11)) * 2.0**-53 < chance[left])
        fits = _squares(tried) <= bound
        out[left[fits]] = tried[fits]
        left = left[~fits]
    out[left] = np.trunc(exact[left]).astype(np.int64)
    return _within(out, bound)


def nearest(vectors: NDArray[np.floating], clip: float, levels: int) -> IntArray:
    """Clip every row to L2 norm clip - g sqrt(d)/2, g = clip/levels, and round to the nearest: norm at most `levels`.

    Rounding moves a row by at most g sqrt(d)/2. The bound is checked in integers.

    vectors: [n, dimension] of either sign. levels: more than sqrt(dimension)/2, or nothing is left of a row. Raises as
    `stochastic`.
    """
    dimension = vectors.shape[1] if vectors.ndim == 2 else 1
    radius = levels - math.sqrt(dimension) / 2
    if not radius > 0:
        raise ConclaveError(
            f"Rounding {dimension} dimensions on a grid of {levels} levels leaves nothing of a vector. Use more than "
            f"{math.sqrt(dimension) / 2:.0f} levels."
        )
    return _within(np.rint(_scaled(vectors, clip, levels, radius)).astype(np.int64), levels**2)


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


def _over(steps: IntArray, starts: NDArray[np.integer], levels: int) -> NDArray[np.bool_]:
    return np.asarray(np.add.reduceat(steps * steps, starts) > levels**2)


def _scaled(vectors: NDArray[np.floating], clip: float, levels: int, radius: float) -> FloatArray:
    """Rows in grid units, each of norm at most `radius` up to rounding, slightly inside it where it was clipped."""
    if not (math.isfinite(clip) and clip > 0 and math.isfinite(levels / clip)):
        raise ConclaveError(f"clip is {clip}; it must be a number above 0, and not tiny.")
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind not in "fiu":
        raise IntegrityError("Vectors must be an array of real numbers [vectors, dimension].")
    if not (levels >= 1 and levels**2 + vectors.shape[1] <= 1 << 40):
        raise ConclaveError(f"{levels} levels in {vectors.shape[1]} dimensions are no grid that is kept exactly.")
    rows = np.ascontiguousarray(vectors, dtype=np.float64)
    if not np.isfinite(rows).all():
        raise IntegrityError("A vector holds NaN or infinity; every value must be a finite number.")
    largest = np.abs(rows).max(axis=1, initial=0.0, keepdims=True)
    shape = rows / np.where(largest == 0, 1.0, largest)  # no overflow in its norm
    length = np.sqrt((shape * shape).sum(axis=1, keepdims=True))
    with np.errstate(over="ignore"):
        inside = largest * length * (levels / clip) <= radius
    shrunk = shape * (radius * (1 - 1e-12) / np.where(length == 0, 1.0, length))
    return np.where(inside, np.where(inside, rows, 0.0) * (levels / clip), shrunk)


def _squares(rows: IntArray) -> IntArray:
    return np.asarray((rows * rows).sum(axis=1), dtype=np.int64)


def _within(rows: IntArray, bound: int) -> IntArray:
    """The rows; those past the bound, possible only through an error in a norm's last digits, one step nearer to 0."""
    while (over := _squares(rows) > bound).any():
        rows[over] -= np.sign(rows[over])
    return rows
