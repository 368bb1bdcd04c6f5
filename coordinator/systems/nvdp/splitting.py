"""How an `nvdp` plan's epsilon is divided between a text's vector and its label, where the plan does not say."""

import math
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr

_PARTS: Final = tuple(part / 40 for part in range(1, 33))
_DECIMALS: Final = 3
_MOST: Final = 20.0
_HALVINGS: Final = 60


@cache
def label_epsilon(epsilon: float, delta: float, classes: int, texts: int = 1) -> float:
    """The epsilon of one label that leaves the noise on a difference of class means least.

    That noise is the vectors' deviation over what randomised response keeps of a label,
    (e^l - 1) / (e^l + classes - 1). texts: of one unit. It depends on public settings alone; what a plan then costs is
    priced by the accountant like any other.
    """
    found = [min(max(round(part * epsilon / texts, _DECIMALS), 10**-_DECIMALS), _MOST) for part in _PARTS]
    return min(found, key=lambda label: deviation(epsilon, delta, label, classes, texts) / _kept(label, classes))


def deviation(epsilon: float, delta: float, label: float, classes: int, texts: int = 1) -> float:
    """The noise multiplier of a Gaussian at which it and `texts` labels under randomised response cost epsilon.

    Of the labels' losses, j l with probability p_j, and the Gaussian's hockey-stick divergence D,

        delta(epsilon) = sum_j p_j D(epsilon - j l)

    exactly, because labels and noise are independent. Infinite where the labels alone cost more.
    Source: Balle & Wang 2018, theorem 8, for D.
    """
    chances = _losses(label, classes, texts)
    left = epsilon - label * np.arange(-texts, texts + 1, dtype=np.float64)

    def spent(multiplier: float) -> float:
        return float(chances @ _divergence(multiplier, left))

    low, high = 1e-3, 1e4
    if spent(high) > delta:
        return math.inf
    for _ in range(_HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return high


def _kept(label: float, classes: int) -> float:
    return math.expm1(label) / (math.exp(label) + classes - 1)


def _losses(label: float, classes: int, texts: int) -> NDArray[np.float64]:
    """How likely the labels of replaced texts lose -texts..texts times `label` together."""
    whole = math.exp(label) + classes - 1
    one, found = np.array([1, classes - 2, math.exp(label)]) / whole, np.ones(1)
    for _ in range(texts):
        found = np.asarray(np.convolve(found, one), np.float64)
    return found


def _divergence(multiplier: float, epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of a Gaussian whose sensitivity is 1: the least delta at each epsilon, of either sign."""
    half, along = 0.5 / multiplier, epsilons * multiplier
    return np.asarray(np.exp(log_ndtr(half - along)) - np.exp(epsilons + log_ndtr(-half - along)))
