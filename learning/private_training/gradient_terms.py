"""What one parameter's gradient is made of, example by example, without forming it: outer products, rows, or itself.

The gradient of a weight matrix by one example is a sum of outer products over positions: a sum over examples with a
weight each is one matrix product, and the norms take small Gram matrices (`learning.private_training.term_norms`), so
that neither needs a matrix for every example. Where one parameter is used in several places, as an embedding that is
tied to the output layer, its gradient is the sum of several terms.

All is recorded in single precision. A unit's own matrix may be worked out in it, for how far it is off is bounded and
counted into the norm; a matrix of what a pass recorded in bfloat16 may be made in that
(`learning.private_training.reduced_products`). What adds several units together is in double.

Axes: [units, positions, features]. A unit with several examples has their positions one after another.
"""

from collections.abc import Iterator
from dataclasses import dataclass

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
WIDE = 2048
"""Over more features, an inner product is added up in double precision from parts in single precision: the rounding of
one sum of so many would be too large.
"""
PART = 128
"""Features of such a part."""
LEAST = 2.0**-40
"""Added to every norm: it bounds squares that underflow in single precision, times everything added with them."""

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

    @property
    def cells(self) -> int:
        """Of one unit's matrix."""
        return self.left.shape[2] * self.right.shape[2]

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
        if on_processor and self.cells > NEAR:
            self._add_by_rows(weights, total)
            return
        into = total.T if self._turned else total
        for part in self._parts(self.cells, on_processor):
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

    @property
    def cells(self) -> int:
        """As of `Outer`."""
        return self.count * self.values.shape[2]

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

    @property
    def cells(self) -> int:
        """As of `Outer`."""
        return self.values[0].numel() if self.units else 0

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


def _single(values: Tensor) -> int:
    """Roundings in single precision in an inner product over the features of [..., features]."""
    return values.shape[2] if values.shape[2] <= WIDE else PART


def _norms(values: Tensor) -> Tensor:
    """At least the norms along the last axis, float64: with what squares in single precision lose below its range."""
    found: Tensor = values.norm(dim=-1).double()
    return found.mul_(_MORE).add_(LEAST)


def _emptied(values: Tensor, units: Tensor) -> Tensor:
    return values.masked_fill(units.view(-1, *[1] * (values.ndim - 1)), 0)
