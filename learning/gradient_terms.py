"""What one parameter's gradient is made of, example by example, without forming it: outer products, rows, or itself.

The gradient of a weight matrix by one example is a sum of outer products over positions. Its squared norm is that of
two Gram matrices multiplied cell by cell ("ghost norm", Goodfellow 2015; Li et al. 2022, section 4), and a sum over
examples with a weight each is one matrix product: neither needs a matrix for every example. Where one parameter is used
in several places, as an embedding that is tied to the output layer, its gradient is the sum of several terms, and the
norm takes the inner products between them too.

Axes: [units, positions, features]. A unit with several examples has their positions one after another.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CELLS_AT_ONCE = 1 << 24
"""Cells of an array that inner products make for themselves at a time: 64 MiB in single precision."""


@dataclass(frozen=True, slots=True)
class Outer:
    """sum_t left[u, t] (x) right[u, t], a matrix [p, q]; left [units, t, p], right [units, t, q]."""

    left: Tensor
    right: Tensor

    @property
    def units(self) -> int:
        """How many units."""
        return self.left.shape[0]

    def size(self) -> Tensor:
        """Sum over positions of the norms of what is added, [units]: no rounding error is out of proportion to it."""
        sizes: Tensor = self.left.norm(dim=2) * self.right.norm(dim=2)
        return sizes.sum(dim=1)

    def dense(self, part: slice) -> Tensor:
        """The matrices of some units, [units, p, q]."""
        return torch.bmm(self.left[part].transpose(1, 2), self.right[part])

    def add_weighted(self, weights: Tensor, total: Tensor) -> None:
        """Add sum_u weights[u] gradient[u] to `total` [p, q]."""
        left = (self.left * weights[:, None, None]).flatten(0, 1)
        total.add_(left.transpose(0, 1) @ self.right.flatten(0, 1))


@dataclass(frozen=True, slots=True)
class Rows:
    """values[u, t] added to row index[u, t] of a matrix of `count` rows; index [units, t], values [units, t, q]."""

    index: Tensor
    values: Tensor
    count: int

    @property
    def units(self) -> int:
        """How many units."""
        return self.index.shape[0]

    def size(self) -> Tensor:
        """As of `Outer`."""
        sizes: Tensor = self.values.norm(dim=2)
        return sizes.sum(dim=1)

    def dense(self, part: slice) -> Tensor:
        """The matrices of some units, [units, count, q]."""
        index, values = self.index[part], self.values[part]
        made = values.new_zeros(len(index), self.count, values.shape[2])
        return made.scatter_add_(1, index[:, :, None].expand_as(values), values)

    def add_weighted(self, weights: Tensor, total: Tensor) -> None:
        """Add sum_u weights[u] gradient[u] to `total` [count, q]."""
        values = (self.values * weights[:, None, None]).flatten(0, 1)
        total.index_add_(0, self.index.flatten(), values)


@dataclass(frozen=True, slots=True)
class Dense:
    """The gradients themselves, [units, ...]. added [units]: sum of the norms of what they were added from."""

    values: Tensor
    added: Tensor

    @property
    def units(self) -> int:
        """How many units."""
        return self.values.shape[0]

    def size(self) -> Tensor:
        """As of `Outer`."""
        return self.added

    def dense(self, part: slice) -> Tensor:
        """The gradients of some units."""
        return self.values[part]

    def add_weighted(self, weights: Tensor, total: Tensor) -> None:
        """Add sum_u weights[u] gradient[u] to `total`."""
        total.add_(torch.tensordot(weights, self.values, dims=1))


Term = Outer | Rows | Dense


def inner(one: Term, other: Term) -> Tensor:
    """Inner products of two terms of one parameter, unit by unit: [units]."""
    match one, other:
        case Outer(), Outer() if not _forming_is_cheaper(one, other):
            return _in_parts(_outer_outer, one, other, one.left.shape[1] * other.left.shape[1])
        case Rows(), Rows():
            return _in_parts(_rows_rows, one, other, one.index.shape[1] * other.index.shape[1])
        case Outer(), Rows():
            return _in_parts(_outer_rows, one, other, one.left.shape[1] * other.index.shape[1])
        case Rows(), Outer():
            return inner(other, one)
        case Rows(), Dense():
            return _in_parts(_rows_dense, one, other, one.values[0].numel())
        case Dense(), Rows():
            return inner(other, one)
    return _in_parts(_formed, one, other, _cells(one) + _cells(other))


def squared_norms(terms: list[Term]) -> tuple[Tensor, Tensor]:
    """Of the sum of some terms of one parameter: squared norms, and (sum of `size`)^2, float64 [units]."""
    total = sum(
        (1 if i == j else 2) * inner(terms[i], terms[j]).double() for i in range(len(terms)) for j in range(i + 1)
    )
    size = sum(term.size().double() for term in terms)
    assert isinstance(total, Tensor)
    assert isinstance(size, Tensor)
    return total, size.square()


def _in_parts(work: Callable[[Any, Any, slice], Tensor], one: Term, other: Term, cells: int) -> Tensor:
    at_once = max(1, CELLS_AT_ONCE // max(1, cells))
    parts = [slice(start, start + at_once) for start in range(0, one.units, at_once)]
    return torch.cat([work(one, other, part) for part in parts]) if parts else torch.zeros(0)


def _outer_outer(one: Outer, other: Outer, part: slice) -> Tensor:
    left = torch.bmm(one.left[part], other.left[part].transpose(1, 2))
    return left.mul_(torch.bmm(one.right[part], other.right[part].transpose(1, 2))).sum(dim=(1, 2))


def _rows_rows(one: Rows, other: Rows, part: slice) -> Tensor:
    alike = one.index[part][:, :, None] == other.index[part][:, None, :]
    return torch.bmm(one.values[part], other.values[part].transpose(1, 2)).mul_(alike).sum(dim=(1, 2))


def _outer_rows(one: Outer, other: Rows, part: slice) -> Tensor:
    index = other.index[part]
    named = one.left[part].gather(2, index[:, None, :].expand(-1, one.left.shape[1], -1))
    return torch.bmm(one.right[part], other.values[part].transpose(1, 2)).mul_(named).sum(dim=(1, 2))


def _rows_dense(one: Rows, other: Dense, part: slice) -> Tensor:
    values = one.values[part]
    met = other.values[part].gather(1, one.index[part][:, :, None].expand_as(values))
    return (met * values).sum(dim=(1, 2))


def _formed(one: Term, other: Term, part: slice) -> Tensor:
    first = one.dense(part)
    second = first if other is one else other.dense(part)
    return (first * second).flatten(1).sum(dim=1)


def _cells(term: Term) -> int:
    if isinstance(term, Outer):
        return term.left.shape[2] * term.right.shape[2]
    if isinstance(term, Rows):
        return term.count * term.values.shape[2]
    return term.values[0].numel() if term.units else 0


def _forming_is_cheaper(one: Outer, other: Outer) -> bool:
    """Whether matrices [p, q] take fewer multiplications than Gram matrices of the positions."""
    positions, others = one.left.shape[1], other.left.shape[1]
    p, q = one.left.shape[2], one.right.shape[2]
    return (positions + (0 if one is other else others)) * p * q < positions * others * (p + q)
