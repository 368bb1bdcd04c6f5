"""From noisy co-occurrence counts to word vectors: the most probable symmetric log-bilinear model under the noise.

What was released is S = N + noise, N the clipped counts [V, V], the noise normal with known sigma in every cell. The
two halves say the same, so they are averaged: noise variance v = sigma^2 / 2 off the diagonal. The model is

    N_ij = exp(b_i + b_j + x_i' J x_j)        b log-frequencies, x_i in R^d, J a diagonal of signs,

and minimises, over all cells,

    1/2 sum N_ij - (S_ij + v) log(N_ij + v)  +  VECTORS/2 sum |x_i|^2  +  FREQUENCIES/2 sum (b_i - z_i - mean)^2.

It is log-bilinear, as GloVe (Pennington et al. 2014, section 3), whose weighted least squares of the counts' logarithms
a noisy count below 0 rules out.

The first sum is the likelihood of Poisson counts shifted by v: its score, (N - S) / (N + v), is unbiased under the
noise, also where S is negative, and weighs a cell by its variance, that of the text and that of the noise. Where the
noise is large it is least squares; where there is none, the likelihood of the counts. z is Zipf's law over the
vocabulary's public order. The penalty on x is, for the matrix of all x_i' J x_j, one on its singular values: weak
directions vanish. With no signal left, x is near 0 and the model is the unigram's: that is why it falls back on the
floor. The start is spectral (the score at x = 0, its leading eigenvalues of either sign), the rest is L-BFGS.

How well: `benchmarks/noisy_student.py`, figures in docs/results/dped.md. What is left under noise is modest: at epsilon
1 the student is the floor and little more; at 8, with some thousands of documents, common words have some sensible
neighbours and rare words none. Weights by distance, public weights that spare rare words before clipping, and clips
from 5 to 16 changed little. With a public model of the same language, `learning.embeddings.prior` does far better, from
a release of moments in place of counts.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggregation.errors import IntegrityError
from learning.embeddings.optimising import fixed_threads, minimise

VECTORS = 30.0
"""Prior precision of a coordinate of a word vector."""
FREQUENCIES = 1.0
"""Prior precision of a log-frequency about Zipf's law."""
ZIPF_OFFSET = 5.0
BLOCK_CELLS = 1 << 22
"""Cells of the matrix that are worked on at a time: 16 MiB an array."""

_CURVATURE = 0.1  # typical squared coordinate, weighted by frequency; it only sets the scale of the steps
_SUBSPACE_ROUNDS = 12
_OVERSAMPLING = 10


@dataclass(frozen=True, slots=True)
class Factors:
    """bias [V], vectors [V, d], signs [d]: log N_ij = bias_i + bias_j + sum_k vectors_ik signs_k vectors_jk."""

    bias: NDArray[np.float32]
    vectors: NDArray[np.float32]
    signs: NDArray[np.float32]


def denoise(
    counts: NDArray[np.float64],
    sigma: float,
    *,
    dimension: int,
    seed: int,
    steps: int = 80,
    on_step: Callable[[float], None] | None = None,
) -> Factors:
    """Find the most probable factors of noisy counts.

    counts: [V, V], as released, words in the vocabulary's public order of frequency. sigma: noise standard deviation of
    each cell, in counts. dimension: at most this many directions; 0 gives the rank-one model. steps: of L-BFGS.
    on_step: told the fraction done. The same seed gives the same bytes on the same machine.
    Memory: 4 bytes a cell and a few blocks beside `counts`. Time at d = 100: 2 s at V = 1,000,
    7 s at 2,000, on one core.
    Raises `IntegrityError` for counts that are not a finite square matrix or a sigma that is not positive and finite.
    Source: the model is log-bilinear as GloVe (Pennington et al. 2014, section 3); the likelihood under noise is our
    own, see the module.
    """
    _check(counts, sigma)
    with torch.no_grad(), fixed_threads(len(counts)):
        return _Problem(counts, sigma, dimension, seed).solve(steps, on_step)


def _check(counts: NDArray[np.float64], sigma: float) -> None:
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.shape[0] < 2:
        raise IntegrityError(
            f"Co-occurrence counts are a square matrix of two words or more, not of shape {counts.shape}."
        )
    if not np.isfinite(counts).all():
        raise IntegrityError("The noisy counts hold NaN or infinity, so they are not what a mechanism released.")
    if not (math.isfinite(sigma) and sigma > 0):
        raise IntegrityError(f"The noise of noisy counts has a positive standard deviation, not {sigma}.")


class _Problem:
    """The objective of one matrix, in coordinates scaled to be about equally curved."""

    def __init__(self, counts: NDArray[np.float64], sigma: float, dimension: int, seed: int):
        self.size = counts.shape[0]
        self.width = dimension
        self.rank = min(dimension, self.size)
        self.seed = seed
        self.noise = sigma * sigma / 2
        self.cells = torch.from_numpy(counts.astype(np.float32))
        for rows in self._blocks():
            half = (self.cells[rows, rows.start :] + self.cells[rows.start :, rows].T) / 2
            self.cells[rows, rows.start :] = half
            self.cells[rows.start :, rows] = half.T
        self.ceiling = math.log(max(float(self.cells.max()), math.sqrt(self.noise))) + 3
        self.alone = self._alone()
        zipf = -torch.log(torch.arange(self.size) + ZIPF_OFFSET)
        self.zipf = zipf - zipf.mean()

    def _blocks(self) -> Iterator[slice]:
        rows = max(1, BLOCK_CELLS // self.size)
        for start in range(0, self.size, rows):
            yield slice(start, min(start + rows, self.size))

    def _alone(self) -> Tensor:
        """a [V] >= 0 with a_i a_j nearest to the counts: frequencies, were words independent, in the least noisy way.

        A row's sum gives every column the same say; weighted by a, the columns of frequent words have most of it.
        """
        frequencies = self.cells.sum(1).clamp_(min=0) + 1e-6 * math.sqrt(self.noise)
        for _ in range(20):
            frequencies = (self.cells @ frequencies).clamp_(min=0)
            length = frequencies.norm()
            if length == 0:  # nothing but noise, and all of it negative
                frequencies = torch.ones(self.size)
                length = frequencies.norm()
            frequencies /= length
        strength = (frequencies @ self.cells @ frequencies).clamp_(min=math.sqrt(self.noise))
        frequencies *= strength.sqrt()
        return torch.maximum(frequencies, math.sqrt(self.noise) / frequencies.norm() / 2)

    def _pull(self, directions: Tensor) -> Tensor:
        """The gradient at x = 0, as a symmetric operator on [V, k]: where the counts differ from independence."""
        out = torch.empty_like(directions)
        for rows in self._blocks():
            independent = self.alone[rows, None] * self.alone
            difference = (self.cells[rows] - independent) * independent / (self.noise + independent)
            out[rows] = difference @ directions
        return out

    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """Leading eigenvalues by size, [k], and eigenvectors, [V, k], of the pull, by subspace iteration."""
        generator = torch.Generator().manual_seed(self.seed)
        basis = torch.randn(self.size, min(self.rank + _OVERSAMPLING, self.size), generator=generator)
        for _ in range(_SUBSPACE_ROUNDS):
            basis, _ = torch.linalg.qr(self._pull(basis))
        small = basis.T @ self._pull(basis)
        values, vectors = torch.linalg.eigh((small + small.T) / 2)
        leading = torch.argsort(values.abs(), descending=True)[: self.rank]
        return values[leading], basis @ vectors[:, leading]

    def solve(self, steps: int, on_step: Callable[[float], None] | None) -> Factors:
        curved = torch.zeros(self.size)
        for rows in self._blocks():
            independent = self.alone[rows, None] * self.alone
            curved[rows] = (independent.square() / (self.noise + independent)).sum(1)
        scale_bias = (curved + FREQUENCIES).sqrt()
        scale_vectors = (_CURVATURE * curved + VECTORS).sqrt()[:, None]

        signs, start = torch.ones(self.rank), torch.zeros(self.size, self.rank)
        if self.rank:
            values, vectors = self._spectrum()
            size, largest = values.abs(), values.abs().max().clamp_(min=1e-12)
            signs = torch.where(values < 0, -1.0, 1.0)
            start = vectors * (torch.maximum(size - VECTORS, 0.02 * largest) / largest).sqrt() / 2

        bias, vectors = minimise(
            (self.alone.log(), start),
            (scale_bias, scale_vectors),
            lambda bias, vectors: self._objective(bias, vectors, signs),
            steps,
            on_step,
        )
        if not (torch.isfinite(bias).all() and torch.isfinite(vectors).all()):
            raise IntegrityError(
                "Fitting the noisy counts did not stay finite. Are sigma and the counts in the same unit?"
            )
        unused = self.width - self.rank
        return Factors(
            bias.numpy().copy(),
            np.pad(vectors.numpy(), ((0, 0), (0, unused))),
            np.pad(signs.numpy(), (0, unused), constant_values=1.0),
        )

    def _objective(self, bias: Tensor, vectors: Tensor, signs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The objective of the module's docstring, and its gradients by bias and by vectors."""
        away = bias - self.zipf
        away = away - away.mean()
        loss = FREQUENCIES / 2 * away.double().square().sum() + VECTORS / 2 * vectors.double().square().sum()
        by_bias, by_vectors = FREQUENCIES * away, VECTORS * vectors
        signed = vectors * signs
        for rows in self._blocks():
            model = torch.addmm(bias[rows, None] + bias, signed[rows], vectors.T).clamp_(max=self.ceiling).exp_()
            # Half of every cell, since each pair is in the matrix twice. log1p, since the noise may dwarf the counts.
            logarithm = torch.log1p(model / self.noise)
            loss += (model - self.noise * logarithm - self.cells[rows] * logarithm).sum(dtype=torch.float64) / 2
            slope = (model - self.cells[rows]) * model / (model + self.noise)
            by_bias[rows] += slope.sum(1)
            by_vectors[rows] += slope @ signed
        return loss, by_bias, by_vectors
