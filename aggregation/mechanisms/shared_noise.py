"""Noise in shares: the code that counts, vectors, votes, hidden states and gradients have in common."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from aggregation.arrays import FloatArray, IntArray
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import Released
from aggregation.noise.shares import (
    DISCRETE_GAUSSIAN,
    GAUSSIAN,
    SKELLAM,
    Share,
    check_distribution,
    check_shares,
    delta_of,
    distance_of,
    event_of,
    share_of,
)
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent

LARGEST_NOISE = 2.0**30 / 13.5
"""Standard deviation, grid units, of all shares of a sum together.

Sums are integers modulo 2^32. Half of the range holds 13.5 standard deviations of the noise, which it leaves with a
probability below 2^-135 a value; the other half is for what is summed and for the noise of further parties.
"""

_WORDS = {GAUSSIAN: "Gaussian", SKELLAM: "Skellam", DISCRETE_GAUSSIAN: "discrete Gaussian"}


@dataclass(frozen=True, slots=True)
class SharedNoise:
    """The noise of one sum of integers, drawn in equal shares.

    noise_multiplier: standard deviation charged over sensitivity. square: the L2 sensitivity squared under
    add-or-remove of one unit, grid units squared, exact. shares: how many shares the guarantee counts on, unknown to
    the attacker; each has variance noise_multiplier^2 square / shares. distribution: what a share is drawn from, one of
    `shares.DISTRIBUTIONS`. granularity: one grid unit, in the signal's units.
    """

    noise_multiplier: float
    square: int
    shares: int
    distribution: str
    granularity: float

    def check(self) -> None:
        """Raises `ConclaveError` for an invalid number of shares or distribution, for a share that cannot be drawn, and
        for noise that a sum has no room for.
        """
        check_shares(self.shares)
        check_distribution(self.distribution)
        whole = math.sqrt(self.shares * self.share.variance)
        if whole > LARGEST_NOISE:
            raise ConclaveError(
                f"Noise of {whole:,.0f} grid units in all may leave the range of a sum, whose numbers have 32 bits: it "
                f"must be at most {LARGEST_NOISE:,.0f}. Use fewer levels."
            )

    @property
    def share(self) -> Share:
        """The distribution of one share, grid units."""
        return share_of(self.distribution, self.noise_multiplier, self.square, self.shares)

    @property
    def name(self) -> str:
        """The distribution's name in sentences."""
        return _WORDS[self.distribution]

    @property
    def distance(self) -> float:
        """The total-variation distance, per value, from post-processing of the charged noise."""
        return distance_of(self.share, self.shares)

    def sample(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """One share, grid units. A stream that is not `secure` gives no guarantee; the caller must say so."""
        return self.share.sample(shape, stream)

    def released(self, total: IntArray, present: int) -> Released:
        """A sum that holds `present` shares, in the signal's units; sigma counts the noise of all of them.

        Raises `IntegrityError` when fewer shares are present than were charged, or the total is not integers.
        """
        if present < self.shares:
            raise IntegrityError(
                f"The sum holds the noise of {present} parties and the guarantee needs {self.shares}: it must not be "
                "released. Wait for the missing parties, or run again with a plan for fewer."
            )
        if not np.issubdtype(total.dtype, np.integer):
            raise IntegrityError(f"A noisy sum is made of integers; this one holds {total.dtype}.")
        sigma = math.sqrt(present * self.share.variance) * self.granularity
        return Released(values=cast(FloatArray, total * self.granularity), sigma=sigma)

    def event(self, l1: int) -> "DpEvent":
        """The cost of one sum whose L1 norm changes by at most `l1` grid units when one unit is added or removed."""
        return event_of(self.distribution, self.noise_multiplier, l1, self.square, self.shares)

    def slack(self, values: int, epsilon: float) -> float:
        """Delta to add for this many values at the claimed epsilon: (1 + e^epsilon) values distance.

        More shares than are counted on add nothing: their noise is independent of the data.
        """
        return delta_of(values * self.distance, epsilon)
