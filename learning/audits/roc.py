"""What an attack's scores are worth: rates of true and false positives at every threshold, and a picture of them.

An attack that is sure of a few members is worse than one that is a little right about all. So the rate of true
positives is read at low rates of false ones, and the picture is in logarithms (Carlini et al. 2022).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from learning.classification.chart import page, save

LOW: Final = (0.001, 0.01)
"""Rates of false positives at which an attack is judged."""


@dataclass(frozen=True, slots=True)
class Roc:
    """Rates of false and of true positives, float64 [thresholds + 1] each, from (0, 0) to (1, 1)."""

    false: NDArray[np.float64]
    true: NDArray[np.float64]
    positives: int
    negatives: int

    @property
    def area(self) -> float:
        """The area under the curve: 0.5 for guesses."""
        return float(np.trapezoid(self.true, self.false))

    def at(self, rate: float) -> float:
        """The rate of true positives at this rate of false ones, or the next below it that a threshold has.

        Raises `ConclaveError` for a rate outside (0, 1], and where there are too few examples out for such a rate: then
        it would be that of no false positive at all.
        """
        if not 0 < rate <= 1:
            raise ConclaveError(f"A rate of false positives of {rate:g} makes no sense. Use for example 0.001.")
        if rate * self.negatives < 1:
            raise ConclaveError(
                f"{self.negatives:,} examples that are no members cannot show a rate of {rate:g}. It takes "
                f"{int(np.ceil(1 / rate)):,} or more; attack more models."
            )
        return float(self.true[self.false <= rate * (1 + 1e-12)].max())


def roc(scores: NDArray[np.float64], members: NDArray[np.bool_]) -> Roc:
    """The curve of scores [examples], higher where an example seems to be a member, and of who is one [examples].

    Equal scores are passed at once. A score that is no number counts as least. Raises `ConclaveError` for arrays that
    do not fit, or without both kinds of examples.
    """
    if scores.shape != members.shape or scores.ndim != 1 or not members.any() or members.all():
        raise ConclaveError(
            f"Scores of {scores.shape} and members of {members.shape} make no curve: it takes both of each example, "
            "and examples of both kinds."
        )
    held = np.where(np.isnan(scores), -np.inf, scores)
    order = np.argsort(-held, kind="stable")
    last = np.append(np.flatnonzero(np.diff(held[order])), len(order) - 1)
    true = np.cumsum(members[order])[last]
    false = last + 1 - true
    positives, negatives = int(members.sum()), int((~members).sum())
    rates = np.append(0.0, false / negatives), np.append(0.0, true / positives)
    return Roc(*rates, positives, negatives)


def draw(curves: Mapping[str, Roc], path: Path, *, epsilon: float | None = None, delta: float = 0.0) -> None:
    """Draw curves by their names in logarithms as PNG, with what guessing gives.

    epsilon, delta: of a claim; what is above it, no attack may reach (Kairouz, Oh & Viswanath 2015).
    Raises `ConclaveError` without a curve.
    """
    if not curves:
        raise ConclaveError("A picture needs a curve.")
    least = min(0.5 / each.negatives for each in curves.values())
    rates = np.geomspace(least, 1.0, 400)
    with page(6.4, 6.0) as figure:
        axes = figure.subplots()
        for name, each in curves.items():
            axes.step(each.false, each.true, where="post", label=f"{name} (area {each.area:.3f})", linewidth=1.5)
        axes.plot(rates, rates, color="0.6", linestyle="--", linewidth=1, label="guessing")
        if epsilon is not None:
            most = np.minimum(np.exp(epsilon) * rates + delta, 1 - np.exp(-epsilon) * np.maximum(1 - delta - rates, 0))
            axes.plot(rates, np.minimum(most, 1.0), color="0.3", linestyle=":", label=f"most at epsilon {epsilon:.3g}")
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1), aspect="equal")
        axes.set(xlabel="rate of false positives", ylabel="rate of true positives")
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right", fontsize=9)
        save(figure, path)
