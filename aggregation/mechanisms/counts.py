"""Counts of public cells: every unit clipped to an L2 norm, on an integer grid, summed under Gaussian noise."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy import sparse

from aggregation.clipping import magnitudes_to_grid
from aggregation.errors import IntegrityError
from aggregation.mechanisms.clipped_sum import ClippedSum
from aggregation.mechanisms.mechanism import Form

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class CountsMechanism(ClippedSum):
    """Sum of the units' counts over public cells; every cell gets noise, the empty ones included.

    Each unit's row of counts is clipped to L2 norm `clip` and put on the grid of step clip/levels, so that its integer
    row has norm at most `levels`: checked in integers, so it holds exactly and not only up to rounding. A unit's row
    on the grid depends on that unit alone, bit for bit, not on the units summed with it.

    Adding or removing one unit changes the sum of all parties by one such row: L2 sensitivity `levels` grid units,
    under add-or-remove of one unit. A sum with `shares` noise shares is post-processing of that sum under
    N(0, sigma^2), sigma >= noise_multiplier * levels, up to a distance that `slack` charges to delta (proof in
    `RoundedGaussian`). The price is one `GaussianDpEvent(noise_multiplier)` for all cells together, however many blocks
    they are sent in.

    Source: the Gaussian mechanism (Dwork & Roth 2014, "The Algorithmic Foundations of Differential Privacy", appendix
    A), priced exactly (Balle & Wang 2018, theorem 8).

    It holds only if
      - at least `shares` shares, drawn from secure streams (`NoiseStream.secure`) and unknown to the attacker, are
        in the sum: colluders' shares do not count. Further shares are independent of the data, hence post-processing;
      - one unit's counts are one row at one party, and the cells are public;
      - which parties are present does not depend on their data;
      - nobody sees a sum with fewer shares. With a trusted aggregator, the aggregator does.

    clip: L2 bound of one unit's counts, in counts.
    levels: grid steps in `clip`, at most 2^20. Whole counts of an unclipped unit stay exact where clip divides levels.
    noise_multiplier: standard deviation charged over sensitivity.
    shares: how many parties' shares the guarantee counts on; each has variance (noise_multiplier * levels)^2 / shares.
    distribution: what the shares are drawn from, one of `shares.DISTRIBUTIONS`. The Gaussian above is the first; under
    another the same integers are released under Skellam or discrete Gaussian noise, priced as that (`shares.event_of`).

    Raises `ConclaveError` for a setting out of range, or one whose share of noise cannot be drawn.
    """

    kind: ClassVar[str] = "counts"
    unit: ClassVar[str] = "counts"
    too_small: ClassVar[str] = "out of all proportion to counts. Use a few times a usual count."

    def contribute(self, units: sparse.csr_array) -> sparse.csr_array:
        """This party's part of the sum: counts `[units, cells]` >= 0 to integers `[1, cells]`.

        Raises `IntegrityError` for anything but a two-dimensional csr_array of finite numbers >= 0.
        """
        cells = _checked(units)
        starts = cells.indptr[:-1][np.diff(cells.indptr) > 0]
        steps = magnitudes_to_grid(cells.data, starts, self.clip, self.levels)
        order = np.argsort(cells.indices, kind="stable")
        touched, first = np.unique(cells.indices[order], return_index=True)
        sums = np.add.reduceat(steps[order], first) if touched.size else np.zeros(0, dtype=np.int64)
        kept = sums != 0
        touched, sums = touched[kept], sums[kept]
        return sparse.csr_array((sums, touched, np.array([0, touched.size])), shape=(1, cells.shape[1]))

    def described(self, rows: int, columns: int, form: Form) -> str:
        """Its clip, its noise and the number of sums with that noise."""
        return (
            f"each unit's counts clipped to L2 norm {self.clip:g}, {self.shared.name} noise of standard deviation "
            f"{self.noise_multiplier:g} times that on each of {rows * columns:,} sums, charged once"
        )


def _checked(units: sparse.csr_array) -> sparse.csr_array:
    """A copy in canonical form, float64, or `IntegrityError`."""
    if not isinstance(units, sparse.csr_array) or units.ndim != 2:
        kind = f"{type(units).__name__} of {getattr(units, 'ndim', '?')} dimensions"
        raise IntegrityError(f"Counts must be a csr_array [units, cells]; this is a {kind}.")
    if not (np.issubdtype(units.dtype, np.integer) or np.issubdtype(units.dtype, np.floating)):
        raise IntegrityError(f"Counts must be numbers; these are {units.dtype}.")
    cells = sparse.csr_array(units, dtype=np.float64, copy=True)
    try:
        cells.check_format(full_check=True)
    except ValueError as error:
        raise IntegrityError(f"Counts are not a well-formed csr_array: {error}.") from error
    if np.isnan(cells.data).any() or np.isinf(cells.data).any():
        raise IntegrityError("A unit's counts hold NaN or infinity; every count must be a finite number >= 0.")
    if (cells.data < 0).any():
        raise IntegrityError("A unit's counts hold a negative number; every count must be >= 0.")
    cells.has_sorted_indices = cells.has_canonical_format = False  # a stale flag would let a cell be counted twice
    cells.sum_duplicates()
    if np.isinf(cells.data).any():
        raise IntegrityError("A unit's counts add up to infinity; every count must be a finite number >= 0.")
    return cells
