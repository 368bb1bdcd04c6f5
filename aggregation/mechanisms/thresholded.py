"""Votes that are answered only where teachers agree: a noisy test, which every query pays for, and a filter that says
when to stop.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import mpmath  # type: ignore[import-untyped]
import numpy as np
from numpy.typing import NDArray

from aggregation.arrays import IntArray
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.argmax import TOTAL_VARIATION, check_noise, noisy_argmax
from aggregation.mechanisms.mechanism import Form, Priced, Released
from aggregation.mechanisms.votes import check_classes, check_teachers, checked_votes, tally
from aggregation.noise.shares import delta_of
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from aggregation.accounting.price import GaussianFilter

ABSTAINED = -1
"""Label of a query that was asked and charged, but not answered."""
NOT_ASKED = -2
"""Label of a query that was not asked because the cap was reached."""


@dataclass(frozen=True, slots=True)
class ThresholdedAnswers:
    """The released answers to a list of queries.

    labels: `[queries]`, a class, `ABSTAINED` or `NOT_ASKED`.
    passed: `[queries]`, whether the noised test found agreement; of those not asked False.
    asked: how many queries were asked, the first ones of the list. answered: how many of them have a class.
    spent: sum of (sensitivity/sigma)^2 of what happened, rounded up. For information only: the claim is the cap.
    """

    labels: IntArray
    passed: NDArray[np.bool_]
    asked: int
    answered: int
    spent: float


@dataclass(frozen=True, slots=True)
class ThresholdedVotes(Priced):
    """Confident GNMax, with DPED's rare-word rule on top, under a cap.

    For each query in order, c the largest number of votes for one class:

        test    c + N(0, threshold_noise^2) >= threshold            charged 1/threshold_noise^2
        passed  argmax of the votes under N(0, noise^2)             charged 2/noise^2
        failed  abstain, free; or, with `larger_noise`, the argmax
                of the votes under N(0, larger_noise^2)             charged 2/larger_noise^2

    Under add-or-remove of one unit one teacher changes, and with it one vote: c moves by at most 1, the histogram by
    sqrt(2). Every query asked pays for its test, whatever comes of it; which noise is used follows from the noised
    value alone. (DPED's algorithm 1 compares c itself, and takes abstained queries for free: that has no guarantee at
    all, since whether a query is answered shows one vote with certainty.)

    The number of answers depends on the votes, so composition of fixed events does not apply: a `GaussianFilter` of
    `cap` does. Before each query, if its most expensive outcome could exceed the cap, that query and all after it are
    not asked. The decision uses only charges, which are public outcomes of earlier tests. All together costs `event`,
    whatever was answered.

    It holds only for an aggregator that is trusted with the votes in clear, since a linear sum cannot compare; with a
    secure stream; and if every teacher learned from units of its own and public values alone, and the list of queries
    and its order are public, each word once.

    classes: how many public words a vote may name. teachers: how many there are, at all parties together, public.
    threshold: agreement asked for, in votes. threshold_noise, noise, larger_noise: standard deviations, in votes, from
    1e-6 to 1e9; larger_noise None abstains. cap: largest sum of (sensitivity/sigma)^2.

    Raises `ConclaveError` for a number out of range, a single teacher, a threshold above the number of teachers, and a
    larger_noise below noise.
    Source: Confident GNMax (Papernot et al. 2018, algorithm 1); the rare-word rule of DPED (Feng & Hong), section 3.4.
    """

    kind: ClassVar[str] = "thresholded"
    forms: ClassVar[tuple[Form, ...]] = (Form.CLEAR_VOTES,)
    zeros: ClassVar[Mapping[str, Any]] = MappingProxyType({"larger_noise": None})
    shares: ClassVar[int] = 0
    layers: ClassVar[int] = 0
    width: ClassVar[int] = 0

    classes: int
    teachers: int
    threshold: float
    threshold_noise: float
    noise: float
    larger_noise: float | None
    cap: float

    def __post_init__(self) -> None:
        check_classes(self.classes)
        if not math.isfinite(self.threshold):
            raise ConclaveError(f"The threshold is {self.threshold}; it must be a number of votes.")
        check_teachers(self.teachers, self.threshold)
        check_noise(self.threshold_noise)
        check_noise(self.noise)
        if self.larger_noise is not None:
            check_noise(self.larger_noise)
            if self.larger_noise < self.noise:
                raise ConclaveError(
                    f"larger_noise is {self.larger_noise:g}, below noise, {self.noise:g}: queries without agreement "
                    "must get at least the noise of the others."
                )
        _filter(self.cap)

    def contribute(self, votes: IntArray) -> IntArray:
        """A party's votes `[teachers, queries]` in clear, for the trusted aggregator: int64 `[queries, teachers]`.

        A teacher has one vote a query by the shape of the array. Raises `IntegrityError` for anything but whole numbers
        from 0 to classes - 1 in two axes.
        """
        return np.ascontiguousarray(checked_votes(votes, self.classes).T)

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """Zeros: the coordinator draws the noise."""
        return np.zeros(shape, dtype=np.int64)

    def answer(self, votes: IntArray, stream: NoiseStream) -> ThresholdedAnswers:
        """Labels for queries in the order given: votes `[queries, teachers]`, of all parties together.

        Given the votes, queries' outcomes are independent. So the tests of all queries are drawn at once, and the
        running charge shows where to stop: the queries asked have the same distribution as one by one. Draws of later
        queries are discarded unseen; if they, or their number, were shown, they would be releases without a charge.

        Raises `IntegrityError` for votes that are not classes, or of another number of teachers.
        """
        votes = checked_votes(votes, self.classes)
        queries = votes.shape[0]
        if votes.shape[1] != self.teachers:
            raise IntegrityError(
                f"There are votes of {votes.shape[1]} teachers and {self.teachers} were announced: a test with fewer "
                "votes is not the one that was planned. Wait for the missing ones, or plan with fewer."
            )
        passed = self._tests(tally(votes)[:, 0], stream)
        asked, spent = self._affordable(passed)
        passed[asked:] = False
        labels = np.full(queries, NOT_ASKED, dtype=np.int64)
        labels[:asked] = ABSTAINED
        labels[passed] = noisy_argmax(votes[passed], self.classes, self.noise, stream)
        if self.larger_noise is not None:
            failed = np.flatnonzero(~passed[:asked])
            labels[failed] = noisy_argmax(votes[failed], self.classes, self.larger_noise, stream)
        return ThresholdedAnswers(
            labels, passed, asked, answered=int((labels >= 0).sum()), spent=math.nextafter(float(spent), math.inf)
        )

    def event(self) -> "DpEvent":
        """The whole release, however many queries: one Gaussian of multiplier 1/sqrt(cap)."""
        return _filter(self.cap).event()

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """As `Mechanism.slack`: rows are queries, with a test and a label each, drawn once whatever is attempted."""
        return delta_of(rows * 2 * TOTAL_VARIATION, epsilon)

    def queries(self, charges: int) -> int:
        """As many as the cap pays for if every test fails: the terms do not say how many will be asked."""
        failing, _ = self.charges
        return charges * math.floor(Fraction(self.cap) / failing)

    def described(self, rows: int, columns: int, form: Form) -> str:
        """Its test and its noise."""
        larger = "" if self.larger_noise is None else f", {self.larger_noise:.4g} under it"
        return (
            f"votes of {self.teachers} teachers on {rows:,} queries; the largest count plus noise "
            f"{self.threshold_noise:.4g} against {self.threshold:g}, labels under noise "
            f"{self.noise:.4g}{larger}; the cap of a filter is charged, whatever was answered"
        )

    @property
    def charges(self) -> tuple[Fraction, Fraction]:
        """The cost of a query in (sensitivity/sigma)^2, exact: where the test fails, and where it passes."""
        test = 1 / Fraction(self.threshold_noise) ** 2
        failed = 2 / Fraction(self.larger_noise) ** 2 if self.larger_noise is not None else Fraction(0)
        return test + failed, test + 2 / Fraction(self.noise) ** 2

    def _affordable(self, passed: NDArray[np.bool_]) -> tuple[int, Fraction]:
        """How many queries, from the first, are asked, given each test's outcome; and their cost.

        The running charge does not fall, so the first query that the filter refuses is found by halving, in fractions.
        """
        failing, passing = self.charges
        before = np.append(0, np.cumsum(passed))  # tests passed before query i

        def spent(query: int) -> Fraction:
            answers = int(before[query])
            return answers * passing + (query - answers) * failing

        guard = _filter(self.cap)
        low, high = 0, passed.size  # all queries before low are asked, none from high
        while low < high:
            middle = (low + high) // 2
            if guard.admits(spent(middle), passing):  # the most expensive outcome: larger_noise is at least noise
                low = middle + 1
            else:
                high = middle
        return low, spent(low)

    def _tests(self, most: IntArray, stream: NoiseStream) -> NDArray[np.bool_]:
        """Whether most + N(0, threshold_noise^2) reaches the threshold, for most `[queries]` in 1 .. teachers.

        A 128-bit uniform is compared with the probability of passing, rounded to 128 bits; the second 64 are drawn only
        where the first tie.
        """
        counts = np.unique(most)
        chances = [self._chance(int(count)) for count in counts]
        upper = np.array([chance >> 64 for chance in chances], dtype=np.uint64)
        lower = np.array([chance & ((1 << 64) - 1) for chance in chances], dtype=np.uint64)
        kind = np.searchsorted(counts, most)
        words = stream.uint64(most.size)
        passed = words < upper[kind]
        tied = np.flatnonzero(words == upper[kind])
        passed[tied] = stream.uint64(tied.size) < lower[kind[tied]]
        return passed

    def _chance(self, count: int) -> int:
        """2^128 times the probability that this many votes pass, rounded, and at most 2^128 - 1."""
        with mpmath.workprec(512):
            gap = (count - mpmath.mpf(self.threshold)) / mpmath.mpf(self.threshold_noise)
            return min(int(mpmath.nint(mpmath.ldexp(mpmath.ncdf(gap), 128))), (1 << 128) - 1)


def thresholded_labels(released: Released, threshold: float) -> IntArray:
    """Labels `[queries]` of released noisy histograms `[queries, classes]`: the largest class, or `ABSTAINED` below.

    Post-processing, and free, on one condition: EVERY query in the histograms, abstained ones included, was charged as
    `VotesMechanism.event`. Nothing is saved by abstaining; only the student is spared labels that are mostly noise.
    This is the form for a linear sum, where nobody holds the votes.
    Source: the rare-word rule of DPED (Feng & Hong), section 3.4, on released histograms.
    """
    best = np.argmax(released.values, axis=1)
    largest = np.take_along_axis(released.values, best[:, None], axis=1)[:, 0]
    return np.where(largest >= threshold, best, ABSTAINED)


def _filter(cap: float) -> "GaussianFilter":
    """The filter; imported here, because its accountants take most of a second and a training process prices
    nothing.
    """
    from aggregation.accounting.price import GaussianFilter

    return GaussianFilter(cap)
