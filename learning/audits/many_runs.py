"""How private a mechanism is at the most, from many runs with one worst-case unit and as many without it.

A threshold on a score tells the two apart with a true-positive and a false-positive rate. Clopper-Pearson bounds of
both, at a confidence together, bound epsilon and mu from below. It is tight where a one-run audit is not: there a
mechanism may betray all canaries at once with a small probability, and runs of their own leave no room for that.
Sources: Nasr, Hayes, Steinke, Balle, Tramer, Jagielski, Carlini & Terzis 2023, "Tight Auditing of Differentially
Private Machine Learning"; Jagielski, Ullman & Oprea 2020, "Auditing Differentially Private Machine Learning".
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from learning.audits.trade_offs import TradeOff

THRESHOLDS: Final = 400
LEAST_RUNS: Final = 8

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Distinguished:
    """What a threshold told apart.

    lower: no epsilon below this is compatible with it at the confidence, at the stated delta; 0 where nothing was
    refuted. mu: the same for mu-Gaussian differential privacy. true_rate, false_rate: bounds, from below and from
    above, that hold together at the confidence. runs: in which the two rates were measured, with the unit and without.
    hits, alarms: of these, how many were above the threshold.
    """

    lower: float
    mu: float
    delta: float
    confidence: float
    true_rate: float
    false_rate: float
    runs: tuple[int, int]
    hits: int
    alarms: int

    def refutes(self, trade_off: TradeOff) -> bool:
        """Whether no mechanism with this trade-off has such rates."""
        return self.false_rate < trade_off.least(self.true_rate)


def distinguished(
    present: Floats, absent: Floats, *, delta: float, confidence: float = 0.95, by_mu: bool = False
) -> Distinguished:
    """The audit of scores of runs with a unit [runs] and without it [runs], higher where the unit seems to be there.

    Each score comes from a run of its own: noise that is drawn anew, and nothing kept between runs. The threshold is
    chosen on the first half of the runs, and the rates are measured on the second, so that the choice costs nothing
    else. by_mu: chosen for the best bound of mu, not of epsilon: right for what is Gaussian or nearly so. A score that
    is no number counts as least. Raises `ConclaveError` for fewer than eight runs of either kind,
    a delta outside [0, 1), or a confidence outside (0, 1).
    """
    if present.ndim != 1 or absent.ndim != 1 or min(len(present), len(absent)) < LEAST_RUNS:
        raise ConclaveError(
            f"Scores of {present.shape} runs with a unit and {absent.shape} without are no audit. Make at least "
            f"{LEAST_RUNS} runs of each kind; a thousand show a little."
        )
    if not 0 <= delta < 1 or not 0 < confidence < 1:
        raise ConclaveError(f"A delta of {delta:g} and a confidence of {confidence:g} make no sense. Use 0.95.")
    with_unit, without = (np.where(np.isnan(each), -np.inf, each) for each in (present, absent))
    first, second = len(with_unit) // 2, len(without) // 2
    threshold = _threshold(with_unit[:first], without[:second], delta, confidence, by_mu)
    with_unit, without = with_unit[first:], without[second:]
    hits, alarms = int((with_unit >= threshold).sum()), int((without >= threshold).sum())
    true_rate = float(_bounds(np.array([hits]), len(with_unit), confidence)[0][0])
    false_rate = float(_bounds(np.array([alarms]), len(without), confidence)[1][0])
    lower = float(_epsilons(np.array([true_rate]), np.array([false_rate]), delta)[0])
    mu = float(_mus(np.array([true_rate]), np.array([false_rate]))[0])
    runs = len(with_unit), len(without)
    return Distinguished(max(0.0, lower), max(0.0, mu), delta, confidence, true_rate, false_rate, runs, hits, alarms)


def _threshold(present: Floats, absent: Floats, delta: float, confidence: float, by_mu: bool) -> float:
    """The threshold that bounds epsilon, or mu, best in these runs."""
    tried = np.unique(np.quantile(np.concatenate([present, absent]), np.linspace(0, 1, THRESHOLDS), method="nearest"))
    hits = len(present) - np.searchsorted(np.sort(present), tried, side="left")
    alarms = len(absent) - np.searchsorted(np.sort(absent), tried, side="left")
    true_rates, _ = _bounds(hits, len(present), confidence)
    _, false_rates = _bounds(alarms, len(absent), confidence)
    bounds = _mus(true_rates, false_rates) if by_mu else _epsilons(true_rates, false_rates, delta)
    return float(tried[int(np.argmax(bounds))])


def _bounds(counts: NDArray[np.int64], runs: int, confidence: float) -> tuple[Floats, Floats]:
    """Clopper-Pearson bounds of rates, from below and from above, each at half of what is left of the confidence."""
    from scipy.stats import beta

    tail = (1 - confidence) / 2
    low = np.where(counts > 0, beta.ppf(tail, np.maximum(counts, 1), runs - counts + 1), 0.0)
    high = np.where(counts < runs, beta.ppf(1 - tail, counts + 1, np.maximum(runs - counts, 1)), 1.0)
    return np.asarray(low), np.asarray(high)


def _epsilons(true_rates: Floats, false_rates: Floats, delta: float) -> Floats:
    """The larger of ln((TPR - delta)/FPR) and ln((1 - FPR - delta)/(1 - TPR)), -inf where neither is a number."""
    with np.errstate(divide="ignore", invalid="ignore"):
        first = np.log(np.maximum(true_rates - delta, 0.0)) - np.log(false_rates)
        second = np.log(np.maximum(1 - false_rates - delta, 0.0)) - np.log(1 - true_rates)
    return np.asarray(np.maximum(first, second))


def _mus(true_rates: Floats, false_rates: Floats) -> Floats:
    """Phi^-1(TPR) - Phi^-1(FPR), 0 where it is no number."""
    from scipy.special import ndtri

    with np.errstate(invalid="ignore"):
        apart = np.asarray(ndtri(true_rates) - ndtri(false_rates))
    return np.where(np.isfinite(apart), apart, 0.0)
