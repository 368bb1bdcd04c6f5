"""Votes and hidden states of a query as one Gaussian release on the joined vector."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from scipy import sparse

from aggregation.arrays import FloatArray, IntArray
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.mechanism import Form, Priced, Released
from aggregation.mechanisms.votes import VotesMechanism
from aggregation.noise.shares import GAUSSIAN, delta_of
from aggregation.noise.stream import NoiseStream

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, slots=True)
class TeacherSignal:
    """The answers of a party's teachers to the queries.

    votes: `[teachers, queries]`, indices of classes; None where no votes are asked.
    states: `[teachers, queries, layers, width]`; None where no hidden states are asked.
    """

    votes: IntArray | None
    states: FloatArray | None


@dataclass(frozen=True, slots=True)
class JointReleased:
    """The two parts of a release, None where a part was not asked.

    votes: histograms `[queries, classes]`, in votes. hidden: sums over teachers `[queries, layers * width]`.
    """

    votes: Released | None
    hidden: Released | None


@dataclass(frozen=True, slots=True)
class JointMechanism(Priced):
    """DPED's answer to a query: the noisy vote histogram and the noisy sum of hidden states, votes first.

    One unit changes one teacher, and with it both parts at once. Each part divided by its own noise, the joined vector
    moves by at most sqrt(d_v^2/s_v^2 + d_h^2/s_h^2) under unit noise: one Gaussian release with

        1/z^2 = 2/noise_v^2 + 4 layers clip^2/noise_h^2,

    under add-or-remove of one unit, on the assumptions of both parts. This equals the cost of composing the two events;
    DPED's appendix B.3, which charges half an epsilon each under one sigma, charges too little. Source: composition of
    Gaussian mechanisms (Dong, Roth & Su 2022, "Gaussian Differential Privacy", corollary 3.3).

    Under Skellam or discrete Gaussian noise the event is both parts' events composed: the noise of each coordinate is
    drawn on its own, so that the Renyi divergence of the pair is the sum of theirs.

    votes, hidden: the parts, at least one, counting on the same number of shares of the same distribution.

    Raises `ConclaveError` without a part, or where the parts count on different numbers or kinds of shares.
    """

    kind: ClassVar[str] = "joint"
    forms: ClassVar[tuple[Form, ...]] = (Form.SUMMED,)

    votes: VotesMechanism | None
    hidden: HiddenMechanism | None

    def __post_init__(self) -> None:
        if len({(part.shares, part.distribution) for part in self._parts}) != 1:
            raise ConclaveError(
                "A joint release needs votes, hidden states or both, and both must count on the same number of shares "
                "of one kind of noise."
            )

    @property
    def _parts(self) -> list[VotesMechanism | HiddenMechanism]:
        return [part for part in (self.votes, self.hidden) if part is not None]

    @property
    def classes(self) -> int:
        """Columns of the votes, 0 without."""
        return self.votes.classes if self.votes else 0

    @property
    def columns(self) -> int:
        """Numbers of one query: the classes, then layers * width."""
        return self.classes + (self.hidden.columns if self.hidden else 0)

    @property
    def layers(self) -> int:
        """Layers of hidden states, 0 without."""
        return self.hidden.layers if self.hidden else 0

    @property
    def width(self) -> int:
        """Numbers in each layer, 0 without."""
        return self.hidden.width if self.hidden else 0

    @property
    def shares(self) -> int:
        """How many parties' noise shares the guarantee counts on."""
        return self._parts[0].shares

    @property
    def sensitivity(self) -> float:
        """L2 change of one query's joined integers when one unit is added or removed, each part in its own grid units.

        The parts have different noise, so the price does not follow from this and one sigma: see the class.
        """
        return math.sqrt(sum(part.sensitivity**2 for part in self._parts))

    def contribute(self, signal: TeacherSignal) -> sparse.csr_array:
        """This party's part of the sum: int64 `[queries, columns]`, votes first.

        Raises `IntegrityError` where a part is missing or not asked, where the two have different numbers of teachers
        or queries, and where the parts' own mechanisms do.
        """
        for name, asked, given in (("votes", self.votes, signal.votes), ("hidden states", self.hidden, signal.states)):
            if (asked is None) != (given is None):
                fault = "asked and missing" if given is None else "given and not asked"
                raise IntegrityError(f"The teachers' {name} are {fault}.")
        blocks = []
        if self.votes is not None and signal.votes is not None:
            blocks.append(self.votes.contribute(signal.votes))
        if self.hidden is not None and signal.states is not None:
            blocks.append(sparse.csr_array(self.hidden.contribute(signal.states)))
        if signal.votes is not None and signal.states is not None and signal.votes.shape != signal.states.shape[:2]:
            raise IntegrityError(
                f"There are votes of {signal.votes.shape} [teachers, queries] and hidden states of "
                f"{signal.states.shape[:2]}; both must be of the same teachers and queries."
            )
        return sparse.csr_array(sparse.hstack(blocks, format="csr"))

    def noise_share(self, shape: tuple[int, ...], stream: NoiseStream) -> IntArray:
        """This party's noise `[queries, columns]`, grid units of each part.

        Each part draws from a child stream of its own, named by words of this stream, so that two calls give different
        noise. A stream that is not `secure` gives no guarantee; the caller must say so.
        """
        queries = self._queries(shape)
        first, second = (int(word) for word in stream.uint64(2))
        return np.concatenate(
            [
                part.noise_share((queries, width), stream.child(name, first, second))
                for name, part, width in (
                    ("votes", self.votes, self.classes),
                    ("hidden", self.hidden, self.columns - self.classes),
                )
                if part is not None
            ],
            axis=1,
        )

    def split(self, total: IntArray) -> tuple[IntArray, IntArray]:
        """A sum `[queries, columns]` as votes `[queries, classes]` and hidden states `[queries, layers * width]`.

        Raises `IntegrityError` for another number of columns.
        """
        self._queries(total.shape)
        return total[:, : self.classes], total[:, self.classes :]

    def release(self, total: IntArray, present: int) -> JointReleased:
        """The noisy sums of `present` parties, each part in its own units.

        Raises `IntegrityError` when fewer shares are present than were charged, for another number of columns, or where
        the total is not integers.
        """
        votes, hidden = self.split(total)
        return JointReleased(
            votes=None if self.votes is None else self.votes.release(votes, present),
            hidden=None if self.hidden is None else self.hidden.release(hidden, present),
        )

    def event(self) -> "DpEvent":
        """One release: ONE query, both parts. Compose it as many times as there are distinct queries."""
        # Imported here: the import takes a second, and a party's training process never prices.
        from dp_accounting import ComposedDpEvent, GaussianDpEvent

        if self._parts[0].distribution != GAUSSIAN:
            return ComposedDpEvent([part.event() for part in self._parts])
        precision = sum(1 / Fraction(part.noise_multiplier) ** 2 for part in self._parts)
        multiplier = math.sqrt(1 / precision)
        while Fraction(multiplier) ** 2 * precision > 1:  # rounding never charges less than the sum
            multiplier = math.nextafter(multiplier, 0.0)
        return GaussianDpEvent(multiplier)

    def slack(self, rows: int, columns: int, epsilon: float, attempts: int = 1) -> float:
        """As `Mechanism.slack`: rows are queries, columns those of both parts. A query that is released in part counts
        whole.
        """
        queries = -(-rows * columns * attempts // self.columns)
        distance = self.classes * self.votes.shared.distance if self.votes else 0.0
        distance += self.hidden.columns * self.hidden.shared.distance if self.hidden else 0.0
        return delta_of(queries * distance, epsilon)

    def described(self, rows: int, columns: int, form: Form) -> str:
        """Both parts, and the number of queries that are charged."""
        parts = "; ".join(part.described(rows, columns, form) for part in self._parts)
        return f"{parts}; one joint event a query, {rows:,} queries, abstained ones charged too"

    def described_as_differences(self, tokens: int) -> str:
        """The sentence of a release whose vectors are no hidden states but, for each of so many tokens, how far
        teachers' outcomes are from a public model's. Raises `ConclaveError` where it has votes, or several layers.
        """
        if self.hidden is None or self.votes is not None or self.layers != 1:
            raise ConclaveError("Differences of outcomes are one vector a token, without votes.")
        what = (
            f"differences of {self.width:,} outcomes of a token from a public model, clipped to L2 norm "
            f"{self.hidden.clip:g} together"
        )
        return f"{self.hidden.bounded(what)}; one event a token, {tokens:,} tokens"

    def _queries(self, shape: tuple[int, ...]) -> int:
        if len(shape) != 2 or shape[1] != self.columns:
            raise IntegrityError(f"A joint release has {self.columns} columns a query; this one has shape {shape}.")
        return shape[0]
