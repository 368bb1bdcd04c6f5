"""Real vectors, one a unit or one a teacher: each clipped to an L2 norm, on an integer grid, summed under Gaussian
noise.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from aggregation.arrays import FloatArray, IntArray
from aggregation.clipping import to_grid
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.clipped_sum import ClippedSum
from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.shared_noise import SharedNoise
from aggregation.noise.shares import GAUSSIAN

if TYPE_CHECKING:
    from dp_accounting import DpEvent

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


@dataclass(frozen=True, slots=True)
class DifferencesMechanism(ClippedSum):
    """Sum of what teachers say of some tokens, as differences from a public model, one matrix [tokens, outcomes] a
    teacher.

    A teacher's matrix is clipped to L2 norm `clip` as one vector, over all tokens together, and put on the grid of step
    clip/levels, so that its integers have norm at most `levels`: checked in integers, so it holds exactly. A matrix on
    the grid depends on that matrix alone, bit for bit.

    Adding or removing one unit changes one teacher, arbitrarily: its matrix moves to another in the ball, possibly the
    opposite one. The L2 sensitivity is 2 * levels grid units, under add-or-remove of one unit, for all tokens together,
    and so is the price: one `GaussianDpEvent(noise_multiplier)`, however many tokens are asked. T tokens that were each
    clipped to c and charged one by one would cost what a `clip` of c sqrt(T) costs here, under the same noise. But most
    differences are far smaller than the largest, and here the few large ones keep their length.

    Source: as for `VectorMechanism`; the composition, Dong, Roth & Su 2022, "Gaussian Differential Privacy", corollary
    3.3.

    It holds only if
      - every teacher learned from its own units and public values alone;
      - the texts, what stands before them, the outcomes and the public model's probabilities of these are public, as is
        the number of teachers;
      - the sum is released once, under noise that is drawn once;
      - and what `VectorMechanism` asks of the shares and of who is present.

    clip, levels, noise_multiplier, shares, distribution: as of `VectorMechanism`, of a teacher's whole matrix, in units
    of probability.
    tokens, outcomes: rows and columns of a matrix, the outcome of all other tokens counted.

    Raises `ConclaveError` for a setting out of range, or one whose share of noise cannot be drawn.
    """

    kind: ClassVar[str] = "differences"
    unit: ClassVar[str] = "probability"
    too_small: ClassVar[str] = "too small to be divided. Use about the norm of a usual matrix."

    distribution: str = GAUSSIAN
    tokens: int = 1
    outcomes: int = 2

    def __post_init__(self) -> None:
        for name, least in (("tokens", 1), ("outcomes", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ConclaveError(f"{name} is {value}; it must be a whole number of at least {least}.")
        ClippedSum.__post_init__(self)

    @property
    def columns(self) -> int:
        """Numbers of one token."""
        return self.outcomes

    @property
    def sensitivity(self) -> float:
        """L2 change of the summed integers when one unit is added or removed, grid units; exact."""
        return 2.0 * self.levels

    @property
    def most(self) -> int:
        """0: teachers are few, however many units there are."""
        return 0

    @property
    def shared(self) -> SharedNoise:
        """The noise of the sum, divided into the parties' shares."""
        return SharedNoise(self.noise_multiplier, 4 * self.levels**2, self.shares, self.distribution, self.granularity)

    def contribute(self, said: FloatArray) -> IntArray:
        """This party's part of the sum: said `[teachers, tokens, outcomes]` to integers `[tokens, outcomes]`.

        Memory: some eight times that of one teacher's matrix. Raises `IntegrityError` for another shape, and for
        anything but finite real numbers.
        """
        if not isinstance(said, np.ndarray) or said.ndim != 3 or said.shape[1:] != (self.tokens, self.outcomes):
            shape = getattr(said, "shape", type(said).__name__)
            raise IntegrityError(
                f"Differences must be an array [teachers, {self.tokens:,} tokens, {self.outcomes:,} outcomes]; this "
                f"one is {shape}."
            )
        total = np.zeros(self.tokens * self.outcomes, dtype=np.int64)
        for teacher in said:
            total += to_grid(teacher.reshape(1, -1), self.clip, self.levels)[0]
        return total.reshape(self.tokens, self.outcomes)

    def event(self) -> "DpEvent":
        """One release of all tokens together, however many blocks it is sent in."""
        return self.shared.event(4 * self.levels**2)

    def queries(self, charges: int) -> int:
        """Every token, however they are charged."""
        return charges * self.tokens

    def described(self, rows: int, columns: int, form: Form) -> str:
        """Its clip, its noise, and the tokens and outcomes that have it."""
        return (
            f"what teachers say of {self.tokens:,} tokens, as differences from a public model over {self.outcomes:,} "
            f"outcomes of each, clipped to L2 norm {self.clip:.4g} over all tokens together (sensitivity of the sum "
            f"{2 * self.clip:.4g}), {self.shared.name} noise of {2 * self.clip * self.noise_multiplier:.4g} on every "
            "number of the sum, charged once"
        )
