"""A sum of clipped units under noise in shares, released once: the code that counts and vectors share."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from aggregation.arrays import IntArray
from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import Form, Priced, Released
from aggregation.mechanisms.shared_noise import SharedNoise
from aggregation.noise.shares import GAUSSIAN, check_levels
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, slots=True)
class ClippedSum(Priced):
    """The settings of a sum of clipped units, its noise and its price. A mechanism adds a unit's bound, and the proof.

    unit: the unit of `clip`. too_small: the error for a clip that cannot be divided into levels.

    clip: L2 bound of one unit. levels: grid steps in `clip`, at most 2^20. noise_multiplier: standard deviation charged
    over sensitivity. shares: how many parties' shares the guarantee counts on; each has variance (noise_multiplier *
    levels)^2 / shares. distribution: what the shares are drawn from, one of `shares.DISTRIBUTIONS`.

    Raises `ConclaveError` for a setting out of range, or one whose share of noise cannot be drawn.
    """

    forms: ClassVar[tuple[Form, ...]] = (Form.SUMMED,)
    unit: ClassVar[str]
    too_small: ClassVar[str]

    clip: float
    levels: int
    noise_multiplier: float
    shares: int
    distribution: str = GAUSSIAN

    def __post_init__(self) -> None:
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ConclaveError(f"clip is {self.clip}; it must be a number above 0, in {self.unit}.")
        check_levels(self.levels)
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise ConclaveError(f"noise_multiplier is {self.noise_multiplier}; it must be a number above 0.")
        if not (math.isfinite(self.levels / self.clip) and self.granularity > 0):
            raise ConclaveError(f"clip is {self.clip}, {self.too_small}")
        self.shared.check()

    @property
    def granularity(self) -> float:
        """One grid unit, in the signal's units."""
        return self.clip / self.levels

    @property
    def sensitivity(self) -> float:
        """L2 change of the summed integers when one unit is added or removed, grid units; exact."""
        return float(self.levels)

    @property
    def most(self) -> int:
        """The L2 bound of a unit, which may all be in one cell."""
        return self.levels

    @property
    def shared(self) -> SharedNoise:
        """The noise of the sum, divided into the parties' shares."""
        return SharedNoise(self.noise_multiplier, self.levels**2, self.shares, self.distribution, self.granularity)

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """This party's noise, grid units. A stream that is not `secure` gives no guarantee; the caller must say so."""
        return self.shared.sample(shape, stream)

    def release(self, total: IntArray, present: int) -> Released:
        """The noisy sum of `present` parties in the signal's units; sigma counts the noise of all of them, rounding
        included.

        Raises `IntegrityError` when fewer shares are present than were charged, or the total is not integers.
        """
        return self.shared.released(total, present)

    def event(self) -> "DpEvent":
        """One release with this noise multiplier for the whole sum, however many blocks it is sent in."""
        return self.shared.event(self.levels**2)

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """As `Mechanism.slack`; based on a bound per cell of the distance from post-processing of the charged
        Gaussian.
        """
        return self.shared.slack(rows * columns * attempts, epsilon)
