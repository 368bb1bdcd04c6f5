"""Answers that cost nothing: those of models whose private training was charged, so that they are post-processing."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import sparse

from aggregation.arrays import IntArray
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism, JointReleased, TeacherSignal
from aggregation.mechanisms.mechanism import Form, Free, Released
from aggregation.mechanisms.votes import VotesMechanism

_UNUSED_SIGMA = 8.0  # noise, in grid units, that the bounding parts are made with but never draw


@dataclass(frozen=True, slots=True)
class FreeAnswers(Free):
    """Votes and hidden states of teachers that were trained under differential privacy, summed without noise.

    It holds only if every teacher that answers is the result of the release `after`, whose event was charged before its
    training began, and of public values. The grid only gives the numbers the same form as all others: vectors are
    clipped to `clip` and rounded to clip/levels, which costs nothing and protects nothing.

    Sensitivity: none is charged, under add-or-remove of one unit as under any other relation: this is
    post-processing.

    A domain classifier's scores of public texts are such answers: one teacher a party, and as its one hidden state of
    width 1 the probability that a text is the party's own, with a clip of 1.

    classes: words a vote may name, 0 without votes. layers, width: of the hidden states, layers 0 without them.
    levels: grid units in `clip`; a vote counts 1. Raises `ConclaveError` when there is neither, or for a number out of
    range.
    Source: post-processing (Dwork & Roth 2014, "The Algorithmic Foundations of Differential Privacy", proposition 2.1).
    """

    kind: ClassVar[str] = "free"
    forms: ClassVar[tuple[Form, ...]] = (Form.FREE,)

    after: str
    classes: int
    layers: int
    width: int
    clip: float
    levels: int

    def __post_init__(self) -> None:
        if not self.after:
            raise ConclaveError("Free answers come after a release that paid for them, and none is named.")
        self._bounding()

    @property
    def columns(self) -> int:
        """Columns of the summed matrix: those of votes, then those of hidden states."""
        return self.classes + self.layers * self.width

    def contribute(self, signal: TeacherSignal) -> sparse.csr_array:
        """The sum of all teachers' answers, integers [queries, columns]. Raises `IntegrityError` for wrong shapes."""
        return self._bounding().contribute(signal)

    def release(self, total: IntArray, present: int) -> JointReleased:
        """The sums in votes and in the states' own units; sigma is 0. Raises `IntegrityError` for wrong shapes."""
        if total.ndim != 2 or total.shape[1] != self.columns or not np.issubdtype(total.dtype, np.integer):
            raise IntegrityError(
                f"Free answers are integers of {self.columns} columns, not {total.dtype} {total.shape}."
            )
        votes = Released(total[:, : self.classes].astype(np.float64), 0.0) if self.classes else None
        scale = self.clip / self.levels
        hidden = Released(total[:, self.classes :].astype(np.float64) * scale, 0.0) if self.layers else None
        return JointReleased(votes, hidden)

    def described(self, rows: int, columns: int, form: Form) -> str:
        """The release that paid for it."""
        return f"answers of what {self.after} paid for: post-processing, no noise, no charge"

    def _bounding(self) -> JointMechanism:
        """The mechanism that bounds the answers; its noise is never drawn."""
        votes = VotesMechanism(self.classes, 1, _UNUSED_SIGMA, 1) if self.classes else None
        hidden = None
        if self.layers:
            noise = _UNUSED_SIGMA * self.clip / self.levels if self.levels else 0.0
            hidden = HiddenMechanism(self.layers, self.width, self.clip, self.levels, noise, 1)
        return JointMechanism(votes, hidden)
