"""The noisy sequences of texts as a data set, by a learned layer: what leaves where nothing is promised."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import HEURISTIC, Form, Priced
from aggregation.mechanisms.samples import MOST_CLASSES, MOST_ROWS
from aggregation.noise.shares import check_levels
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent

IntArray = NDArray[np.int64]

LAYERS: Final = ("nvib", "vtdp", "vib-fixed", "vib-learned")
"""Layers whose samples may leave: a Gaussian a token with Dirichlet weights or without, or one Gaussian a text."""
MOST_TOKENS: Final = 128
MOST_WIDTH: Final = 768
MOST_NUMBERS: Final = 1 << 27
"""The most numbers that a party's rows have together."""
_FARTHEST: Final = 1 << 30
"""Grid steps that a number is from 0 at most."""


class Sequences(NamedTuple):
    """Released rows in units of 1.

    vectors: float32 [rows, positions, width]. log_weights: float32 [rows, positions], those of equal weights where none
    leave. labels: int64 [rows].
    """

    vectors: NDArray[np.float32]
    log_weights: NDArray[np.float32]
    labels: IntArray


@dataclass(frozen=True, slots=True)
class SequencesMechanism(Priced):
    """One noisy sequence a text, drawn by a learned layer, with the text's class as it is. It has no guarantee.

    Every position has a vector, and under "nvib" the logarithm of a weight; positions that a text does not have are
    drawn from the prior, so that no row tells a length. As many rows leave as the plan says, whatever a party holds:
    the others are samples of a text of no tokens, with classes that are drawn evenly.

    Why there is no guarantee: means, variances and pseudo-counts follow the text and are bounded by nothing that would
    bound a divergence. With means up to 1, variances in [.25, 1] and pseudo-counts in [.1, 10], 32 positions of 384
    numbers already cost epsilon 117,308 at delta 1e-5 (`learning.bottleneck.supremum`). And the layer is whoever's that
    provided it: one whose noise is as small as it may be shows the texts' vectors. So no sensitivity is claimed under
    any relation, and `event` is a `NonPrivateDpEvent`.

    rows: that every party releases. layer: one of `LAYERS`. tokens: of a text at most. width: numbers of a vector.
    sigma: of "vib-fixed" the standard deviation of its noise, else 0. levels: grid steps in 1. classes: of labels.
    Raises `ConclaveError` for a setting out of range.
    Source: NVDP, sections 2.2, 3.1 and 4.1.
    """

    kind: ClassVar[str] = "sequences"
    forms: ClassVar[tuple[Form, ...]] = (Form.SAMPLES,)
    guaranteed: ClassVar[bool] = False
    shares: ClassVar[int] = 0

    rows: int
    layer: str
    tokens: int
    width: int
    sigma: float
    levels: int
    classes: int

    def __post_init__(self) -> None:
        if self.layer not in LAYERS:
            raise ConclaveError(f"{self.layer[:40]!r} is no layer of noisy sequences. Use {', '.join(LAYERS)}.")
        for name, least, most in (
            ("rows", 1, MOST_ROWS), ("tokens", 1, MOST_TOKENS), ("width", 1, MOST_WIDTH), ("classes", 2, MOST_CLASSES),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ConclaveError(f"{name} is {value}; it must be a whole number from {least} to {most:,}.")
        check_levels(self.levels)
        if (self.layer == "vib-fixed") != (self.sigma != 0) or not (
            math.isfinite(self.sigma) and (self.sigma == 0 or 0.01 <= self.sigma <= 7)
        ):
            raise ConclaveError(f"sigma is {self.sigma:g}; it is from 0.01 to 7 of vib-fixed, and 0 of other layers.")
        if self.rows * self.columns > MOST_NUMBERS:
            raise ConclaveError(
                f"{self.rows:,} rows of {self.columns:,} numbers are more than {MOST_NUMBERS:,}. Ask for fewer rows, "
                "tokens or numbers of a vector."
            )

    @property
    def positions(self) -> int:
        """Vectors of a sequence: one a token, and under "nvib" the prior's; or one of a whole text."""
        return 1 if self.layer.startswith("vib") else self.tokens + self.weighted

    @property
    def weighted(self) -> bool:
        """Whether vectors have weights of their own."""
        return self.layer == "nvib"

    @property
    def columns(self) -> int:
        """Columns of the released matrix: vector after vector, the logarithms of weights, and the class."""
        return self.positions * (self.width + self.weighted) + 1

    @property
    def granularity(self) -> float:
        """One grid unit."""
        return 1.0 / self.levels

    def contribute(self, numbers: NDArray[np.floating]) -> IntArray:
        """Sequences on the grid, [texts, positions * (width + weighted)], as `flat` puts them.

        What is not a finite number becomes 0, in silence: an error would tell something of a text. Raises
        `IntegrityError` for another shape.
        """
        if numbers.ndim != 2 or numbers.shape[1] != self.columns - 1:
            raise IntegrityError(f"Sequences must be [texts, {self.columns - 1:,}]; these are {numbers.shape}.")
        scaled = np.nan_to_num(numbers.astype(np.float64) * self.levels, nan=0.0, posinf=0.0, neginf=0.0)
        return np.asarray(np.rint(scaled.clip(-_FARTHEST, _FARTHEST)), np.int64)

    def flat(self, vectors: NDArray[np.floating], log_weights: NDArray[np.floating]) -> NDArray[np.floating]:
        """Vectors [texts, positions, width], and their log weights [texts, positions] if they leave, as one row each.

        Raises `IntegrityError` for other shapes.
        """
        if vectors.shape[1:] != (self.positions, self.width) or log_weights.shape != vectors.shape[:2]:
            raise IntegrityError(f"Vectors {vectors.shape} and weights {log_weights.shape} are no such sequences.")
        whole = vectors.reshape(len(vectors), -1)
        return np.hstack([whole, log_weights]) if self.weighted else whole

    def released(self, rows: IntArray) -> Sequences:
        """Received rows [rows, columns] in units of 1. Raises `IntegrityError` for rows that are none."""
        if rows.shape != (self.rows, self.columns):
            raise IntegrityError(f"They are {rows.shape}, and {self.rows:,} rows of {self.columns:,} were asked.")
        labels = rows[:, -1].astype(np.int64)
        if not (labels.min() >= 0 and labels.max() < self.classes):
            raise IntegrityError("A label is no class of the plan.")
        size = self.positions * self.width
        vectors = (rows[:, :size] * self.granularity).astype(np.float32)
        if self.weighted:
            logs = (rows[:, size:-1] * self.granularity).astype(np.float32)
            if logs.max() > 0:
                raise IntegrityError("The logarithm of a weight is above 0.")
        else:
            logs = np.full((self.rows, self.positions), -math.log(self.positions), np.float32)
        return Sequences(vectors.reshape(self.rows, self.positions, self.width), logs, labels)

    def places(self, texts: int, stream: NoiseStream) -> IntArray:
        """The rows that so many texts take, [texts], in a uniformly random order. Raises `IntegrityError` for more."""
        if texts > self.rows:
            raise IntegrityError(f"{texts:,} texts do not fit {self.rows:,} rows.")
        return np.lexsort(stream.uint64(2 * self.rows).reshape(2, self.rows)).astype(np.int64)[:texts]

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """Zeros: the layer's noise comes before the sequences are put on their grid."""
        return np.zeros(shape, dtype=np.int64)

    def event(self) -> "DpEvent":
        """A release that no accountant can bound."""
        from dp_accounting import NonPrivateDpEvent

        return NonPrivateDpEvent()

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """Zero: nothing is claimed that a sampler could miss."""
        return 0.0

    def queries(self, charges: int) -> int:
        """Every row."""
        return charges * self.rows

    def described(self, rows: int, columns: int, form: Form) -> str:
        """Its rows, their layer, and that this is a heuristic."""
        what = {
            "nvib": f"a Gaussian of each of {self.tokens:,} tokens with Dirichlet weights",
            "vtdp": f"a Gaussian of each of {self.tokens:,} tokens",
            "vib-fixed": f"one Gaussian of deviation {self.sigma:g}",
            "vib-learned": "one Gaussian of a learned deviation",
        }[self.layer]
        return (
            f"{self.rows:,} rows of every party, each a text sampled by a learned layer ({self.layer}: {what}, vectors "
            f"of {self.width:,} numbers), its class as it is: {HEURISTIC}, which no proof covers"
        )
