"""The norms of one parameter's gradient, unit by unit, from its terms; and how far single precision lets them be off.

The squared norm of a sum of outer products is that of two Gram matrices multiplied cell by cell ("ghost norm",
Goodfellow 2015; Li et al. 2022, section 4). Of several terms it takes the inner products between them too. They may be
worked out in single precision: how far they are off is bounded (`off`) and counted into the norm.

Axes: as in `learning.private_training.gradient_terms`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from learning.private_training.gradient_terms import CELLS_AT_ONCE, PART, WIDE, Dense, Outer, Rows, Term

FORMED = 1 << 19
"""Cells of units' matrices that are made at a time on the processor for inner products alone."""
SINGLE, DOUBLE = 2.0**-24, 2.0**-53
"""Unit roundoffs."""

_AROUND = 8


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
    return _in_parts(_formed, one, other, one.cells + other.cells, most)


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
    work: Callable[[Any, Any, slice], Tensor], one: Term, other: Term, cells: int, most: int | None = None
) -> Tensor:
    """Some units at a time: as many as have at most so many cells."""
    at_once = max(1, (most or CELLS_AT_ONCE) // max(1, cells))
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


def _total(values: Tensor) -> Tensor:
    """[units, ...] to float64 [units]."""
    return values.flatten(1).sum(dim=1, dtype=torch.float64)


def _forming_is_cheaper(one: Outer, other: Outer) -> bool:
    """Whether matrices [p, q] take fewer multiplications than Gram matrices of the positions."""
    positions, others = one.left.shape[1], other.left.shape[1]
    p, q = one.left.shape[2], one.right.shape[2]
    return (positions + (0 if one is other else others)) * p * q < positions * others * (p + q)


def _on_processor(term: Term) -> bool:
    first = term.left if isinstance(term, Outer) else term.values
    return first.device.type == "cpu"
