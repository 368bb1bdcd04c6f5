"""Bayesian differential privacy of samplers, as measured on a set of texts, with and without what is constant in it.

For a text x and the texts x' beside it, in either direction, of order l above 0,

    epsilon(x) = 1/l ln mean_x' exp(l D_{l+1}(x, x'))  +  1/l ln(1/delta),

the mean replaced by its upper confidence bound, by Student's t. The second term is a constant: what is reported of it
says nothing of any text. The bound on the mean supposes that the mean is about normal; of exp(l D), which one text can
dominate, it is often not. So this is a MEASUREMENT on these texts. No epsilon of differential privacy follows.

Source: Triastcyn & Faltings 2020, "Bayesian Differential Privacy for Machine Learning", theorems 2 and 4; NVDP, 2.1.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy import stats

from aggregation.errors import ConclaveError
from learning.bottleneck.divergences import Divergences

CONFIDENCE: Final = 0.99


@dataclass(frozen=True, slots=True)
class Bayesian:
    """What is measured of some texts.

    order: l; divergences were of order l + 1. largest: of the first term over texts and directions, infinite where a
    divergence is. mean: over texts, of the larger direction. constant: the second term.
    """

    order: float
    delta: float
    largest: float
    mean: float
    constant: float

    @property
    def reported(self) -> float:
        """The sum that the paper reports: the largest, and the constant."""
        return self.largest + self.constant


def bayesian(found: Divergences, delta: float, confidence: float = CONFIDENCE) -> Bayesian:
    """The Bayesian figure of measured divergences of order l + 1.

    delta: in (0, 1). confidence: of the bound on each mean, in (0, 1). Raises `ConclaveError` for others.
    """
    if not (0 < delta < 1 and 0 < confidence < 1):
        raise ConclaveError(f"A delta of {delta:g} at confidence {confidence:g} makes no sense. Give two in (0, 1).")
    order, others = found.order - 1, found.texts - 1
    means, squares = found.log_moments, found.log_squares
    with np.errstate(invalid="ignore"):
        spread = np.sqrt(np.maximum(np.expm1(squares - 2 * means), 0.0) / max(1, others - 1))
    wide = float(stats.t.ppf(confidence, others - 1)) if others > 1 else 0.0
    upper = np.where(np.isposinf(means), math.inf, means + np.log1p(wide * np.where(np.isfinite(spread), spread, 0.0)))
    worst = upper.max(axis=0) / order
    return Bayesian(order, delta, float(worst.max()), float(worst.mean()), math.log(1 / delta) / order)
