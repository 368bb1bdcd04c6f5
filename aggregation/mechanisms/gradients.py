"""Gradient sums of private training, step by step (DP-SGD, Abadi et al. 2016, algorithm 1).

Every unit's gradient is clipped; the sum is rounded to an integer grid and gets Gaussian noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from aggregation.arrays import FloatArray, IntArray
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import Form, Priced, Released
from aggregation.mechanisms.shared_noise import LARGEST_NOISE, SharedNoise
from aggregation.noise.bins import LARGEST_TABLE
from aggregation.noise.shares import GAUSSIAN, MOST_LEVELS, check_levels, check_shares
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent

MOST = 1 << 40
MARGIN = 2.0**-20
"""Part of `clip` that no unit may use: it pays for double precision, where a sum depends a little on its order.

Adding a unit may change the last bits of the others' gradients and of the sum. With B units in a batch that moves the
sum by about 1e-13 B clip; the margin holds it up to some million units a batch.
"""
SINGLE_MARGIN = 2.0**-7
"""The same where gradients are computed in single precision. There each unit's vector is computed apart, with a bound
of its norm that holds for any rounding, and vectors are added in double precision: with B units a sum is off by some
1e-12 B clip (`learning.private_training.clipped_sum.adding`).
"""
SMALLEST_CLIP, LARGEST_CLIP = 2.0**-60, 2.0**60
"""For a clip between them, a product of gradients that underflows or overflows in single precision changes a sum by
less than a margin.
"""


@dataclass(frozen=True, slots=True)
class GradientMechanism(Priced):
    """Noisy sums of clipped gradients over random batches: one party's own, or the sum over all parties at every step.

    At each party, each step takes every unit with `sampling_probability`, independently and secretly (`batch`), clips
    each taken unit's gradient to L2 norm `clip` (`scales`), rounds the sum to a grid of step clip/levels
    (`contribute`), and adds integer noise to every parameter (`noise_share`), also when the batch is empty.

    Adding or removing one unit changes a batch's sum by at most `levels` grid units before rounding, and rounding moves
    either sum by at most half a unit a parameter: L2 sensitivity levels + sqrt(parameters), the root rounded up, under
    add-or-remove of one unit, also where the rounded sums of several parties are added, for the unit is one party's.
    The noise of `shares` parties together is that of as many rounded normals, with a standard deviation of at least
    noise_multiplier * sensitivity. On an integer sum it is post-processing of a Gaussian, up to a distance that `slack`
    charges. The price of all steps is `event()`.

    Source: DP-SGD (Abadi et al. 2016, algorithm 1), its event a Poisson-sampled Gaussian (Mironov, Talwar & Zhang 2019,
    "Renyi Differential Privacy of the Sampled Gaussian Mechanism").

    It holds only if
      - stream and batches stay secret, and the stream is secure (`NoiseStream.secure`): a batch that is known, or that
        follows from a plan's seed, is not amplified by sampling;
      - gradients are each scaled by `scales` of their own norm, with the margin for the precision they are added in;
      - the divisor of the sum is a public number, never the size of the batch;
      - noisy sums are all that the model, the stopping time and the settings depend on.

    clip: L2 bound of one unit's gradient.
    levels: grid steps in `clip`, at most 2^20; `fine_levels` has enough for rounding to matter little.
    noise_multiplier: standard deviation charged over sensitivity.
    sampling_probability: in (0, 1]. steps: how many sums are taken; fewer may be. parameters: length of a gradient.
    shares: parties whose noise is counted on, each sampling its own units; 1 where a party trains alone.

    Raises `ConclaveError` for a setting out of range.
    """

    kind: ClassVar[str] = "gradients"
    forms: ClassVar[tuple[Form, ...]] = (Form.TRAINING, Form.STEPPED, Form.WEIGHTS)
    zeros: ClassVar[Mapping[str, Any]] = MappingProxyType({"shares": 1})

    clip: float
    levels: int
    noise_multiplier: float
    sampling_probability: float
    steps: int
    parameters: int
    shares: int = 1

    def __post_init__(self) -> None:
        check_levels(self.levels)
        check_shares(self.shares)
        for name in ("steps", "parameters"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
                raise ConclaveError(f"{name} is {value}; it must be a whole number from 1 to {MOST:,}.")
        for name in ("clip", "noise_multiplier"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConclaveError(f"{name} is {value}; it must be a number above 0.")
        if not 0 < self.sampling_probability <= 1:
            raise ConclaveError(f"sampling_probability is {self.sampling_probability}; it must be above 0, at most 1.")
        if not SMALLEST_CLIP <= self.clip <= LARGEST_CLIP:
            raise ConclaveError(f"clip is {self.clip}, out of all proportion to gradients.")
        self.shared.check()

    @property
    def granularity(self) -> float:
        """One grid unit, in the gradient's units."""
        return self.clip / self.levels

    @property
    def sensitivity(self) -> float:
        """L2 change of a step's rounded sum when one unit is added or removed, grid units."""
        return float(self.levels + math.isqrt(self.parameters - 1) + 1)

    @property
    def shared(self) -> SharedNoise:
        """The noise of one step, divided into shares."""
        return SharedNoise(self.noise_multiplier, int(self.sensitivity) ** 2, self.shares, GAUSSIAN, self.granularity)

    def batch(self, units: int, stream: NoiseStream) -> IntArray:
        """Poisson sampling: the indices of the units taken in one step, each independently.

        A uniform 64-bit word is compared with floor(q 2^64), so that no unit is taken with a probability above q.
        """
        threshold = math.floor(Fraction(self.sampling_probability) * 2**64)
        words = stream.uint64(units)
        if threshold == 2**64:
            return np.arange(units, dtype=np.int64)
        return np.flatnonzero(words < np.uint64(threshold)).astype(np.int64)

    def scales(self, norms: FloatArray, margin: float = MARGIN) -> FloatArray:
        """What each unit's gradient is multiplied by, [units] in 0..1, given L2 norms or upper bounds of them.

        A gradient of norm up to clip (1 - margin) is unchanged; one whose norm is infinite or NaN is left out: its
        factor is 0. margin: `MARGIN`, or `SINGLE_MARGIN`. Raises `IntegrityError` for a norm that is negative.
        """
        if (norms < 0).any():
            raise IntegrityError("A unit's gradient has a negative norm. Bound it from above.")
        finite, bound = np.isfinite(norms), self.clip * (1 - margin)
        scales = np.minimum(1.0, bound / np.maximum(norms, bound, where=finite, out=np.full(norms.shape, bound)))
        return np.asarray(np.where(finite, scales, 0.0), dtype=np.float64)

    def contribute(self, signal: FloatArray) -> IntArray:
        """Round a batch's sum of clipped gradients, [parameters], to integers on the grid.

        Raises `IntegrityError` for another shape or type, for NaN or infinity, and for a sum out of the grid's range.
        """
        if signal.shape != (self.parameters,):
            raise IntegrityError(
                f"A sum of gradients is float64 [{self.parameters}]; this is {signal.dtype} {list(signal.shape)}."
            )
        return self.contribute_part(signal)

    def contribute_part(self, signal: FloatArray) -> IntArray:
        """As `contribute`, for a range of the parameters, so that no array of all of them is needed.

        Raises `IntegrityError` for anything but finite float64 numbers [range] within the grid.
        """
        if signal.dtype != np.float64 or signal.ndim != 1:
            raise IntegrityError(
                f"A sum of gradients is float64 [{self.parameters}]; this is {signal.dtype} {list(signal.shape)}."
            )
        scaled = signal * (self.levels / self.clip)
        if not (np.abs(scaled) < 2.0**52).all():
            raise IntegrityError("A sum of gradients holds NaN, infinity or a value beyond the grid.")
        return np.rint(scaled).astype(np.int64)

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """One party's part of the noise of one step, grid units.

        A stream that is not `secure` gives no guarantee; the caller must say so.
        """
        return self.shared.sample(shape, stream)

    def release(self, total: IntArray, present: int = 1) -> Released:
        """A step's noisy sum in the gradient's units. Raises `IntegrityError` unless it is integers with its noise."""
        return self.shared.released(total, present)

    def event(self) -> "DpEvent":
        """All steps: Gaussian releases on Poisson samples, composed."""
        # Imported here: the import takes a second, and a party's training process never prices.
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent

        one = PoissonSampledDpEvent(self.sampling_probability, GaussianDpEvent(self.noise_multiplier))
        return SelfComposedDpEvent(one, self.steps)

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """As `Mechanism.slack`: all parameters get noise in every step, whatever part of them leaves."""
        return self.shared.slack(self.steps * self.parameters * attempts, epsilon)

    def described(self, rows: int, columns: int, form: Form) -> str:
        """Its clip, sampling, noise and steps, and which parties train what."""
        if form == Form.STEPPED:
            return (
                f"steps of DP-SGD by all parties: each unit's gradient clipped to L2 norm {self.clip:g}, sampling "
                f"{self.sampling_probability:.4g}, Gaussian noise of standard deviation {self.noise_multiplier:g} "
                f"times the clip on each of {self.parameters:,} sums, {self.steps:,} steps"
            )
        alone = (
            f"that each party trained alone by DP-SGD: gradients of a unit clipped to {self.clip:g}, noise multiplier "
            f"{self.noise_multiplier:g}, sampling {self.sampling_probability:.4g}, {self.steps:,} steps"
        )
        return f"a model {alone}; {self.parameters:,} parameters" if form == Form.WEIGHTS else f"models {alone}"


def fine_levels(noise_multiplier: float, parameters: int) -> int:
    """The number of levels at which rounding a sum of gradients costs little more noise.

    For few parameters as many as a table of noise allows, if rounding then costs at most a sixteenth more: plans of
    that size keep the grid and the hash that they had. For more parameters as many as make it a 64th, or fewer where
    that noise would be too large for a sum (`SharedNoise.check`).
    """
    root = math.sqrt(parameters)
    table, largest = (math.floor(sigma / noise_multiplier - root) - 1 for sigma in (LARGEST_TABLE, LARGEST_NOISE))
    return max(1, min(MOST_LEVELS, table if table >= 16 * root else min(largest, math.ceil(64 * root))))


def gradient_norms(parts: NDArray[np.float64], uncertain: NDArray[np.float64]) -> FloatArray:
    """Upper bounds of norms [units], from computed squared norms `parts` and the sizes of the terms that made them.

    Where terms cancel, their rounding error stays: 1e-9 of the terms' size is added, far above what double precision
    loses over sums of up to a million terms.
    """
    return np.asarray(np.sqrt(np.maximum(parts, 0.0) + 1e-9 * uncertain), dtype=np.float64)
