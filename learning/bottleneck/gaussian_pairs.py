"""Renyi divergences between the Gaussians of all pairs of texts, summed over coordinates.

Of order l, between N(m_1, v_1) and N(m_2, v_2) in one coordinate,

    D_l = l (m_1 - m_2)^2 / (2 s) - (ln s - (1 - l) ln v_1 - l ln v_2) / (2 (l - 1)),   s = l v_2 - (l - 1) v_1,

infinite unless s > 0. Variances differ from text to text, so the sum over coordinates is no matrix product. Coordinates
are dealt with by how far their variances range over the texts:

- not at all: one product of means;
- a short way: 1/s and ln s as a sum of a few products (`learning.bottleneck.expansion`), so again matrix products,
  three a term;
- so far that a pair may be infinitely far apart: as the next, first of all, those of the longest range first, a few at
  a time; a tile of which every pair is found infinite is done;
- further: pair by pair, in tiles that stay in a processor's cache, one coordinate at a time for a whole tile and for
  both directions, which have (m_1 - m_2)^2 in common. The logarithm of a product of s over some coordinates replaces
  their logarithms one by one.

Means and logarithms of variances are first moved to the middle of their coordinate, which changes no divergence and
keeps float32 from losing digits; sums over coordinates are carried in float64.

Source: Gil, Alajaji & Linder 2013 (the formula); NVDP, section 3.3, equation 7.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from learning.bottleneck.expansion import MOST_TERMS, Expansion, widest

CHUNK: Final = 256
"""Coordinates that are dealt with at a time."""
TILE: Final = 256
"""Texts on either side of a tile."""
_FIRST: Final = (32, 32, 64, 128)
"""Coordinates of the first chunks in which pairs may be infinite: whatever is found there need not be looked at again.
"""
_SMALLEST: Final = 2.0**-24
"""What s is held above where it may be 0: float32 cannot tell a smaller one from 0."""
_EXPONENT: Final = 80.0
"""How far the logarithm of a product of float32 numbers may be from 0."""


@dataclass(frozen=True, slots=True)
class _Coordinates:
    """Which coordinates are dealt with in one way. expansion: None where pair by pair. fixed: no variance ranges.
    unsafe: s may be 0 or below. half: of the longest range.
    """

    columns: Tensor
    expansion: Expansion | None
    fixed: bool = False
    unsafe: bool = False
    half: float = 0.0


@dataclass(frozen=True, slots=True)
class GaussianPairs:
    """The divergences of one order between the texts of a posterior, block by block.

    mean, log_variance: [texts, coordinates], not copied. error: what a sum of products may be off by: a divergence D is
    exact to error * D + error * coordinates, besides the rounding of float32.
    """

    order: float
    mean: Tensor
    log_variance: Tensor
    ways: tuple[_Coordinates, ...]
    middles: Tensor
    centres: Tensor
    error: float

    @classmethod
    def of(cls, mean: Tensor, log_variance: Tensor, order: float, tolerance: float) -> "GaussianPairs":
        """Look at every coordinate's range once, and choose."""
        low, high = torch.aminmax(log_variance, dim=0)
        least, most = torch.aminmax(mean, dim=0)
        half = (high.double() - low.double()) / 2
        limit = math.log(order / (order - 1)) / 2
        left = (half > 0) | (most > least)
        ways = []
        fixed = left & (half == 0)
        if bool(fixed.any()):
            ways.append(_Coordinates(torch.nonzero(fixed).flatten(), None, fixed=True))
        left &= ~fixed
        error = 0.0
        for terms in range(2, MOST_TERMS + 1):
            expansion = widest(order, terms, tolerance)
            if expansion is None:
                continue
            held = left & (half <= expansion.half * (1 - 1e-6))
            if bool(held.any()):
                ways.append(_Coordinates(torch.nonzero(held).flatten(), expansion))
                error = max(error, expansion.error)
            left &= ~held
        unsafe = left & (half >= limit * (1 - 1e-5))
        if bool((safe := left & ~unsafe).any()):
            columns = torch.nonzero(safe).flatten()
            ways.append(_Coordinates(columns, None, half=float(half[columns].max())))
        if bool(unsafe.any()):
            columns = torch.nonzero(unsafe).flatten()
            columns = columns[torch.argsort(half[columns], descending=True, stable=True)]
            ways.insert(0, _Coordinates(columns, None, unsafe=True, half=float(half[columns[0]])))
        middles = ((high.double() + low.double()) / 2).float()
        return cls(order, mean, log_variance, tuple(ways), middles, mean.double().mean(dim=0).float(), error)

    def block(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """Divergences of the texts of `rows` from those of `columns`, and the other way, each float64 [rows, columns].

        Memory: four times the answer in float64, and about 4 * `CHUNK` * 3 * `MOST_TERMS` bytes a text.
        """
        same = rows == columns
        first = len(range(*rows.indices(len(self.mean))))
        second = len(range(*columns.indices(len(self.mean))))
        there = torch.zeros(first, second, dtype=torch.float64)
        back = there if same else torch.zeros_like(there)
        if same:
            there.fill_diagonal_(math.inf)  # nothing need be looked at for these
        with torch.inference_mode():
            for way in self.ways:
                for chosen in _chunks(way):
                    if bool(torch.isinf(there).all()) and bool(torch.isinf(back).all()):
                        continue
                    a = self._part(rows, chosen)
                    b = a if same else self._part(columns, chosen)
                    if way.fixed:
                        self._fixed(a, b, there, back)
                    elif way.expansion is not None:
                        _expanded(way.expansion, a, b, there, back)
                    else:
                        self._paired(way, a, b, there, back)
        if same:
            back = there.fill_diagonal_(0.0).T
        return there.clamp_(min=0), back.clamp(min=0)

    def _part(self, texts: slice, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Means and logarithms of variances [texts, chosen] of some coordinates, float32, moved to their middles."""
        middle = self.middles[chosen]
        mean = self.mean[texts].index_select(1, chosen).float() - self.centres[chosen]
        logs = self.log_variance[texts].index_select(1, chosen).float() - middle
        return mean * torch.exp(-0.5 * middle), logs

    def _fixed(self, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], there: Tensor, back: Tensor) -> None:
        m1, m2 = a[0], b[0]
        squares = m1.double().square().sum(1)[:, None] + m2.double().square().sum(1)[None, :]
        found = (squares - 2 * (m1 @ m2.T).double()) * (self.order / 2)
        there += found
        if back is not there:
            back += found

    def _paired(
        self, way: _Coordinates, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], there: Tensor, back: Tensor
    ) -> None:
        order, weight = self.order, 1 / (2 * (self.order - 1))
        sides = [_Side.of(each, order) for each in (a, b)]
        together = _together(order, way)
        for top in range(0, len(a[0]), TILE):
            for left in range(0 if back is not there else top, len(b[0]), TILE):
                one, other = slice(top, top + TILE), slice(left, left + TILE)
                mirrored = there[other, one].T if back is there else back[one, other]
                if _done(there[one, other], mirrored):
                    continue
                quadratic, logs, lows = _tile(sides[0], sides[1], one, other, together, way.unsafe)
                for way_round, into in enumerate((there[one, other], mirrored)):
                    if way_round and back is there and top == left:
                        continue
                    own, from_ = (sides[0].sums[one, None], sides[1].sums[None, other])
                    if way_round:
                        own, from_ = from_, own
                    found = quadratic[way_round].double() * (order / 2) - weight * logs[way_round]
                    found += weight * order * from_ - 0.5 * own
                    if way.unsafe:
                        found.masked_fill_(lows[way_round] <= 0, math.inf)
                    into += found


def _chunks(way: _Coordinates) -> Iterator[Tensor]:
    """The coordinates that are dealt with at a time."""
    sizes, left = [], len(way.columns)
    for size in _FIRST if way.unsafe else ():
        sizes.append(min(size, left))
        left -= sizes[-1]
    sizes += [min(CHUNK, left - at) for at in range(0, left, CHUNK)]
    yield from torch.split(way.columns, [size for size in sizes if size])


def _done(there: Tensor, back: Tensor) -> bool:
    """Whether every pair of a tile is infinite both ways already."""
    return bool(torch.isinf(there[0, 0])) and bool(torch.isinf(there).all()) and bool(torch.isinf(back).all())


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a tile, coordinate first: means, (1 - l) v, l v, each [coordinates, texts]; sums of ln v [texts]."""

    mean: Tensor
    less: Tensor
    more: Tensor
    sums: Tensor

    @classmethod
    def of(cls, part: tuple[Tensor, Tensor], order: float) -> "_Side":
        variance = torch.exp(part[1]).T.contiguous()
        return cls(part[0].T.contiguous(), (1 - order) * variance, order * variance, part[1].double().sum(dim=1))

    def views(self, texts: slice, across: int) -> list[Sequence[Tensor]]:
        return [each[:, texts].unsqueeze(across).unbind(0) for each in (self.mean, self.less, self.more)]


def _tile(
    a: _Side, b: _Side, rows: slice, columns: slice, together: int, unsafe: bool
) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Sums of (m_1 - m_2)^2 / s and of ln s, and the least s, each for both directions, [rows, columns]."""
    m1, less1, more1 = a.views(rows, 2)
    m2, less2, more2 = b.views(columns, 1)
    shape = (m1[0].shape[0], m2[0].shape[1])
    square, s = torch.empty(shape), torch.empty(shape)
    quadratic = [torch.zeros(shape) for _ in range(2)]
    product = [torch.ones(shape) for _ in range(2)]
    lows = [torch.full(shape, math.inf) for _ in range(2)] if unsafe else []
    logs = [torch.zeros(shape, dtype=torch.float64) for _ in range(2)]
    for place in range(len(m1)):
        torch.sub(m1[place], m2[place], out=square)
        torch.mul(square, square, out=square)
        for way in range(2):
            if way:
                torch.add(more1[place], less2[place], out=s)
            else:
                torch.add(less1[place], more2[place], out=s)
            if unsafe:
                torch.minimum(lows[way], s, out=lows[way])
                s.clamp_(min=_SMALLEST)
            quadratic[way].addcdiv_(square, s)
            product[way].mul_(s)
        if (place + 1) % together == 0 or place + 1 == len(m1):
            for way in range(2):
                logs[way] += torch.log(product[way])
                product[way].fill_(1.0)
    return quadratic, logs, lows


def _together(order: float, way: _Coordinates) -> int:
    """How many s may be multiplied in float32."""
    high = math.log(order) + way.half
    if way.unsafe:
        low = -math.log(_SMALLEST)
    else:
        low = -math.log(max(order * math.exp(-way.half) - (order - 1) * math.exp(way.half), _SMALLEST))
    return max(1, min(32, int(_EXPONENT / max(high, low, 1e-9))))


def _expanded(
    expansion: Expansion, a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], there: Tensor, back: Tensor
) -> None:
    order = expansion.order
    directions = [(a, b, there)] if back is there else [(a, b, there), (b, a, back.T)]
    for (m1, u1), (m2, u2), into in directions:
        p = expansion.first(u1)
        inverse, logarithm = expansion.second(torch.exp(u2))
        mp, mk = m1 * p, m2 * inverse
        left = torch.cat([(m1 * mp).transpose(0, 1), p.transpose(0, 1), mp.transpose(0, 1)], dim=1).flatten(1)
        rest = (order / 2) * (m2 * mk) - logarithm / (2 * (order - 1))
        right = torch.cat(
            [(order / 2 * inverse).transpose(0, 1), rest.transpose(0, 1), (-order * mk).transpose(0, 1)], dim=1
        ).flatten(1)
        into += (left @ right.T).double()
        into += 0.5 * (u2.double().sum(dim=1)[None, :] - u1.double().sum(dim=1)[:, None])
