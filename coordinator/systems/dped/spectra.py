"""Which part of the co-occurrence of words stands above the noise: spectra of expected counts and moments."""

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
"""The part of all cells of counts, the largest ones, that their signal is measured on."""


@dataclass(frozen=True, slots=True)
class ExpectedSum:
    """The co-occurrence sums that parties of the supposed size would release without noise.

    total: counts [words, words], or second moments [directions, directions] along public ones. centred: whether words
    independent of each other would give zeros, as with moments. here: units of the stand-in. units: those supposed.
    pairs: distinct pairs of a unit on average.
    """

    total: sparse.csr_array
    centred: bool
    here: int
    units: int
    pairs: float

    @property
    def size(self) -> int:
        """Rows of the matrix."""
        return int(self.total.shape[0])

    def first(self, words: int) -> "ExpectedSum":
        """Counts of a vocabulary of only the first so many words, as if clipping stayed what it is."""
        return replace(self, total=sparse.csr_array(self.total[:words, :words]))

    def signal(self) -> float:
        """Root mean square, of counts in the largest 1 percent of cells: common words that stand together; of moments
        in all.
        """
        kept = self.size**2 if self.centred else max(1, math.ceil(LARGEST_CELLS * self.size**2))
        largest = np.sort(np.abs(self.total.data))[::-1][:kept]
        return math.sqrt(float(largest @ largest) / kept)

    def strengths(self, most: int) -> NDArray[np.float64]:
        """Sizes of the leading eigenvalues [at most `most`], largest first.

        Of counts they are those of the residual, what the counts differ by from those of independent words with their
        row sums.
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
        """How many directions, of at most `most`, stand above noise of `sigma` a cell: the rest cannot be told from it.

        The signal's own eigenvalue is compared with the noise's largest; a little below it some of a direction is left.
        """
        return int((self.strengths(most) > edge(sigma, self.size)).sum())


def edge(sigma: float, size: int) -> float:
    """The largest eigenvalue of noise of `sigma` a cell, [size, size], its halves averaged (Wigner's semicircle).

    Off the diagonal a cell then has variance sigma^2 / 2, and the edge is at 2 sqrt(size sigma^2 / 2). The same holds
    of moments, whose noise is of that size.
    """
    return sigma * math.sqrt(2 * size)


def expected_counts(stand_in: StandIn, public: Public, mechanism: CountsMechanism, window: int) -> ExpectedSum:
    """Clip the stand-in's units exactly as parties would, and scale their sum to the supposed size."""
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
    """The same of moments along the plan's public directions; what is said of frequencies is left out."""
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
