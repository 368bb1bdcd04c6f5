"""1/s and ln s of two variances as short sums of products, so that all pairs of texts are a matrix product.

The divergence of order l between Gaussians of variances v_1 and v_2 needs s = l v_2 - (l - 1) v_1 twice, as 1/s and as
ln s. Where all logarithms of variances of a coordinate lie within a short range, both are nearly

    1 / s = sum_r p_r(v_1) / (l v_2 - (l - 1) x_r),    ln(s / v_2) = sum_r p_r(v_1) ln(l - (l - 1) x_r / v_2)

with few nodes x_r and functions p_r that are 1 at their own node and 0 at the others. We take p_r from the leading
singular vectors of both functions on a grid, which is the best that a sum of so many products can be, and nodes by
pivoting (empirical interpolation: Barrault, Maday, Nguyen & Patera 2004). How good a sum is, is measured on another
grid, never assumed.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import torch
from numpy.polynomial import chebyshev
from numpy.typing import NDArray
from scipy.linalg import qr
from torch import Tensor

FloatArray = NDArray[np.float64]
MOST_TERMS: Final = 5
"""Terms beyond which pairs one by one are faster."""
_GRID, _DEGREE, _CHECK, _HALVINGS = 64, 14, 120, 18


@dataclass(frozen=True, slots=True)
class Expansion:
    """A sum of products, for logarithms of variances within [-half, half].

    nodes: variances [terms]. series: Chebyshev coefficients [degree + 1, terms] of p_r over the logarithm divided by
    `half`. error: the larger of the greatest relative error of 1/s and the greatest absolute error of a coordinate's
    divergence by ln s, on a grid of both variances.
    """

    order: float
    half: float
    nodes: FloatArray
    series: FloatArray
    error: float

    @property
    def terms(self) -> int:
        """Products in the sum."""
        return len(self.nodes)

    def first(self, logs: Tensor) -> Tensor:
        """p_r of the first variance, [terms, *shape] of logarithms of any shape."""
        x = logs / self.half
        found = [torch.ones_like(x), x]
        for _ in range(2, len(self.series)):
            found.append(2 * x * found[-1] - found[-2])
        series = torch.from_numpy(self.series).to(logs)
        stacked = torch.stack(found).flatten(1)
        return (series.T @ stacked).view(self.terms, *logs.shape)

    def second(self, variances: Tensor) -> tuple[Tensor, Tensor]:
        """1 / (l v - (l - 1) x_r) and ln(l - (l - 1) x_r / v) of the second variance, each [terms, *shape]."""
        nodes = torch.from_numpy((self.order - 1) * self.nodes).to(variances).view(-1, *(1,) * variances.ndim)
        s = self.order * variances - nodes
        return 1 / s, torch.log(s / variances)


@lru_cache(maxsize=256)
def widest(order: float, terms: int, tolerance: float) -> Expansion | None:
    """The sum of so many products that holds for the longest range at this tolerance; None where none does."""
    low, high = 0.0, min(0.5 * math.log(order / (order - 1)), 4.0)
    best = None
    for _ in range(_HALVINGS):
        half = 0.5 * (low + high)
        found = _built(order, terms, half)
        if found is not None and found.error <= tolerance:
            low, best = half, found
        else:
            high = half
    return best


def _built(order: float, terms: int, half: float) -> Expansion | None:
    places = np.cos(np.pi * (np.arange(_GRID) + 0.5) / _GRID)
    logs = half * places
    inverse, logarithm = _exact(order, logs, logs)
    size = np.abs(inverse).max(axis=0)
    both = np.concatenate([inverse / size, logarithm], axis=1)
    if not np.isfinite(both).all():
        return None
    left = np.linalg.svd(both, full_matrices=False)[0][:, :terms]
    chosen = qr(left.T, pivoting=True, mode="r")[1][:terms]
    shapes = left @ np.linalg.inv(left[chosen])
    series = chebyshev.chebfit(places, shapes, _DEGREE)
    check = np.linspace(-half, half, _CHECK)
    first = chebyshev.chebval(check / half, series).T  # [check, terms]
    inverse, logarithm = _exact(order, check, check)
    nodes = np.exp(logs[chosen])
    near_inverse, near_logarithm = _exact(order, logs[chosen], check)
    relative = float(np.abs(first @ near_inverse / inverse - 1).max())
    absolute = float(np.abs(first @ near_logarithm - logarithm).max()) / (2 * (order - 1))
    error = max(relative, absolute)
    return Expansion(order, half, nodes, series, error) if math.isfinite(error) else None


def _exact(order: float, first: FloatArray, second: FloatArray) -> tuple[FloatArray, FloatArray]:
    """1/s and ln(s / v_2), [first, second], of logarithms of variances."""
    v1, v2 = np.exp(first)[:, None], np.exp(second)[None, :]
    with np.errstate(invalid="ignore", divide="ignore"):
        s = order * v2 - (order - 1) * v1
        return 1 / s, np.log(s / v2)
