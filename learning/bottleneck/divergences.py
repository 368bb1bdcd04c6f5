"""How far the samplers of texts are apart: Renyi divergences of all ordered pairs, summed over all coordinates.

Between two texts, of order l, with a and b their pseudo-counts and B the multivariate beta function,

    D_l = ln(B(b) / B(a)) + ln(B(l a + (1 - l) b) / B(a)) / (l - 1)  +  the Gaussians', position by position,

infinite unless every l a_i + (1 - l) b_i > 0 and every s > 0 (`learning.bottleneck.gaussian_pairs`). Texts are aligned
by position, and a position that a text does not have is a pad (`Posterior.filled`): the divergence is that of samplers
that sample pads, too. A divergence is never averaged over positions or dimensions: what an observer sees is all of
them.

What is found here is a MEASUREMENT on the texts given, whatever its size: other texts may be further apart. It is no
guarantee, and no epsilon follows from it. `learning.bottleneck.supremum` has what holds for all texts.

Source: NVDP, section 3.3, equation 7.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggregation.errors import ConclaveError
from learning.bottleneck.gaussian_pairs import GaussianPairs
from learning.bottleneck.posterior import Posterior
from learning.errors import DataError

BLOCK: Final = 2048
"""Texts on either side of a block."""
TOLERANCE: Final = 1e-6
"""How exact a sum of products must be (`learning.bottleneck.expansion`)."""
QUANTILES: Final = (0.01, 0.25, 0.5, 0.75, 0.99)
_LOWEST, _HIGHEST, _DECADE = -8, 12, 200
"""The histogram's first and last power of ten, and its bins in each: a quantile is off by 1.2% at most."""
_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """Divergences of the texts of `rows` from those of `columns`, [rows, columns]. error: see `GaussianPairs`."""

    rows: slice
    columns: slice
    values: Tensor
    error: float


@dataclass(frozen=True, slots=True)
class Divergences:
    """What is found between all ordered pairs of different texts.

    order: l, of the divergence. pairs: how many. infinite: pairs infinitely far apart. largest: of all, infinity where
    a pair is; largest_finite: of the others, None where there is none. mean, mean_finite: likewise. quantiles: of all
    pairs, by a histogram of `_DECADE` bins in a power of ten from 1e-8 to 1e12: the upper edge of a bin, 1.2% above
    what it holds at most; 0 below the first, infinity among the infinite.
    error: see `GaussianPairs`. log_moments, log_squares: float64 [directions, texts], direction 0 with a text first, 1
    with it second: ln of the mean over the other texts of exp(k D), k = (l - 1) and 2 (l - 1).

    A measurement on these texts: see the module. Nothing here is an epsilon.
    """

    order: float
    texts: int
    pairs: int
    infinite: int
    largest: float
    largest_finite: float | None
    mean: float
    mean_finite: float | None
    quantiles: Mapping[float, float]
    error: float
    log_moments: NDArray[np.float64] = field(repr=False)
    log_squares: NDArray[np.float64] = field(repr=False)


def divergences(posterior: Posterior, order: float, *, block: int = BLOCK, tolerance: float = TOLERANCE) -> Divergences:
    """Measure all ordered pairs of texts.

    posterior: of two texts or more, filled here if it is not (`Posterior.filled`). order: above 1. block: texts on
    either side that are compared at a time. Memory besides the posterior: some 500 MiB at the default block and
    384 dimensions (benchmarks/nvdp_divergence.py), whatever the number of texts. Raises as `blocks`.
    """
    texts = len(posterior)
    if texts < 2:
        raise DataError("A divergence is between two texts. Give two or more.")
    counts = np.zeros((_HIGHEST - _LOWEST) * _DECADE + 2, np.int64)
    infinite, total, largest, finite = 0, 0.0, 0.0, 0
    moments = np.full((2, 2, texts), -np.inf)  # [k, direction, text]
    error = 0.0
    for each in blocks(posterior, order, block=block, tolerance=tolerance):
        values, error = each.values, each.error
        own = each.rows == each.columns
        if own:
            values.fill_diagonal_(0.0)
        for power in (1, 2):
            grown = values * (power * (order - 1))
            if own:
                grown.fill_diagonal_(-math.inf)
            for direction, texts_of in ((0, each.rows), (1, each.columns)):
                into = moments[power - 1, direction]
                into[texts_of] = np.logaddexp(into[texts_of], torch.logsumexp(grown, dim=1 - direction).numpy())
        held = torch.isfinite(values)
        infinite += int((~held).sum())
        some = values[held]
        if len(some):
            total += float(some.sum())
            largest = max(largest, float(some.max()))
            finite += len(some)
            places = ((torch.log10(some.clamp(min=1e-300)) - _LOWEST) * _DECADE).floor().long() + 1
            counts += torch.bincount(places.clamp(0, len(counts) - 1), minlength=len(counts)).numpy()
    diagonal = texts
    finite -= diagonal
    counts[0] -= diagonal
    pairs = texts * (texts - 1)
    return Divergences(
        order=order,
        texts=texts,
        pairs=pairs,
        infinite=infinite,
        largest=math.inf if infinite else largest,
        largest_finite=largest if finite else None,
        mean=math.inf if infinite else total / pairs,
        mean_finite=total / finite if finite else None,
        quantiles=_quantiles(counts, pairs, largest),
        error=error,
        log_moments=moments[0] - math.log(texts - 1),
        log_squares=moments[1] - math.log(texts - 1),
    )


def blocks(posterior: Posterior, order: float, *, block: int = BLOCK, tolerance: float = TOLERANCE) -> Iterator[Block]:
    """All ordered pairs, a block at a time.

    Raises `ConclaveError` for an order of 1 or less, or not finite, and `DataError` for a posterior with numbers that
    are not: of these no divergence is known.
    """
    if not (math.isfinite(order) and order > 1):
        raise ConclaveError(f"A Renyi divergence of order {order:g} is not computed here. Give an order above 1.")
    if block < 1:
        raise ConclaveError(f"Blocks of {block} texts make no sense. Give 1 or more.")
    full = posterior.detached().filled()
    for name, numbers in (("mean", full.mean), ("variance", full.log_variance), ("count", full.log_counts)):
        if numbers is not None and not bool(torch.isfinite(numbers).all()):
            raise DataError(f"A text's sampler has a {name} that is no finite number. Leave that text out.")
    gaussian = GaussianPairs.of(full.mean.flatten(1), full.log_variance.flatten(1), order, tolerance)
    dirichlet = None if full.log_counts is None else DirichletPairs.of(full.log_counts, order)
    texts = len(full)
    for top in range(0, texts, block):
        rows = slice(top, min(top + block, texts))
        for left in range(top, texts, block):
            columns = slice(left, min(left + block, texts))
            there, back = gaussian.block(rows, columns)
            if dirichlet is not None:
                there = dirichlet.added(there, rows, columns)
                back = there.T if rows == columns else dirichlet.added(back.T, columns, rows).T
            yield Block(rows, columns, there, gaussian.error)
            if rows != columns:
                yield Block(columns, rows, back.T, gaussian.error)


@dataclass(frozen=True, slots=True)
class DirichletPairs:
    """Divergences between the Dirichlets of texts. counts: float64 [texts, positions] that range over the texts; fixed:
    the sum of the others, the same in every text; log_beta: ln B [texts], without what is the same in all.
    """

    order: float
    counts: Tensor
    fixed: float
    log_beta: Tensor

    @classmethod
    def of(cls, log_counts: Tensor, order: float) -> "DirichletPairs":
        """Of logarithms of pseudo-counts [texts, positions]."""
        counts = torch.exp(log_counts.double())
        low, high = torch.aminmax(counts, dim=0)
        fixed = float(low[low == high].sum())
        ranging = counts[:, low != high].contiguous()
        total = ranging.sum(dim=1) + fixed
        return cls(order, ranging, fixed, torch.lgamma(ranging).sum(dim=1) - torch.lgamma(total))

    def block(self, rows: slice, columns: slice) -> Tensor:
        """Divergences of the texts of `rows` from those of `columns`, float64 [rows, columns]."""
        shape = len(self.counts[rows]), len(self.counts[columns])
        return self.added(torch.zeros(shape, dtype=torch.float64), rows, columns)

    def added(self, others: Tensor, rows: slice, columns: slice) -> Tensor:
        """The same, with what is already known of these texts, float64 [rows, columns]; rows that are infinite
        throughout are not looked at.
        """
        order, first, second = self.order, self.counts[rows], self.counts[columns]
        own, from_ = self.log_beta[rows], self.log_beta[columns]
        found = others.clone()
        step = max(1, _AT_ONCE // max(1, len(second) * first.shape[1]))
        open_ = torch.isfinite(others)
        if rows == columns:
            open_.fill_diagonal_(False)
        left = torch.nonzero(open_.any(dim=1)).flatten()
        for some in torch.split(left, step):
            mixed = order * first[some, None, :] + (1 - order) * second[None, :, :]
            never = (mixed <= 0).any(dim=2)
            total = mixed.sum(dim=2) + self.fixed
            beta = torch.lgamma(mixed).sum(dim=2) - torch.lgamma(total)
            values = from_[None, :] - own[some, None] + (beta - own[some, None]) / (order - 1)
            found[some] += values.clamp_(min=0).masked_fill_(never, math.inf)
        return found


def _quantiles(counts: NDArray[np.int64], pairs: int, largest: float) -> dict[float, float]:
    """The upper edges of the bins that quantiles fall into, the largest finite divergence at most; infinity beyond."""
    reached = np.cumsum(counts)
    found = {}
    for share in QUANTILES:
        place = int(np.searchsorted(reached, math.ceil(share * pairs)))
        if place == len(counts):
            found[share] = math.inf
        elif place == len(counts) - 1:
            found[share] = largest
        else:
            found[share] = min(10.0 ** (place / _DECADE + _LOWEST), largest) if place else 0.0
    return found
