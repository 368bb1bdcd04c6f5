"""Votes of teachers, one per teacher and query, summed into histograms under Gaussian noise (Papernot et al. 2017,
2018).
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy import sparse

from aggregation.arrays import IntArray
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import Form, Priced, Released
from aggregation.mechanisms.shared_noise import SharedNoise
from aggregation.noise.shares import GAUSSIAN, check_levels
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, slots=True)
class VotesMechanism(Priced):
    """Histogram of the teachers' votes for each query; every class gets noise, those without a vote included.

    Adding or removing one unit changes one teacher, arbitrarily, and so one vote a query: one class loses a vote and
    another gains it. The L2 sensitivity is sqrt(2) votes, sqrt(2) * levels grid units, under add-or-remove of one unit.
    (DPED, appendix B.2.2, takes it as 1 and ignores the class that gains the vote.) A sum with `shares` noise shares is
    post-processing of the histogram under N(0, sigma^2), sigma >= noise, up to a distance that `slack` charges to delta
    (proof in `RoundedGaussian`): RDP(a) = a / noise^2 a query.

    It holds only if
      - every teacher learned from its own units and public values alone;
      - number of teachers, queries and classes are public;
      - at least `shares` shares, drawn from secure streams (`NoiseStream.secure`) and unknown to the attacker, are
        in the sum, and nobody sees a sum with fewer. With a trusted aggregator, the aggregator does;
      - which parties are present does not depend on their data.

    classes: how many public words a vote may name.
    levels: grid steps in one vote, at most 2^20.
    noise: standard deviation of the whole noise on a class, in votes.
    shares: how many parties' shares the guarantee counts on; each has variance (noise * levels)^2 / shares.
    distribution: what the shares are drawn from, one of `shares.DISTRIBUTIONS`. The Gaussian above is the first; under
    another the same integers are released under Skellam or discrete Gaussian noise, priced as that (`shares.event_of`).

    Raises `ConclaveError` for a setting out of range, or one whose share of noise cannot be drawn.
    Source: PATE (Papernot et al. 2017); the price is that of Papernot et al. 2018, proposition 8.
    """

    kind: ClassVar[str] = "votes"
    forms: ClassVar[tuple[Form, ...]] = (Form.SUMMED,)

    classes: int
    levels: int
    noise: float
    shares: int
    distribution: str = GAUSSIAN

    def __post_init__(self) -> None:
        check_classes(self.classes)
        check_levels(self.levels)
        if not (math.isfinite(self.noise) and self.noise > 0):
            raise ConclaveError(f"noise is {self.noise}; it must be a number of votes above 0.")
        self.shared.check()

    @property
    def sensitivity(self) -> float:
        """L2 change of one query's summed integers when one unit is added or removed, grid units."""
        return math.sqrt(2) * self.levels

    @property
    def noise_multiplier(self) -> float:
        """Standard deviation charged over sensitivity."""
        return self.noise / math.sqrt(2)

    @property
    def shared(self) -> SharedNoise:
        """Its noise, divided into the parties' shares."""
        return SharedNoise(self.noise_multiplier, 2 * self.levels**2, self.shares, self.distribution, 1 / self.levels)

    def contribute(self, votes: IntArray) -> sparse.csr_array:
        """This party's part of the sum: votes `[teachers, queries]`, indices of classes, to int64 `[queries, classes]`.

        Raises `IntegrityError` for anything but a two-dimensional array of whole numbers from 0 to classes - 1.
        """
        votes = checked_votes(votes, self.classes)
        queries = votes.shape[1]
        cells = (np.arange(queries) * self.classes + votes).ravel()  # [teachers * queries], places in the flat sum
        touched, counts = np.unique(cells, return_counts=True)
        starts = np.searchsorted(touched, np.arange(queries + 1) * self.classes)
        return sparse.csr_array(
            (counts * np.int64(self.levels), touched % self.classes, starts), shape=(queries, self.classes)
        )

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """This party's noise, grid units. A stream that is not `secure` gives no guarantee; the caller must say so."""
        return self.shared.sample(shape, stream)

    def release(self, total: IntArray, present: int) -> Released:
        """The noisy sum `[queries, classes]` of `present` parties in votes; sigma counts the noise of all of them.

        Raises `IntegrityError` when fewer shares are present than were charged, or the total is not integers.
        """
        return self.shared.released(total, present)

    def event(self) -> "DpEvent":
        """One release: ONE query. Compose it as many times as there are distinct queries, abstained ones included."""
        return self.shared.event(2 * self.levels)

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """As `Mechanism.slack`: rows are queries, columns classes."""
        return self.shared.slack(rows * columns * attempts, epsilon)

    def described(self, rows: int, columns: int, form: Form) -> str:
        """Its classes and its noise; `JointMechanism` adds the queries."""
        return (
            f"one vote a teacher among {self.classes:,} classes (L2 sensitivity sqrt(2)), {self.shared.name} noise of "
            f"{self.noise:.4g} votes on every class"
        )


def check_teachers(teachers: int, threshold: float = 0.0) -> None:
    """Raises `ConclaveError` where there is only one teacher, or where no query can reach the threshold."""
    if isinstance(teachers, bool) or not isinstance(teachers, int) or teachers < 1:
        raise ConclaveError(f"There are {teachers} teachers; there must be a whole number of at least 2.")
    if teachers == 1:
        raise ConclaveError(
            "There is one teacher, and it is its whole shard: among votes of one nobody is hidden and no consensus can "
            "be seen. Use at least 2 teachers."
        )
    if threshold > teachers:
        raise ConclaveError(
            f"The threshold is {threshold:g} votes and there are {teachers} teachers: no query can reach it, and only "
            f"noise would be answered. Use a threshold of at most {teachers}, or more teachers."
        )


def check_classes(classes: int) -> None:
    """Raises `ConclaveError` unless classes is a whole number from 2 to 2^31 - 1."""
    if isinstance(classes, bool) or not isinstance(classes, int) or not 2 <= classes < 1 << 31:
        raise ConclaveError(f"classes is {classes}; it must be a whole number of words, from 2 to {(1 << 31) - 1:,}.")


def checked_votes(votes: IntArray, classes: int) -> IntArray:
    """Votes of two axes as int64, whatever the order of the axes.

    Raises `IntegrityError` for another number of axes, for anything but integers, and for a vote outside 0 .. classes -
    1.
    """
    if not isinstance(votes, np.ndarray) or votes.ndim != 2 or not np.issubdtype(votes.dtype, np.integer):
        kind = f"{getattr(votes, 'dtype', type(votes).__name__)} of {getattr(votes, 'ndim', '?')} dimensions"
        raise IntegrityError(f"Votes must be an array of integers with two axes, teachers and queries; this is {kind}.")
    if votes.size and not 0 <= int(votes.min()) <= int(votes.max()) < classes:
        wrong = int(votes.min()) if votes.min() < 0 else int(votes.max())
        raise IntegrityError(f"A vote names class {wrong}; every vote must name one from 0 to {classes - 1}.")
    return votes.astype(np.int64, copy=False)


def tally(votes: IntArray) -> IntArray:
    """Votes `[queries, teachers]` as counts of the classes that have any, largest first, then zeros: same shape."""
    ranked = np.sort(votes, axis=1)
    starts = np.ones(votes.shape, dtype=np.bool_)
    starts[:, 1:] = ranked[:, 1:] != ranked[:, :-1]
    counts = np.zeros(votes.shape, dtype=np.int64)
    counts[starts] = np.diff(np.append(np.flatnonzero(starts), votes.size))
    return -np.sort(-counts, axis=1)
