"""What is known of released rows: the noise on their vectors, and how often a label was changed.

A label under k-ary randomised response stays as it is with probability e^epsilon / (e^epsilon + k - 1), and becomes
each of the others with 1 / (e^epsilon + k - 1). Both are public, so that whoever trains on the rows can correct for
them.
Source: Warner 1965; Kairouz, Oh & Viswanath 2014, equation 8, for k values.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Noise:
    """The public noise on released rows.

    sigma: standard deviation of the Gaussian noise on each coordinate of a vector whose norm is at most 1; 0 for clean
    vectors. label_epsilon: of the randomised response on labels, infinite where labels are true. classes: values that
    a label can have; a regression's are the bins of its scores. Raises `ConclaveError` for a sigma below 0 or not
    finite, a label epsilon not above 0, which would leave nothing of the labels, and fewer than two classes.
    """

    sigma: float
    label_epsilon: float
    classes: int

    def __post_init__(self) -> None:
        if not (math.isfinite(self.sigma) and self.sigma >= 0):
            raise ConclaveError(f"The noise on vectors is {self.sigma}. Give its standard deviation, 0 or more.")
        if not self.label_epsilon > 0:
            raise ConclaveError(
                f"A label epsilon of {self.label_epsilon} leaves nothing of the labels. Give one above 0."
            )
        if self.classes < 2:
            raise ConclaveError(f"Labels of {self.classes} classes tell nothing. Give two classes or more.")

    @property
    def kept(self) -> float:
        """The probability that a label is released as it is."""
        return 1 / (1 + (self.classes - 1) * math.exp(-self.label_epsilon))

    @property
    def changed(self) -> float:
        """The probability with which a label becomes a given other one."""
        return (1 - self.kept) / (self.classes - 1)

    @property
    def response(self) -> Floats:
        """P(released = row | true = column), [classes, classes]; its rows and columns each add up to 1."""
        found = np.full((self.classes, self.classes), self.changed)
        np.fill_diagonal(found, self.kept)
        return found

    def corrected(self, labels: Ints) -> Floats:
        """Weights [rows, classes] with expectation 1 for a row's true class and 0 for others, 1/classes of a null row.

        They are rows of the inverse of `response`. labels: released classes, [rows]. Raises `ConclaveError` for a label
        that is no class.
        """
        if labels.ndim != 1 or (len(labels) and not 0 <= labels.min() <= labels.max() < self.classes):
            raise ConclaveError(f"A released label is none of {self.classes} classes. Check the rows.")
        gap = self.kept - self.changed
        found = np.full((len(labels), self.classes), -self.changed / gap)
        found[np.arange(len(labels)), labels] = (1 - self.changed) / gap
        return found
