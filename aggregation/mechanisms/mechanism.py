"""What a mechanism is: one object that bounds, noises, combines and prices, used at both ends of the wire."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Contribution: TypeAlias = IntArray | sparse.csr_array
"""Integers on the mechanism's public grid, dense or with the zeros left out."""

Signal = TypeVar("Signal", contravariant=True)


@dataclass(frozen=True, slots=True)
class Released:
    """What a mechanism made public.

    values: the noisy sum in the signal's own units.
    sigma: standard deviation of the noise on each value, same units, counting every party's share that is in the sum.
    """

    values: FloatArray
    sigma: float


class Mechanism(Protocol[Signal]):
    """How parties answer together so that no one unit shows.

    `contribute` and `noise_share` run at a party and decide everything that is private; `event` says what that cost;
    `release` runs at the coordinator and is post-processing of the noisy sum.

    sensitivity: L2 change of the summed integer contribution when one unit is added or removed, in grid units.
    shares: how many parties' noise shares the guarantee counts on; more may arrive, fewer must not be released.
    """

    @property
    def sensitivity(self) -> float: ...

    @property
    def shares(self) -> int: ...

    def contribute(self, signal: Signal) -> Contribution:
        """Bound every unit and put it on the grid. Raises `IntegrityError` on NaN or infinity."""
        ...

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """Draw this party's part of the noise: zero-mean integers in grid units."""
        ...

    def release(self, total: IntArray, present: int) -> Released:
        """Turn the sum over `present` parties back into the signal's units.

        Raises `IntegrityError` if present < shares.
        """
        ...

    def event(self) -> "DpEvent":
        """What one release cost, for the accountant."""
        ...

    def slack(self, values: int, epsilon: float) -> float:
        """Delta to add for `values` released values, because the noise in them is not exactly what `event` charges."""
        ...
