"""What one parameter's gradient is made of, example by example, without forming it: outer products, rows, or itself.

The gradient of a weight matrix by one example is a sum of outer products over positions. Its squared norm is that of
two Gram matrices multiplied cell by cell ("ghost norm", Goodfellow 2015; Li et al. 2022, section 4), and a sum over
examples with a weight each is one matrix product: neither needs a matrix for every example. Where one parameter is used
in several places, as an embedding that is tied to the output layer, its gradient is the sum of several terms, and the
norm takes the inner products between them too.

All is recorded in single precision. A unit's own matrix and inner products may be worked out in it, for how far they
are off is bounded (`off`) and counted into the norm; a matrix of what a pass recorded in bfloat16 may be made in that
(`learning.private_training.reduced_products`). What adds several units together is in double.

Axes: [units, positions, features]. A unit with several examples has their positions one after another.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learning.private_training import reduced_products

CELLS_AT_ONCE = 1 << 23
"""Cells of a temporary array for inner products: 64 MiB in double precision."""
FEW, FEW_NARROW, FEW_REDUCED, FEW_ON_DEVICE = 40, 4, 16, 16
"""For units with fewer positions, a product in double precision costs less than a matrix for every unit: on the
processor, there of a matrix with fewer than `NARROW` rows or columns, there where matrices are made in bfloat16, and on
a device.
"""
NARROW = 64
NEAR = 1 << 16
"""Cells of units' matrices that are made at a time on the processor, or of what products in double precision are given;
they fit its cache.
"""
REDUCED = 1 << 20
"""Cells of a matrix that are made at a time in bfloat16."""
FORMED = 1 << 19
"""Cells of units' matrices that are made at a time on the processor for inner products alone."""
WIDE = 2048
"""Over more features, an inner product is added up in double precision from parts in single precision: the rounding of
one sum of so many would be too large.
"""
PART = 128
"""Features of such a part."""
SINGLE, DOUBLE = 2.0**-24, 2.0**-53
"""Unit roundoffs."""
LEAST = 2.0**-40
"""Added to every norm: it bounds squares that underflow in single precision, times everything added with them."""

_AROUND = 8
_MORE = 1.01
"""Factor on norms in single precision that is larger than their error."""


@dataclass(frozen=True, slots=True)
class Outer:
    """sum_t left[u, t] (x) right[u, t], a matrix [p, q]; left [units, t, p], right [units, t, q].

    reduced: all numbers are such as bfloat16 holds.
    Source: the ghost norm (Goodfellow 2015; Li et al. 2022, section 4).
    """

    left: Tensor
    right: Tensor
    reduced: bool = False

    @property
    def units(self) -> int:
        """How many units."""
        return self.left.shape[0]

    @property
    def positions(self) -> int:
        """Of one unit."""
        return self.left.shape[1]

    def size(self) -> Tensor:
        """At least the sum over positions of the norms of what is added, float64 [units]: all rounding is within parts
        of it.
        """
        return (_norms(self.left) * _norms(self.right)).sum(dim=1)

    @property
    def additions(self) -> int:
        """Roundings in single precision, one after another, in the making of a gradient or of an inner product."""
        return max(_single(self.left) + _single(self.right), 2 * self.left.shape[1])

    def dense(self, part: slice) -> Tensor:
        """The matrices of some units, [units, p, q]."""
        made = self.made(part)
        return made.transpose(1, 2) if self._turned else made

    def add_weighted(self, weights: Tensor, total: Tensor) -> None:
        """Add sum_u weights[u] gradient[u] to `total`, float64 [p, q].

        Of few positions the products are in double precision; of many, each unit's own matrix is made as `dense` makes
        it, or in bfloat16 (`rounding`), and the matrices are added in double: in neither does a unit's rounding reach
        another's part.
        """
        if self.rounding:
            self._add_reduced(weights, total)
            return
        on_processor = total.device.type == "cpu"
        wide = FEW if min(total.shape) >= NARROW else FEW_NARROW
        if self.positions < (wide if on_processor else FEW_ON_DEVICE):
            for part in self._parts(self.positions * max(total.shape), on_processor):
                left = (self.left[part].double() * weights[part, None, None]).flatten(0, 1)
                total.addmm_(left.transpose(0, 1), self.right[part].double().flatten(0, 1))
            return
        if on_processor and _cells(self) > NEAR:
            self._add_by_rows(weights, total)
            return
        into = total.T if self._turned else total
        for part in self._parts(_cells(self), on_processor):
            into.add_(torch.tensordot(weights[part], self.made(part).double(), dims=1))

    def _add_by_rows(self, weights: Tensor, total: Tensor) -> None:
        """The same, some rows of one unit's matrix at a time."""
        rows = max(1, NEAR // total.shape[1])
        for left, right, weight in zip(self.left, self.right, weights.tolist(), strict=True):
            for start in range(0, len(total), rows):
                some = slice(start, start + rows)
                total[some].add_(left[:, some].T @ right, alpha=weight)

    def _add_reduced(self, weights: Tensor, total: Tensor) -> None:
        """The same, of matrices that are made in bfloat16."""
        lefts, rights = self.left.bfloat16(), self.right.bfloat16()
        made_at_once, at_once = (max(1, cells // total.shape[1]) for cells in (REDUCED, NEAR))
        for left, right, weight in zip(lefts, rights, weights.tolist(), strict=True):
            for first in range(0, len(total), made_at_once):
                into = total[first : first + made_at_once]
                made = reduced_products.made(left[:, first : first + made_at_once], right)
                for start in range(0, len(into), at_once):
                    into[start : start + at_once].add_(made[start : start + at_once], alpha=weight)

    @property
    def rounding(self) -> float:
        """How far `add_weighted` rounds a unit's matrix after it is made, at most, in parts of the matrix' norm."""
        p, q = self.left.shape[2], self.right.shape[2]
        if not self.reduced or self.left.device.type != "cpu" or self.positions < FEW_REDUCED or min(p, q) < NARROW:
            return 0.0
        rows = max(1, REDUCED // q)
        shapes = {min(rows, p - first) for first in range(0, p, rows)}
        tried = all(reduced_products.relied_on(self.positions, each, q) for each in shapes)
        return reduced_products.ROUNDING if tried else 0.0

    @property
    def _turned(self) -> bool:
        """Whether matrices are made as [q, p]: where few, rows take less time than columns."""
        return self.right.shape[2] < min(NARROW, self.left.shape[2])

    def made(self, part: slice) -> Tensor:
        """The matrices of some units, [units, p, q], or turned, [units, q, p], where q is small."""
        first, second = (self.right, self.left) if self._turned else (self.left, self.right)
        return torch.bmm(first[part].transpose(1, 2), second[part])

    def _parts(self, cells: int, on_processor: bool) -> Iterator[slice]:
        """The units, some at a time. cells: of one."""
        at_once = max(1, (NEAR if on_processor else CELLS_AT_ONCE) // max(1, cells))
        for start in range(0, self.units, at_once):
            yield slice(start, start + at_once)

    def without(self, units: Tensor) -> "Outer":
        """The same with zeros for the units that a mask [units] marks, whatever they hold."""
        return Outer(_emptied(self.left, units), _emptied(self.right, units), self.reduced)

    def to(self, device: torch.device) -> "Outer":
        """The same on a device."""
        return Outer(self.left.to(device), self.right.to(device), self.reduced)


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

    @property
    def positions(self) -> int:
        """Of one unit."""
        return self.index.shape[1]

    def size(self) -> Tensor:
        """As of `Outer`."""
        return _norms(self.values).sum(dim=1)

    @property
    def additions(self) -> int:
        """As of `Outer`."""
        return max(_single(self.values), 2 * self.values.shape[1])

    def dense(self, part: slice) -> Tensor:
        """The matrices of some units, [units, count, q]."""
        index, values = self.index[part], self.values[part]
        made = values.new_zeros(len(index), self.count, values.shape[2])
        return made.scatter_add_(1, index[:, :, None].expand_as(values), values)

    def add_weighted(self, weights: Tensor, total: Tensor) -> None:
        """Add sum_u weights[u] gradient[u] to `total`, float64 [count, q]."""
        values = (self.values.double() * weights[:, None, None]).flatten(0, 1)
        total.index_add_(0, self.index.flatten(), values)

    def without(self, units: Tensor) -> "Rows":
        """As of `Outer`."""
        return Rows(self.index, _emptied(self.values, units), self.count)

    def to(self, device: torch.device) -> "Rows":
        """As of `Outer`."""
        return Rows(self.index.to(device), self.values.to(device), self.count)


@dataclass(frozen=True, slots=True)
class Dense:
    """The gradients themselves, [units, ...]. added [units]: sum of the norms of what they were added from."""

    values: Tensor
    added: Tensor

    @property
    def units(self) -> int:
        """How many units."""
        return self.values.shape[0]

    @property
    def positions(self) -> int:
        """Of one unit: what it has is added up already."""
        return 1

    def size(self) -> Tensor:
        """As of `Outer`."""
        return self.added.double() * _MORE

    @property
    def additions(self) -> int:
        """As of `Outer`."""
        return 0

    def dense(self, part: slice) -> Tensor:
        """The gradients of some units."""
        return self.values[part]

    def add_weighted(self, weights: Tensor, total: Tensor) -> None:
        """Add sum_u weights[u] gradient[u] to `total`, float64."""
        total.add_(torch.tensordot(weights, self.values.double(), dims=1))

    def without(self, units: Tensor) -> "Dense":
        """As of `Outer`."""
        return Dense(_emptied(self.values, units), _emptied(self.added, units))

    def to(self, device: torch.device) -> "Dense":
        """As of `Outer`."""
        return Dense(self.values.to(device), self.added.to(device))


Term = Outer | Rows | Dense


def inner(one: Term, other: Term) -> Tensor:
    """Inner products of two terms of one parameter, unit by unit: float64 [units].

    Source: the ghost norm (Goodfellow 2015; Li et al. 2022, section 4), between two terms.
    """
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
    most = FORMED if _on_processor(one) else CELLS_AT_ONCE
    return _in_parts(_formed, one, other, _cells(one) + _cells(other), most)


@dataclass(frozen=True, slots=True)
class Norms:
    """Of the sum of some terms of one parameter, float64 [units] each: squared norms, sums of `size`, and what rounding
    after the making adds to a norm at most; and `additions`.

    With n additions a squared norm is right to `off`(n) size^2, and the gradient that `add_weighted` adds has the norm
    of the true one to off(n) size + rounded.
    """

    squared: Tensor
    size: Tensor
    rounded: Tensor
    additions: int


def norms_of(terms: list[Term]) -> Norms:
    """The norms of the sum of some terms of one parameter.

    Source: as for `inner`; the error bound is Higham 2002, see `off`.
    """
    own, sizes = [inner(term, term) for term in terms], [term.size() for term in terms]
    squared, size = torch.stack(own).sum(dim=0), torch.stack(sizes).sum(dim=0)
    for i, term in enumerate(terms):
        for other in terms[:i]:
            squared = squared + 2 * inner(term, other)
    additions = max(term.additions for term in terms)
    lost, rounded = off(additions), torch.zeros_like(size)
    for term, square, each in zip(terms, own, sizes, strict=True):
        if isinstance(term, Outer) and term.rounding:  # of its own norm, however much of it the other terms take away
            rounded += term.rounding * ((square.clamp(min=0) + lost * each.square()).sqrt() + lost * each)
    return Norms(squared, size, rounded, additions)


def off(additions: int, unit: float = SINGLE) -> float:
    """Higham's gamma_n = n u / (1 - n u): no sum of n products, in any order, is off by more of their sizes' sum.

    Some roundings before and after the sum are counted in.
    Source: Higham 2002, "Accuracy and Stability of Numerical Algorithms", section 3.1 and lemma 3.1.
    """
    part = (additions + _AROUND) * unit
    return part / (1 - part) if part < 0.5 else math.inf


def _in_parts(
    work: Callable[[Any, Any, slice], Tensor], one: Term, other: Term, cells: int, most: int = CELLS_AT_ONCE
) -> Tensor:
    at_once = max(1, most // max(1, cells))
    parts = [slice(start, start + at_once) for start in range(0, one.units, at_once)]
    return torch.cat([work(one, other, part) for part in parts]) if parts else one.size()


def _outer_outer(one: Outer, other: Outer, part: slice) -> Tensor:
    left = _products(one.left[part], other.left[part])
    return _total(left.mul_(_products(one.right[part], other.right[part])))


def _rows_rows(one: Rows, other: Rows, part: slice) -> Tensor:
    alike = one.index[part][:, :, None] == other.index[part][:, None, :]
    return _total(_products(one.values[part], other.values[part]).mul_(alike))


def _outer_rows(one: Outer, other: Rows, part: slice) -> Tensor:
    index = other.index[part]
    named = one.left[part].gather(2, index[:, None, :].expand(-1, one.left.shape[1], -1))
    return _total(_products(one.right[part], other.values[part]).mul_(named))


def _rows_dense(one: Rows, other: Dense, part: slice) -> Tensor:
    values = one.values[part]
    met = other.values[part].gather(1, one.index[part][:, :, None].expand_as(values))
    return _total(met.double() * values)


def _formed(one: Term, other: Term, part: slice) -> Tensor:
    if other is one and isinstance(one, Outer):  # in any order: each cell is squared
        first = one.made(part).double()
        return _total(first.square_())
    first = one.dense(part).to(torch.float64, copy=True)
    return _total(first.mul_(first if other is one else other.dense(part)))


def _products(one: Tensor, other: Tensor) -> Tensor:
    """[units, t, features] and [units, s, features] to inner products, [units, t, s]; of many features float64.

    A part's products are off by at most `off`(PART) of the sizes of what they add, so their sum is by no more of them
    all.
    """
    if one.shape[2] <= WIDE:
        return torch.bmm(one, other.transpose(1, 2))
    total = torch.zeros(len(one), one.shape[1], other.shape[1], dtype=torch.float64, device=one.device)
    for start in range(0, one.shape[2], PART):
        some = slice(start, start + PART)
        total += torch.bmm(one[:, :, some], other[:, :, some].transpose(1, 2))
    return total


def _single(values: Tensor) -> int:
    """Roundings in single precision in an inner product over the features of [..., features]."""
    return values.shape[2] if values.shape[2] <= WIDE else PART


def _total(values: Tensor) -> Tensor:
    """[units, ...] to float64 [units]."""
    return values.flatten(1).sum(dim=1, dtype=torch.float64)


def _norms(values: Tensor) -> Tensor:
    """At least the norms along the last axis, float64: with what squares in single precision lose below its range."""
    found: Tensor = values.norm(dim=-1).double()
    return found.mul_(_MORE).add_(LEAST)


def _emptied(values: Tensor, units: Tensor) -> Tensor:
    return values.masked_fill(units.view(-1, *[1] * (values.ndim - 1)), 0)


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


def _on_processor(term: Term) -> bool:
    first = term.left if isinstance(term, Outer) else term.values
    return first.device.type == "cpu"
