"""One noisy vector of each text, with its label under randomised response: the rows of a public data set."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from aggregation.arrays import FloatArray, IntArray
from aggregation.clipping import to_grid
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import Form, Priced
from aggregation.mechanisms.shared_noise import SharedNoise
from aggregation.noise.shares import GAUSSIAN, check_levels
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent

MOST_ROWS: Final = 1 << 20
MOST_DIMENSIONS: Final = 1 << 12
MOST_CLASSES: Final = 1 << 10
MOST_TEXTS: Final = 1 << 10
MOST_LABEL_EPSILON: Final = 20.0
_WORD: Final = 1 << 64
_MARGIN: Final = 1 << 14
"""By how much fewer of 2^64 words keep a label: more than the rounding of the probability, and of a remainder."""
_AT_ONCE: Final = 1 << 18
"""Cells that are bounded, or get noise, at a time."""


class Drawn(NamedTuple):
    """Released rows: vectors float64 [rows, dimensions] in units of the clip, labels int64 [rows]."""

    vectors: FloatArray
    labels: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SamplesMechanism(Priced):
    """A party's texts as rows of a data set, so many as the plan says: each row a vector of norm at most 1 under
    Gaussian noise, and a class under randomised response.

    The party chooses up to `rows` of its texts, each once; in the place of those that it lacks it puts a vector of
    zeros with a class that is drawn evenly. The rows leave in random order. So nothing tells how many texts there are.

    A unit has up to `texts` of the chosen texts. When one is added or removed, at most so many rows change: each from
    zeros, from another text that had no room, or to these. A changed row moves by `levels` grid units from zeros and by
    2 * levels at most in any case, and a uniformly random order makes it of no importance which rows they are. The L2
    sensitivity is 2 * levels * sqrt(texts), under add-or-remove of one unit and also when one unit takes another's
    place. The price is one `GaussianDpEvent(noise_multiplier)` for all cells together, and one
    `RandomizedResponseDpEvent` for each of the unit's texts.

    Source: the Gaussian mechanism as priced by Balle & Wang 2018, "Improving the Gaussian Mechanism for Differential
    Privacy"; the rest as of `RandomizedResponseDpEvent` and `RoundedGaussian`.

    It holds only if
      - which texts are chosen when there are too many is decided text by text, by a secret order that no other text
        changes;
      - a text's vector depends on that text and on public values alone, and what makes it was not learned from any of
        the texts;
      - the noise comes from a secure stream that draws nothing else, and the rows are drawn once.

    rows: that every party releases. dimensions: of a vector. levels: grid steps in norm 1, at most 2^20.
    noise_multiplier: standard deviation charged over sensitivity, so that each number has noise of 2 * noise_multiplier
    * sqrt(texts). texts: of one unit. classes: of labels. label_epsilon: what a text's label costs; 0 where labels are
    public and leave as they are, which protects the texts of labels that everybody knows and nothing of the labels.

    Raises `ConclaveError` for a setting out of range, or noise that cannot be drawn.
    """

    kind: ClassVar[str] = "samples"
    forms: ClassVar[tuple[Form, ...]] = (Form.SAMPLES,)

    rows: int
    dimensions: int
    levels: int
    noise_multiplier: float
    texts: int
    classes: int
    label_epsilon: float

    def __post_init__(self) -> None:
        for name, least, most in (
            ("rows", 1, MOST_ROWS), ("dimensions", 1, MOST_DIMENSIONS), ("texts", 1, MOST_TEXTS),
            ("classes", 2, MOST_CLASSES),
        ):  # fmt: skip
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise ConclaveError(f"{name} is {value}; it must be a whole number from {least} to {most:,}.")
        check_levels(self.levels)
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise ConclaveError(f"noise_multiplier is {self.noise_multiplier}; it must be a number above 0.")
        if not 0 <= self.label_epsilon <= MOST_LABEL_EPSILON:
            raise ConclaveError(
                f"label_epsilon is {self.label_epsilon}; it must be from 0, labels that are public, to "
                f"{MOST_LABEL_EPSILON:g}."
            )
        self._noise.check()

    @property
    def shares(self) -> int:
        """1: each party adds all of its own noise."""
        return 1

    @property
    def columns(self) -> int:
        """Columns of the released matrix: a vector's numbers, and the class."""
        return self.dimensions + 1

    @property
    def granularity(self) -> float:
        """One grid unit, as a part of the norm 1."""
        return 1.0 / self.levels

    @property
    def sigma(self) -> float:
        """Standard deviation of the noise on every number, rounding included, where 1 is the largest norm."""
        return math.sqrt(self._noise.share.variance) / self.levels

    @property
    def sensitivity(self) -> float:
        """L2 change of all released vectors when one unit is added, removed or replaced, grid units."""
        return 2.0 * self.levels * math.sqrt(self.texts)

    @property
    def kept(self) -> float:
        """The probability that a text's label leaves as it is."""
        return 1.0 if not self.label_epsilon else self._keeps / _WORD

    def contribute(self, vectors: NDArray[np.floating]) -> IntArray:
        """Vectors [texts, dimensions] on the grid: integers, each row of norm at most `levels`.

        A vector on the grid depends on that vector alone, bit for bit. Raises `IntegrityError` for anything but a
        two-dimensional array of finite real numbers.
        """
        if vectors.ndim != 2 or vectors.shape[1] != self.dimensions:
            raise IntegrityError(f"Vectors must be an array [texts, {self.dimensions:,}]; this one is {vectors.shape}.")
        made = np.empty(vectors.shape, np.int64)
        step = max(1, _AT_ONCE // self.dimensions)
        for start in range(0, len(vectors), step):
            made[start : start + step] = to_grid(vectors[start : start + step], 1.0, self.levels)
        return made

    def drawn(self, bounded: IntArray, labels: NDArray[np.int64], stream: NoiseStream) -> IntArray:
        """The released rows [rows, columns] of up to so many texts: noisy vectors, and last a class, in random order.

        bounded: as `contribute` gives them, [texts, dimensions]. labels: [texts], from 0. Raises `IntegrityError` for
        more texts than rows, and for a label that is no class. Memory: twice the rows.
        """
        texts = len(bounded)
        if texts > self.rows or labels.shape != (texts,) or bounded.shape != (texts, self.dimensions):
            raise IntegrityError(f"{texts:,} texts with {len(labels):,} labels do not fill {self.rows:,} rows.")
        if texts and not (labels.min() >= 0 and labels.max() < self.classes):
            raise IntegrityError("A label is no class of the plan.")
        order = self.order(stream.child("order"))
        made = np.zeros((self.rows, self.columns), np.int64)
        made[order[:texts], :-1] = bounded
        made[order, -1] = self._said(labels, stream.child("labels"))
        noise, step = stream.child("noise"), max(1, _AT_ONCE // self.dimensions)
        for start in range(0, self.rows, step):
            part = made[start : start + step, :-1]
            part += self.noise_share(part.shape, noise)
        return made

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """The noise of so many numbers, grid units. A stream that is not `secure` gives no guarantee."""
        return self._noise.sample(shape, stream)

    def released(self, rows: IntArray) -> Drawn:
        """Received rows [rows, columns] in units of the clip. Raises `IntegrityError` for rows that are none."""
        if rows.shape != (self.rows, self.columns):
            raise IntegrityError(f"They are {rows.shape}, and {self.rows:,} rows of {self.columns:,} were asked.")
        labels = rows[:, -1].astype(np.int64)
        if not (labels.min() >= 0 and labels.max() < self.classes):
            raise IntegrityError("A label is no class of the plan.")
        return Drawn(np.asarray(rows[:, :-1] * self.granularity, np.float64), labels)

    def event(self) -> "DpEvent":
        """All rows together, whatever blocks they leave in."""
        from aggregation.accounting.events import RandomizedResponseDpEvent
        from aggregation.accounting.library import ComposedDpEvent, GaussianDpEvent, SelfComposedDpEvent

        vectors = GaussianDpEvent(self.noise_multiplier)
        if not self.label_epsilon:
            return vectors
        label = RandomizedResponseDpEvent(self.label_epsilon, self.classes)
        return ComposedDpEvent([vectors, label if self.texts == 1 else SelfComposedDpEvent(label, self.texts)])

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """As `Mechanism.slack`: the noise of every number, and the order, which is uniform but for ties of 128 bits."""
        return self._noise.slack(rows * columns * attempts, epsilon) + attempts * self.rows**2 * 2.0**-128

    def queries(self, charges: int) -> int:
        """Every row."""
        return charges * self.rows

    def described(self, rows: int, columns: int, form: Form) -> str:
        """Its rows, their bound and their noise, and what happens to labels."""
        labels = (
            f"its class kept with probability {self.kept:.4g} among {self.classes:,} (randomised response of epsilon "
            f"{self.label_epsilon:g})"
            if self.label_epsilon
            else "its class as it is, because the plan calls labels public"
        )
        unit = "" if self.texts == 1 else f", {self.texts:,} texts a unit at most"
        return (
            f"{self.rows:,} rows of every party, each a text's vector of {self.dimensions:,} numbers clipped to L2 "
            f"norm 1 under Gaussian noise of {self.sigma:.4g} on each (sensitivity 2 a row{unit}), {labels}; rows that "
            "no text fills are noise alone, so that their number tells nothing"
        )

    @property
    def _noise(self) -> SharedNoise:
        return SharedNoise(self.noise_multiplier, 4 * self.texts * self.levels**2, 1, GAUSSIAN, self.granularity)

    @property
    def _keeps(self) -> int:
        """How many of 2^64 words keep a label.

        Rounded down, so that the probability of a kept label is at most e^label_epsilon times that of each other, and
        still is when the others' differ by the remainder of 2^64 words.
        """
        ideal = 1.0 / (1.0 + (self.classes - 1) * math.exp(-self.label_epsilon))
        return max(0, int(ideal * _WORD) - _MARGIN)

    def _said(self, labels: NDArray[np.int64], stream: NoiseStream) -> NDArray[np.int64]:
        """The classes that leave [rows]: the texts' own under randomised response, then even draws."""
        words = stream.uint64(2 * self.rows).reshape(self.rows, 2)
        even = (words[:, 1] % np.uint64(self.classes)).astype(np.int64)
        own, said = len(labels), even.copy()
        if not self.label_epsilon:
            said[:own] = labels
            return said
        other = (labels + 1 + (words[:own, 1] % np.uint64(self.classes - 1)).astype(np.int64)) % self.classes
        said[:own] = np.where(words[:own, 0] < np.uint64(self._keeps), labels, other)
        return said

    def order(self, stream: NoiseStream) -> NDArray[np.int64]:
        """A uniformly random order of the rows: the places that texts take, and then those that nothing fills."""
        words = stream.uint64(2 * self.rows).reshape(2, self.rows)
        return np.lexsort(words).astype(np.int64)
