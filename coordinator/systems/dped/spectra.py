"""Which part of the co-occurrence of words is above the noise: spectra of expected counts and moments."""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from scipy.sparse.linalg import LinearOperator, eigsh

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.vectors import VectorMechanism
from coordinator.systems.dped.public import Public
from coordinator.systems.dped.stand_in import StandIn

LARGEST_CELLS = 0.01
"""The part of all cells of counts, the largest ones, on which the signal of counts is measured."""


@dataclass(frozen=True, slots=True)
class ExpectedSum:
    """The co-occurrence sums that parties of the assumed size would release without noise.

    total: counts [words, words], or second moments [directions, directions] along public ones. centred: whether
    independent words would give zeros, as with moments. here: number of units in the stand-in. units: number assumed.
    pairs: mean number of distinct pairs in a unit.
    """

    total: sparse.csr_array
    centred: bool
    here: int
    units: int
    pairs: float

    @property
    def size(self) -> int:
        """Number of rows of the matrix."""
        return int(self.total.shape[0])

    def first(self, words: int) -> "ExpectedSum":
        """The counts of only the given number of most frequent words, with the clipping factors unchanged."""
        return replace(self, total=sparse.csr_array(self.total[:words, :words]))

    def signal(self) -> float:
        """Root mean square: for counts, over the largest 1 percent of cells, which are pairs of common words; for
        moments, over all.
        """
        kept = self.size**2 if self.centred else max(1, math.ceil(LARGEST_CELLS * self.size**2))
        largest = np.sort(np.abs(self.total.data))[::-1][:kept]
        return math.sqrt(float(largest @ largest) / kept)

    def strengths(self, most: int) -> NDArray[np.float64]:
        """Absolute values of the leading eigenvalues [at most `most`], largest first.

        For counts they are those of the residual: the counts less what independent words with the same row sums would
        give.
        """
        sums = np.zeros(self.size) if self.centred else np.asarray(self.total.sum(axis=1)).ravel()
        everything = float(sums.sum()) or 1.0
        if self.size <= 2 * most + 2:
            residual = self.total.toarray() - np.outer(sums, sums / everything)
            values = np.linalg.eigvalsh((residual + residual.T) / 2)
        else:
            residual = LinearOperator(
                self.total.shape,
                matvec=lambda x: self.total @ x.ravel() - sums * (float(sums @ x.ravel()) / everything),
                dtype=np.float64,
            )
            start = np.random.default_rng(0).normal(size=self.size)
            values = eigsh(residual, k=most, which="LM", v0=start, return_eigenvectors=False, tol=1e-4)
        return np.asarray(np.sort(np.abs(values))[::-1][:most], dtype=np.float64)

    def directions(self, sigma: float, most: int) -> int:
        """How many directions, of at most `most`, are above noise of standard deviation `sigma` a cell.

        The signal's own eigenvalue is compared with the largest eigenvalue of the noise; slightly below it, part of a
        direction can still be recovered.
        """
        return int((self.strengths(most) > edge(sigma, self.size)).sum())


def edge(sigma: float, size: int) -> float:
    """The largest eigenvalue of a symmetrised noise matrix [size, size] with standard deviation `sigma` a cell.

    After symmetrising, a cell off the diagonal has variance sigma^2 / 2, so that Wigner's semicircle ends at 2
    sqrt(size sigma^2 / 2). The same holds for moments, whose noise is of that size.
    """
    return sigma * math.sqrt(2 * size)


def expected_counts(stand_in: StandIn, public: Public, mechanism: CountsMechanism, window: int) -> ExpectedSum:
    """Clip the stand-in's units exactly as parties would, and scale their sum to the assumed size."""
    size, units, pairs = len(public.vocabulary), 0, 0
    total = sparse.csr_array((1, size * size), dtype=np.int64)
    for chunk in stand_in.counted(public, window):
        total = total + mechanism.contribute(chunk)
        units, pairs = units + chunk.shape[0], pairs + chunk.nnz
    units = max(1, units)
    supposed = stand_in.size or units
    values = total.reshape((size, size)).tocsr() * (mechanism.granularity * supposed / units)
    return ExpectedSum(sparse.csr_array(values), False, units, supposed, pairs / units)


def expected_moments(stand_in: StandIn, public: Public, mechanism: VectorMechanism, window: int) -> ExpectedSum:
    """The same for second moments along the plan's public directions, without the frequencies."""
    from learning.embeddings.moments import contribute

    assert public.moments is not None
    along, units, pairs = public.moments[0], 0, 0
    total = np.zeros(along.columns, dtype=np.int64)
    for chunk in stand_in.counted(public, window):
        total += contribute(chunk, along, mechanism)
        units, pairs = units + chunk.shape[0], pairs + chunk.nnz
    units = max(1, units)
    supposed = stand_in.size or units
    expected = total.astype(np.float64) * (mechanism.granularity * supposed / units)
    _, moments = along.unpack(expected)
    return ExpectedSum(sparse.csr_array(moments[1:, 1:]), True, units, supposed, pairs / units)
