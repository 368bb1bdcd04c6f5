"""Presence: which of the public cells a document has, at most so many of them, summed under noise."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import sparse

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import Form, Priced, Released
from aggregation.mechanisms.shared_noise import SharedNoise
from aggregation.noise.stream import NoiseStream


@dataclass(frozen=True, slots=True)
class PresenceMechanism(Priced):
    """For every public cell, how many units have it; a unit counts in `most_cells` cells at the most.

    A unit with more cells keeps those that come first, in the public order of the cells. So what it adds is at most
    `most_cells` times `levels`, which depends on that unit alone. Adding or removing one unit changes the sum of all
    parties by that: L2 sensitivity levels * sqrt(most_cells) grid units, under add-or-remove of one unit. A sum with
    `shares` shares of noise is post-processing of that sum under N(0, (noise_multiplier * sensitivity)^2), up to what
    `slack` charges to delta (`aggregation.mechanisms.shared_noise`). The price is one
    `GaussianDpEvent(noise_multiplier)` for all cells together.

    Source: the Gaussian mechanism (Dwork & Roth 2014, "The Algorithmic Foundations of Differential Privacy",
    appendix A).

    It holds only if
      - at least `shares` shares, drawn from secure streams and unknown to the attacker, are in the sum;
      - one unit's cells are one row at one party, and the cells are public;
      - which parties are present does not depend on their data, and nobody sees a sum with fewer shares.

    most_cells: of one unit. levels: grid steps in one unit, for noise is drawn on integers. noise_multiplier: standard
    deviation charged over sensitivity. shares: how many parties' noise the guarantee counts on.

    Raises `ConclaveError` for a setting out of range, or one whose share of noise cannot be drawn.
    """

    kind: ClassVar[str] = "own_recipe.presence"
    forms: ClassVar[tuple[Form, ...]] = (Form.SUMMED,)

    most_cells: int
    levels: int
    noise_multiplier: float
    shares: int

    def __post_init__(self) -> None:
        if not 1 <= self.most_cells <= 1_000_000:
            raise ConclaveError(f"most_cells is {self.most_cells}; it must be from 1 to 1,000,000.")
        if not 1 <= self.levels <= 10_000:
            raise ConclaveError(f"levels is {self.levels}; it must be from 1 to 10,000.")
        if not 0 < self.noise_multiplier < 1e6:
            raise ConclaveError(f"noise_multiplier is {self.noise_multiplier}; it must be a number above 0.")
        self.shared.check()

    @property
    def shared(self) -> SharedNoise:
        """The noise of the sum, divided into the parties' shares."""
        square = self.most_cells * self.levels**2
        return SharedNoise(self.noise_multiplier, square, self.shares, "gaussian", 1 / self.levels)

    @property
    def sensitivity(self) -> float:
        """L2 change of the sum when one unit is added or removed, grid units."""
        return self.levels * math.sqrt(self.most_cells)

    @property
    def most(self) -> int:
        """What one unit adds to one cell, grid units."""
        return self.levels

    def contribute(self, units: sparse.csr_array) -> sparse.csr_array:
        """This party's part of the sum: counts `[units, cells]` to grid integers `[1, cells]`.

        Raises `IntegrityError` for what is no finite count from 0.
        """
        cells = sparse.csr_array(units, dtype=np.float64, copy=True)
        if not np.isfinite(cells.data).all() or (cells.data < 0).any():
            raise IntegrityError("A unit's counts hold what is no finite number from 0.")
        cells.sum_duplicates()  # sorts every row too
        cells.eliminate_zeros()
        place = np.arange(cells.nnz) - np.repeat(cells.indptr[:-1], np.diff(cells.indptr))  # of a cell within its unit
        kept = cells.indices[place < self.most_cells]
        touched, sums = np.unique(kept, return_counts=True)
        sums = sums.astype(np.int64) * self.levels
        return sparse.csr_array((sums, touched, [0, touched.size]), shape=(1, cells.shape[1]))

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> Any:
        """This party's noise, grid units."""
        return self.shared.sample(shape, stream)

    def release(self, total: Any, present: int) -> Released:
        """The noisy sum of `present` parties, in units. Raises `IntegrityError` where fewer than `shares` are in it."""
        return self.shared.released(total, present)

    def event(self) -> Any:
        """One release with this noise multiplier."""
        return self.shared.event(self.most_cells * self.levels)

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """As `Mechanism.slack`."""
        return self.shared.slack(rows * columns * attempts, epsilon)

    def described(self, rows: int, columns: int, form: Form) -> str:
        """Its bound and its noise."""
        return (
            f"each unit counted once in at most {self.most_cells:,} cells, Gaussian noise of standard deviation "
            f"{self.noise_multiplier * math.sqrt(self.most_cells):.3g} on each of {rows * columns:,} sums, charged once"
        )
