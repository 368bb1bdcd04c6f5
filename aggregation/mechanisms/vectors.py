"""Real vectors, one a unit: each clipped to an L2 norm, on an integer grid, summed under Gaussian noise."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from aggregation.arrays import IntArray
from aggregation.clipping import to_grid
from aggregation.mechanisms.clipped_sum import ClippedSum
from aggregation.mechanisms.mechanism import Form

if TYPE_CHECKING:
    pass

_SLICE = 1 << 20  # numbers that are bounded at a time


@dataclass(frozen=True, slots=True)
class VectorMechanism(ClippedSum):
    """Sum of the units' vectors, of either sign; every coordinate gets noise.

    Each unit's vector is clipped to L2 norm `clip` and put on the grid of step clip/levels, so that its integers have
    norm at most `levels`: checked in integers, so it holds exactly. A unit's vector on the grid depends on that vector
    alone, bit for bit, not on those it is summed with.

    Adding or removing one unit changes the sum of all parties by one such vector: L2 sensitivity `levels` grid units,
    under add-or-remove of one unit. A sum with `shares` noise shares is post-processing of that sum under
    N(0, sigma^2), sigma >= noise_multiplier * levels, up to a distance that `slack` charges to delta (proof in
    `RoundedGaussian`). The price is one `GaussianDpEvent(noise_multiplier)` for all coordinates together.

    Source: as for `CountsMechanism`.

    It holds only if
      - at least `shares` shares, drawn from secure streams (`NoiseStream.secure`) and unknown to the attacker, are
        in the sum: colluders' shares do not count;
      - one unit is one vector at one party, computed from that unit and public values alone;
      - which parties are present does not depend on their data;
      - nobody sees a sum with fewer shares. With a trusted aggregator, the aggregator does.

    clip: L2 bound of one unit's vector, in the vectors' units.
    levels: grid steps in `clip`, at most 2^20.
    noise_multiplier: standard deviation charged over sensitivity.
    shares: how many parties' shares the guarantee counts on; each has variance (noise_multiplier * levels)^2 / shares.
    distribution: what the shares are drawn from, one of `shares.DISTRIBUTIONS`. The Gaussian above is the first; under
    another the same integers are released under Skellam or discrete Gaussian noise, priced as that (`shares.event_of`).

    Raises `ConclaveError` for a setting out of range, or one whose share of noise cannot be drawn.
    """

    kind: ClassVar[str] = "vectors"
    unit: ClassVar[str] = "the vectors' units"
    too_small: ClassVar[str] = "too small to be divided. Use about the norm of a usual vector."

    def contribute(self, vectors: NDArray[np.floating]) -> IntArray:
        """This party's part of the sum: vectors `[units, dimension]` to integers `[dimension]`.

        Raises `IntegrityError` for anything but a two-dimensional array of finite real numbers.
        """
        if vectors.ndim != 2:
            return to_grid(vectors, self.clip, self.levels)  # raises, and says why
        total = np.zeros(vectors.shape[1], dtype=np.int64)
        step = max(1, _SLICE // max(1, vectors.shape[1]))
        for first in range(0, max(1, len(vectors)), step):
            total += to_grid(vectors[first : first + step], self.clip, self.levels).sum(axis=0)
        return total

    def described(self, rows: int, columns: int, form: Form) -> str:
        """Its clip, its noise and the number of sums with that noise."""
        return (
            f"each unit's word frequencies and second moments along public directions clipped to L2 norm "
            f"{self.clip:.4g}, {self.shared.name} noise of standard deviation {self.noise_multiplier:g} times that on "
            f"each of {columns:,} sums, charged once"
        )
