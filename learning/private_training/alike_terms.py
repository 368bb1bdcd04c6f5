"""Terms of like shapes as one, for devices that take about as long for many small products as for one.

A model has few shapes of layers and many layers of each. What is worked out of every layer alone takes a device a dozen
calls for each, and it waits for most of them; layers of one shape are worked out in the same calls here. The formulas
are those of `learning.private_training.gradient_terms`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from learning.private_training.gradient_terms import Dense, Outer, Rows, Term

CELLS_TOGETHER: Final = 1 << 26
"""Numbers in the terms that are worked out together: 512 MiB in double precision."""


@dataclass(frozen=True, slots=True)
class Alike:
    """One term each of several parameters, one after another in `term`, whose units are those of all of them."""

    names: tuple[str, ...]
    term: Outer | Dense

    def each(self) -> list[Term]:
        """The terms one by one; they share memory with `term`."""
        units = self.term.units // len(self.names)
        return [_part(self.term, slice(start * units, (start + 1) * units)) for start in range(len(self.names))]

    def add_weighted(self, weights: Tensor, totals: Mapping[str, Tensor]) -> None:
        """Add sum over units of weights[u] gradient[u] to the total of each parameter; all of them float64."""
        count = len(self.names)
        first, second = (each.view(count, -1, *each.shape[1:]).double() for each in _tensors(self.term))
        if isinstance(self.term, Outer):
            first = first * weights[None, :, None, None]
            added = torch.bmm(first.flatten(1, 2).transpose(1, 2), second.flatten(1, 2))
        else:
            added = torch.matmul(weights, first.flatten(2)).view(count, *first.shape[2:])
        torch._foreach_add_([totals[name] for name in self.names], list(added.unbind()))


def alike(terms: Mapping[str, Sequence[Term]]) -> list[Alike]:
    """The parameters with one term each, those of like shapes together; those whose term is `Rows` are left out.

    Memory: what `CELLS_TOGETHER` allows, while one group is made.
    """
    shapes: dict[tuple[object, ...], list[str]] = {}
    for name, own in terms.items():
        if len(own) == 1 and not isinstance(own[0], Rows):
            shapes.setdefault((type(own[0]), *(each.shape for each in _tensors(own[0]))), []).append(name)
    found = []
    for names in shapes.values():
        cells = sum(each.numel() for each in _tensors(terms[names[0]][0]))
        most = max(1, CELLS_TOGETHER // max(1, cells))
        for start in range(0, len(names), most):
            some = names[start : start + most]
            found.append(Alike(tuple(some), _joined([terms[name][0] for name in some])))
    return found


def _tensors(term: Term) -> tuple[Tensor, Tensor]:
    match term:
        case Outer():
            return term.left, term.right
        case Dense():
            return term.values, term.added
        case Rows():
            return term.index, term.values


def _joined(terms: Sequence[Term]) -> Outer | Dense:
    kind = Outer if isinstance(terms[0], Outer) else Dense
    if len(terms) == 1:
        return kind(*_tensors(terms[0]))
    first, second = zip(*map(_tensors, terms), strict=True)
    return kind(torch.cat(first), torch.cat(second))


def _part(term: Outer | Dense, units: slice) -> Outer | Dense:
    first, second = _tensors(term)
    return type(term)(first[units], second[units])
