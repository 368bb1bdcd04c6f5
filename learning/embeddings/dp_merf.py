"""The DP-MERF baseline (Harder, Adamczewski & Park 2021): one private mean embedding, and a student that matches it.

Every pair of words (i, j) has the public random feature r_i r_j' (an outer product, so that the kernel of two pairs is
the product of the kernels of their words). A unit with pair counts N_u has the embedding R' N_u R, R [V, F] the words'
features. The clipped sum of all units' embeddings is released once under Gaussian noise; then the student's own
embedding is brought near to it: post-processing.

The counts are symmetric, and so are the embeddings: the upper triangle says all. Its entries off the diagonal are
multiplied by sqrt(2), which keeps the L2 norm: under the same clip and noise it says as much as the full matrix with
its two halves averaged, in half the numbers.

The student's counts are N_ij = exp(a_i + b_j + t_i + t_j + x_i . y_j), and what is minimised over t, x and y is

    1/2 sum_kl (R' N R - noisy)_kl^2 / v_kl
      + FREQUENCIES/2 sum (t_i - mean)^2  +  VECTORS/2 sum |x_i - x0_i|^2 + |y_i - y0_i|^2.

a, b, x0 and y0 are a public model's joint distribution, scaled to the noisy embedding; without one, Zipf's law over the
vocabulary's public order and, as a start, small random vectors. The features are first turned to the axes in which the
words' public second moment R' diag(p) R is diagonal, with eigenvalues l_k: there v_kl = sigma^2 + BURSTS total l_k l_l,
the noise, and what text of that length strays by itself from any such model. With plain squares, as published (v
constant), the straying of the frequent words was fitted, and little or nothing gained on the public model.

Further from the paper: the generator is a table of counts and not a network that draws samples, so its embedding is
exact; and F is far below V * V, so that words interfere: a pair's count cannot be read off, only fitted. That is the
price for a vector of F (F + 1) / 2 numbers in place of V * V counts.

How well, WikiText-2, a sentence as the unit (21,638), V = 2,000, F = 256, clip 10, delta 1e-5, one draw of the noise:
perplexity 220 / 216 / 215 at epsilon 1 / 2 / 4 from a public model of the novels (260 by itself), 286 / 278 / 279
without one. The exact unigram has 200: the baseline does not reach it. F = 64 gives 237 / 236 / 236.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from aggregation.arrays import IntArray
from aggregation.errors import IntegrityError
from aggregation.mechanisms.vectors import VectorMechanism
from learning.embeddings.cooccurrence import alike
from learning.embeddings.denoising import BLOCK_CELLS, FREQUENCIES, VECTORS, ZIPF_OFFSET
from learning.embeddings.optimising import fixed_threads, minimise
from learning.embeddings.skipgram import SkipGram

BURSTS = 100.0
"""How much more the text strays from the model than independent pairs would: a word brings those of its whole window,
and a log-bilinear model leaves some of the most frequent pairs unexplained. Chosen on WikiText-2."""

_SLICE = 1 << 22  # numbers of embeddings in memory at a time while a party's part is summed: 32 MiB
_START = 0.1
_CURVATURE = 0.1  # typical squared coordinate, weighted by frequency; it only sets the scale of the steps
_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class Features:
    """The words' public features: rows [V, F] of unit norm, float64. Raises `IntegrityError` for anything else.

    They must not depend on private text: they are public, and give the embedding's numbers their meaning.
    Source: DP-MERF (Harder, Adamczewski & Park 2021).
    """

    rows: NDArray[np.float64]

    def __post_init__(self) -> None:
        rows = self.rows
        if rows.ndim != 2 or rows.shape[0] < 2 or rows.shape[1] < 1 or rows.dtype != np.float64:
            raise IntegrityError(
                f"Features are a float64 array [words, width] of two words or more, not {rows.dtype} of {rows.shape}."
            )
        if not np.allclose(np.square(rows).sum(axis=1), 1.0, rtol=0, atol=1e-9):  # NaN is not close either
            raise IntegrityError("The features of every word must have norm 1.")

    @classmethod
    def from_seed(cls, size: int, width: int, seed: int) -> "Features":
        """Random signs over sqrt(width), float64 [size, width]: the kernel of two words has mean 0 and variance
        1/width.

        Random features (Rahimi & Recht 2007), as DP-MERF uses them, here of the kernel that is 1 for equal words and 0
        for others.
        """
        signs = np.random.default_rng(seed).integers(0, 2, (size, width)) * 2.0 - 1.0
        return cls(np.asarray(signs / math.sqrt(width), dtype=np.float64))

    @property
    def width(self) -> int:
        """F, numbers a word."""
        return int(self.rows.shape[1])

    @property
    def dimension(self) -> int:
        """Numbers of an embedding: F (F + 1) / 2."""
        return self.width * (self.width + 1) // 2


def embed(units: sparse.csr_array, features: Features) -> NDArray[np.float64]:
    """The embedding of every unit, [units, F (F + 1) / 2]: the upper triangle of R' N_u R, row by row, sqrt(2) times
    off the diagonal.

    units: symmetric pair counts [units, V * V] as of `unit_counts`. A unit's embedding depends on that unit alone and
    is linear in its counts; its norm is that of the full matrix, bounded by nothing yet: `VectorMechanism` clips it.
    Memory beside the result: F numbers for each centre of each unit. Give a large shard in slices, or use `contribute`.
    Raises `IntegrityError` where units and features do not fit.
    Source: DP-MERF (Harder, Adamczewski & Park 2021); the module says where this departs from it.
    """
    size, width = features.rows.shape
    if not isinstance(units, sparse.csr_array) or units.ndim != 2 or units.shape[1] != size * size:
        raise IntegrityError(f"Units must be a csr_array [units, {size} * {size}] of pair counts.")
    owner = np.repeat(np.arange(units.shape[0]), np.diff(units.indptr))
    centre, context = np.divmod(units.indices.astype(np.int64), size)
    places, row = np.unique(owner * size + centre, return_inverse=True)  # (unit, centre), in order
    near = sparse.csr_array((units.data.astype(np.float64), (row, context)), shape=(places.size, size)) @ features.rows
    ends = np.searchsorted(places, np.arange(units.shape[0] + 1) * size)
    upper = np.triu_indices(width)
    weights = np.where(upper[0] == upper[1], 1.0, math.sqrt(2.0))
    out = np.zeros((units.shape[0], features.dimension))
    for unit in np.flatnonzero(np.diff(ends)):
        part = slice(ends[unit], ends[unit + 1])
        out[unit] = (features.rows[places[part] % size].T @ near[part])[upper] * weights
    return out


def contribute(units: sparse.csr_array, features: Features, mechanism: VectorMechanism) -> IntArray:
    """A party's part of the sum of embeddings, [F (F + 1) / 2] on the mechanism's grid.

    Memory: 32 MiB of embeddings at a time. Adding or removing one unit, a row of `units`, changes the result by at most
    `mechanism.sensitivity` in L2: every embedding is clipped by the mechanism first. Raises `IntegrityError` like
    `embed`.
    Source: DP-MERF (Harder, Adamczewski & Park 2021).
    """
    total = np.zeros(features.dimension, dtype=np.int64)
    step = max(1, _SLICE // features.dimension)
    for rows, times in alike(units):
        for first in range(0, rows.shape[0], step):
            total += times * mechanism.contribute(embed(rows[first : first + step], features))
    return total


def fit_sketch(
    noisy: NDArray[np.float64],
    sigma: float,
    features: Features,
    *,
    start: SkipGram | None = None,
    dimension: int = 100,
    seed: int,
    steps: int = 80,
    on_step: Callable[[float], None] | None = None,
) -> SkipGram:
    """Fit the student whose embedding is nearest to the noisy one.

    noisy: [F (F + 1) / 2], the released sum, in counts. sigma: standard deviation of the noise on each number.
    start: a public model of the same vocabulary and `dimension`, to which the fit is drawn. on_step: told the fraction
    done. The same seed gives the same bytes on the same machine.
    Post-processing: it costs no privacy. Memory: 4 bytes for each of V * V cells, and blocks of 16 MiB.
    Raises `IntegrityError` where shapes do not fit, numbers are not finite or sigma is not above 0.
    Source: DP-MERF (Harder, Adamczewski & Park 2021); the weighted squares are our own, see the module.
    """
    size = len(features.rows)
    if noisy.shape != (features.dimension,) or not np.isfinite(noisy).all():
        raise IntegrityError(f"A noisy embedding is {features.dimension} finite numbers, not of shape {noisy.shape}.")
    if not (math.isfinite(sigma) and sigma > 0):
        raise IntegrityError(f"The noise of a noisy embedding has a positive standard deviation, not {sigma}.")
    if start is not None and start.inputs.shape != (size, dimension):
        raise IntegrityError(f"The model to start from is {start.inputs.shape}, this one [{size}, {dimension}].")
    with torch.no_grad(), fixed_threads(size):
        return _Problem(noisy, sigma, features, start, dimension, seed).solve(steps, on_step)


class _Problem:
    """The objective of one noisy embedding: counts N in `cells`, what R' N R shall be in `wanted`."""

    def __init__(
        self,
        noisy: NDArray[np.float64],
        sigma: float,
        features: Features,
        start: SkipGram | None,
        dimension: int,
        seed: int,
    ):
        self.size, width = features.rows.shape
        self.rows = torch.from_numpy(features.rows).float()
        upper = np.triu_indices(width)
        half = np.zeros((width, width))
        half[upper] = np.where(upper[0] == upper[1], 0.5, math.sqrt(0.5)) * noisy
        self.wanted = torch.from_numpy(half + half.T).float()
        self.cells = torch.empty(self.size, self.size)
        self.ceiling = math.inf
        self.by_centre, self.by_context, self.home, self.vectors = self._begin(start, dimension, seed)

        self._fill(torch.zeros(self.size), self.vectors)
        moments = self.rows.T @ (self.cells.sum(1)[:, None] * self.rows)
        spread, axes = torch.linalg.eigh(moments)
        self.rows = self.rows @ axes
        self.wanted = axes.T @ self.wanted @ axes
        alone = self._embedding()
        total = max(float((alone * self.wanted).sum() / alone.square().sum()), sigma)
        self.by_centre += math.log(total)
        self.cells *= total
        self.ceiling = math.log(total)  # of one cell: no cell holds more than all
        self.variance = sigma * sigma + BURSTS * total * torch.outer(spread, spread).clamp_(min=0)

    def _blocks(self) -> Iterator[slice]:
        rows = max(1, BLOCK_CELLS // self.size)
        for first in range(0, self.size, rows):
            yield slice(first, min(first + rows, self.size))

    def _begin(self, start: SkipGram | None, dimension: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """a [V], b [V], where the ridge draws the vectors to and where they start [2 V, d]; N sums to 1."""
        if start is None:
            zipf = torch.log_softmax(-torch.log(torch.arange(self.size) + ZIPF_OFFSET), dim=0)
            vectors = torch.randn(2 * self.size, dimension, generator=torch.Generator().manual_seed(seed)) * _START
            return zipf.clone(), zipf, torch.zeros_like(vectors), vectors
        bias = torch.from_numpy(start.bias)
        home = torch.from_numpy(np.concatenate([start.inputs, start.outputs]))
        for rows in self._blocks():
            self.cells[rows] = torch.softmax(torch.addmm(bias, home[rows], home[self.size :].T), dim=1)
        frequencies = torch.full((self.size,), 1 / self.size)
        for _ in range(_ROUNDS):  # a symmetric joint distribution has the frequencies that its conditionals keep
            frequencies = frequencies @ self.cells
        normaliser = torch.empty(self.size)
        for rows in self._blocks():
            normaliser[rows] = torch.logsumexp(torch.addmm(bias, home[rows], home[self.size :].T), dim=1)
        return torch.log(frequencies.clamp_(min=1e-30)) - normaliser, bias, home, home.clone()

    def _fill(self, tilt: Tensor, vectors: Tensor) -> None:
        centre, context = self.by_centre + tilt, self.by_context + tilt
        for rows in self._blocks():
            logarithms = torch.addmm(centre[rows, None] + context, vectors[rows], vectors[self.size :].T)
            torch.exp(logarithms.clamp_(max=self.ceiling), out=self.cells[rows])

    def _embedding(self) -> Tensor:
        """R' N R made symmetric, [F, F]."""
        whole = self.rows.T @ (self.cells @ self.rows)
        return (whole + whole.T) / 2

    def solve(self, steps: int, on_step: Callable[[float], None] | None) -> SkipGram:
        near = self.cells @ self.rows + self.cells.T @ self.rows
        curved = ((near.square() @ (1 / self.variance)) * self.rows.square()).sum(1) / 2
        scale_tilt = (curved + FREQUENCIES).sqrt()
        scale_vectors = (_CURVATURE * curved + VECTORS).sqrt().repeat(2)[:, None]
        tilt, vectors = minimise(
            (torch.zeros(self.size), self.vectors), (scale_tilt, scale_vectors), self.objective, steps, on_step
        )
        if not (torch.isfinite(tilt).all() and torch.isfinite(vectors).all()):
            raise IntegrityError("Fitting the noisy embedding did not stay finite. Are it and sigma in the same unit?")
        bias = self.by_context + tilt
        inputs, outputs = vectors[: self.size].numpy().copy(), vectors[self.size :].numpy().copy()
        return SkipGram(inputs, outputs, (bias - bias.mean()).numpy().copy())

    @torch.no_grad()  # the optimiser turns gradients on
    def objective(self, tilt: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The objective of the module's docstring, and its gradients by t and by x and y."""
        self._fill(tilt, vectors)
        residual = self._embedding() - self.wanted
        away, moved = tilt - tilt.mean(), vectors - self.home
        loss = (residual.double().square() / self.variance).sum() / 2
        loss += FREQUENCIES / 2 * away.double().square().sum() + VECTORS / 2 * moved.double().square().sum()
        by_tilt, by_vectors = FREQUENCIES * away, VECTORS * moved
        pull = self.rows @ (residual / self.variance)
        for rows in self._blocks():
            slope = (pull[rows] @ self.rows.T).mul_(self.cells[rows])
            by_tilt[rows] += slope.sum(1)
            by_tilt += slope.sum(0)
            by_vectors[rows] += slope @ vectors[self.size :]
            by_vectors[self.size :] += slope.T @ vectors[rows]
        return loss, by_tilt, by_vectors
