"""The skip-gram (Mikolov et al. 2013), as student and as teacher: a vector for every word as centre, one as context,
fitted to counts and not to a stream of pairs.

    p(context j | centre i) = softmax_j(bias_j + inputs_i . outputs_j)

The softmax is the full one of "Distributed representations of words and phrases and their compositionality", equation
(2), neither hierarchical nor by negative samples; the bias is added here. One row of the co-occurrence matrix holds all
contexts of a centre, so one matrix product is one exact pass over the text.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse

from aggregation.errors import IntegrityError
from learning.embeddings.denoising import BLOCK_CELLS, denoise
from learning.embeddings.optimising import fixed_threads, minimise

RIDGE = 30.0
"""Weight of |inputs|^2 / 2 + |outputs|^2 / 2 in `fit`, in counts: prior precision of a coordinate."""


@dataclass(frozen=True, slots=True)
class SkipGram:
    """inputs [V, d] are the published word vectors; outputs [V, d] and bias [V] make them a model. All float32.

    Source: Mikolov et al. 2013, "Distributed Representations of Words and Phrases and their Compositionality", equation
    (2); the bias is added here.
    """

    inputs: NDArray[np.float32]
    outputs: NDArray[np.float32]
    bias: NDArray[np.float32]

    def __post_init__(self) -> None:
        size, dimension = self.inputs.shape
        if self.outputs.shape != (size, dimension) or self.bias.shape != (size,):
            raise IntegrityError(
                f"A skip-gram's parts do not fit: inputs {self.inputs.shape}, outputs {self.outputs.shape}, "
                f"bias {self.bias.shape}."
            )

    @property
    def finite(self) -> bool:
        """Whether all its parameters are finite: a fit may go to infinity."""
        return all(bool(np.isfinite(part).all()) for part in (self.inputs, self.outputs, self.bias))

    def log_probabilities(self, centres: NDArray[np.int32] | NDArray[np.int64]) -> NDArray[np.float32]:
        """Natural logarithms of p(context | centre), [centres, V]."""
        logits = self.inputs[centres] @ self.outputs.T + self.bias
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logits


def fit_noisy(
    counts: NDArray[np.float64],
    sigma: float,
    *,
    dimension: int = 100,
    seed: int,
    steps: int = 80,
    on_step: Callable[[float], None] | None = None,
) -> SkipGram:
    """Fit the student to counts that were released under noise; see `learning.embeddings.denoising` for how and how
    well.

    counts: [V, V]. sigma: standard deviation of each cell's noise. The same seed gives the same bytes on the same
    machine.
    Post-processing: it costs no privacy. Raises `IntegrityError` like `denoise`.
    Source: as for `learning.embeddings.denoising.denoise`.
    """
    factors = denoise(counts, sigma, dimension=dimension, seed=seed, steps=steps, on_step=on_step)
    return SkipGram(factors.vectors, factors.vectors * factors.signs, factors.bias)


def unigram(counts: NDArray[np.float64] | sparse.csr_array, sigma: float) -> NDArray[np.float64]:
    """Estimate how frequent words are, [V], summing to 1, from the same noisy counts: the floor a student must beat.

    This is the student without vectors, which uses the counts better than their noisy row sums do. Exact counts
    (sigma 0) may be sparse; for them it is the row sums, with half a count added. Raises `IntegrityError` for noisy
    counts that are sparse, and like `denoise`.
    """
    if sigma == 0:
        smoothed = np.asarray(sparse.csr_array(counts).maximum(0).sum(axis=1), dtype=np.float64) + 0.5
        return np.asarray(smoothed / smoothed.sum(), dtype=np.float64)
    if isinstance(counts, sparse.csr_array):
        raise IntegrityError("Noisy counts are dense: noise leaves no cell at 0.")
    bias = denoise(counts, sigma, dimension=0, seed=0).bias.astype(np.float64)
    weights = np.exp(bias - bias.max())
    return np.asarray(weights / weights.sum(), dtype=np.float64)


def fit(
    counts: NDArray[np.float64] | sparse.csr_array,
    *,
    dimension: int = 100,
    seed: int,
    steps: int = 100,
    ridge: float = RIDGE,
    start: SkipGram | None = None,
    on_step: Callable[[float], None] | None = None,
) -> SkipGram:
    """Fit the student to exact counts: maximum likelihood of the full softmax with a ridge, by L-BFGS.

    counts: [V, V] >= 0, sparse or dense. start: a model to go on from, of the same shape; otherwise small random
    vectors from the seed, which then determines the bytes on the same machine. on_step: told the fraction done.
    There is no privacy in this: for public text, and for simulation. Memory: the counts twice, three blocks of 16 MiB,
    and some 30 times the parameters in double precision, most of it what L-BFGS remembers: no array is [V, V].
    Raises `IntegrityError` for counts that are negative, not finite or not square.
    Source: the full softmax of Mikolov et al. 2013, equation (2), on counts; L-BFGS (Liu & Nocedal 1989).
    """
    matrix = sparse.csr_array(counts, dtype=np.float32)
    size = matrix.shape[0]
    if matrix.shape != (size, size) or size < 2:
        raise IntegrityError(
            f"Co-occurrence counts are a square matrix of two words or more, not of shape {matrix.shape}."
        )
    if not np.isfinite(matrix.data).all() or (matrix.data < 0).any():
        raise IntegrityError("Exact counts are finite and not negative. For noisy counts use fit_noisy.")
    if start is not None and start.inputs.shape != (size, dimension):
        raise IntegrityError(f"The model to start from is {start.inputs.shape}, this one [{size}, {dimension}].")
    with torch.no_grad(), fixed_threads(size):
        return _fit(matrix, dimension, seed, steps, ridge, start, on_step)


def _fit(
    matrix: sparse.csr_array,
    dimension: int,
    seed: int,
    steps: int,
    ridge: float,
    start: SkipGram | None,
    on_step: Callable[[float], None] | None,
) -> SkipGram:
    size = matrix.shape[0]
    columns = torch.from_numpy(np.asarray(matrix.sum(axis=0), dtype=np.float32)) + 0.5
    if start is None:
        generator = torch.Generator().manual_seed(seed)
        vectors = torch.randn(2 * size, dimension, generator=generator) * 0.1
        bias = torch.log(columns / columns.sum())
    else:
        vectors = torch.from_numpy(np.concatenate([start.inputs, start.outputs]))
        bias = torch.from_numpy(start.bias)
    scale_bias = columns.sqrt()
    scale_vectors = (0.1 * columns + ridge).sqrt().repeat(2)[:, None]
    rows = max(1, BLOCK_CELLS // size)
    blocks = [
        (slice(first, min(first + rows, size)), matrix[first : min(first + rows, size)])
        for first in range(0, size, rows)
    ]

    buffers = [torch.empty(min(rows, size), size) for _ in range(3)]  # new arrays every time would fragment memory

    def objective(bias: torch.Tensor, vectors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        inputs, outputs = vectors[:size], vectors[size:]
        by_bias, by_vectors = torch.zeros(size), ridge * vectors
        loss = ridge / 2 * vectors.double().square().sum()
        for rows, block in blocks:
            seen, products, logarithms = (each[: block.shape[0]] for each in buffers)
            block.toarray(out=seen.numpy())
            torch.addmm(bias, inputs[rows], outputs.T, out=products)
            torch.log_softmax(products, dim=1, out=logarithms)
            loss -= torch.mul(seen, logarithms, out=products).sum(dtype=torch.float64)
            slope = logarithms.exp_().mul_(seen.sum(1, keepdim=True)).sub_(seen)
            by_bias += slope.sum(0)
            by_vectors[rows] += slope @ outputs
            by_vectors[size:] += slope.T @ inputs[rows]
        return loss, by_bias, by_vectors

    bias, vectors = minimise((bias, vectors), (scale_bias, scale_vectors), objective, steps, on_step)
    return SkipGram(vectors[:size].numpy().copy(), vectors[size:].numpy().copy(), (bias - bias.mean()).numpy().copy())
