"""Hidden states of teachers: clipped layer by layer, on an integer grid, summed over teachers under Gaussian noise."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from aggregation.arrays import FloatArray, IntArray
from aggregation.clipping import magnitudes_to_grid
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import Form, Priced, Released
from aggregation.mechanisms.shared_noise import SharedNoise
from aggregation.noise.shares import GAUSSIAN, check_levels
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, slots=True)
class HiddenMechanism(Priced):
    """Sum over teachers of each query's hidden states, every layer's vector clipped to L2 norm `clip`.

    Each vector is put on the grid of step clip/levels so that its integers have norm at most `levels`: checked in
    integers, so it holds exactly. A vector on the grid depends on that vector alone, bit for bit.

    Adding or removing one unit changes one teacher, arbitrarily: in every layer its vector moves to another in the
    ball, possibly the opposite one. The L2 sensitivity of a query is 2 * levels * sqrt(layers) grid units, under
    add-or-remove of one unit. (DPED, appendix B.2.1, bounds norms by C and takes the change as C, not 2C. It also adds
    the noise to the mean, which is wrong once the number of teachers varies. Calibrate on the sum and divide
    afterwards.) A sum with `shares` noise shares is post-processing of that sum under N(0, sigma^2), sigma >= noise, up
    to a distance that `slack` charges to delta: RDP(a) = 2 a layers clip^2 / noise^2 a query.

    It holds only if
      - every teacher learned from its own units and public values alone, alignment included;
      - the number of teachers and the queries are public;
      - at least `shares` shares, drawn from secure streams (`NoiseStream.secure`) and unknown to the attacker, are
        in the sum, and nobody sees a sum with fewer. With a trusted aggregator, the aggregator does;
      - which parties are present does not depend on their data.

    layers, width: vectors of a query and numbers in each.
    clip: L2 bound of one layer's vector, in the hidden states' units.
    levels: grid steps in `clip`, at most 2^20.
    noise: standard deviation of the whole noise on each number of the sum, in the hidden states' units.
    shares: how many parties' shares the guarantee counts on.
    distribution: what the shares are drawn from, one of `shares.DISTRIBUTIONS`. The Gaussian above is the first; under
    another the same integers are released under Skellam or discrete Gaussian noise, priced as that (`shares.event_of`).

    Raises `ConclaveError` for a setting out of range, or one whose share of noise cannot be drawn.
    Source: DPED (Feng & Hong), equations (1) and (2), with the sensitivity above in place of that of appendix B.2.1.
    """

    kind: ClassVar[str] = "hidden"
    forms: ClassVar[tuple[Form, ...]] = (Form.SUMMED,)

    layers: int
    width: int
    clip: float
    levels: int
    noise: float
    shares: int
    distribution: str = GAUSSIAN

    def __post_init__(self) -> None:
        for name, value in (("layers", self.layers), ("width", self.width)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConclaveError(f"{name} is {value}; it must be a whole number of at least 1.")
        for name, size in (("clip", self.clip), ("noise", self.noise)):
            if not (math.isfinite(size) and size > 0):
                raise ConclaveError(f"{name} is {size}; it must be a number above 0, in the hidden states' units.")
        check_levels(self.levels)
        if not (math.isfinite(self.levels / self.clip) and self.granularity > 0):
            raise ConclaveError(f"clip is {self.clip}, out of all proportion. Use about a usual norm.")
        self.shared.check()

    @property
    def granularity(self) -> float:
        """One grid unit, in the hidden states' units."""
        return self.clip / self.levels

    @property
    def columns(self) -> int:
        """Numbers of one query: layers * width."""
        return self.layers * self.width

    @property
    def sensitivity(self) -> float:
        """L2 change of one query's summed integers when one unit is added or removed, grid units."""
        return 2 * self.levels * math.sqrt(self.layers)

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation charged over sensitivity."""
        return self.noise / (2 * self.clip * math.sqrt(self.layers))

    @property
    def shared(self) -> SharedNoise:
        """Its noise, divided into the parties' shares."""
        return SharedNoise(
            self.noise_multiplier, 4 * self.levels**2 * self.layers, self.shares, self.distribution, self.granularity
        )

    def contribute(self, states: FloatArray) -> IntArray:
        """This party's part: states `[teachers, queries, layers, width]` to int64 `[queries, layers * width]`.

        Raises `IntegrityError` for another shape, for NaN or infinity, and for what is not real numbers.
        """
        if not isinstance(states, np.ndarray) or states.ndim != 4 or states.shape[2:] != (self.layers, self.width):
            shape = getattr(states, "shape", type(states).__name__)
            raise IntegrityError(
                f"Hidden states must be an array [teachers, queries, {self.layers} layers, width {self.width}]; this "
                f"one is {shape}."
            )
        if not np.issubdtype(states.dtype, np.floating):
            raise IntegrityError(f"Hidden states must be floating-point numbers; these are {states.dtype}.")
        queries = states.shape[1]
        starts = np.arange(0, queries * self.columns, self.width)
        total = np.zeros(queries * self.columns, dtype=np.int64)
        for teacher in states:  # one at a time: the grid works in several arrays of this size
            values = teacher.astype(np.float64).ravel()
            if not np.isfinite(values).all():
                raise IntegrityError("A teacher's hidden states hold NaN or infinity; every number must be finite.")
            steps = magnitudes_to_grid(np.abs(values), starts, self.clip, self.levels)
            total += np.where(values < 0, -steps, steps)
        return total.reshape(queries, self.columns)

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """This party's noise, grid units. A stream that is not `secure` gives no guarantee; the caller must say so."""
        return self.shared.sample(shape, stream)

    def release(self, total: IntArray, present: int) -> Released:
        """The noisy SUM over teachers `[queries, layers * width]` in the hidden states' units.

        Dividing by the number of teachers at the present parties gives a mean, by post-processing.

        Raises `IntegrityError` when fewer shares are present than were charged, or the total is not integers.
        """
        return self.shared.released(total, present)

    def event(self) -> "DpEvent":
        """One release: ONE query, all layers together. Compose it as many times as there are distinct queries."""
        # Imported here: the import takes a second, and a party's training process never prices.
        from aggregation.accounting.renyi import l1_of

        return self.shared.event(l1_of(self.shared.square, self.columns))

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """As `Mechanism.slack`: rows are queries, columns the numbers of a query."""
        return self.shared.slack(rows * columns * attempts, epsilon)

    def described(self, rows: int, columns: int, form: Form) -> str:
        """Its layers, its clip and its noise; `JointMechanism` adds the queries."""
        return self.bounded(f"hidden states of {self.layers} layer(s) clipped to L2 norm {self.clip:g} each")

    def bounded(self, what: str) -> str:
        """What is clipped, with the sensitivity and the noise of the sum."""
        return (
            f"{what} (sensitivity of the sum {2 * self.clip * self.layers**0.5:.3g}), "
            f"{self.shared.name} noise of {self.noise:.4g} on every coordinate of the sum"
        )
