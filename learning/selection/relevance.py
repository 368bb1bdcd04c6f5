"""What parties' domain classifiers say of a public corpus, and whether it is worth anything (PrivDistil, section 4.3).

Nothing here touches private data. What comes in was released or is public: weights that parties trained under
differential privacy, what these say of public texts, features of public texts, and the noise that the plan names.
Everything is post-processing and costs nothing.

A classifier that learned nothing still orders the corpus, and nobody can look at private text to see whether the order
means anything. But the noise of different parties is independent. Let heads be noise alone, and public features have
the covariance S. The correlation of two heads' scores, w'Sv / sqrt(w'Sw v'Sv), then has mean 0 and variance 1 / r with
r = tr(S)^2 / tr(S^2), the directions that public texts spread over (`freedom`); the cosine of the heads themselves is
the case S = 1, r = width. `chance` says how far the mean over pairs of parties gets by noise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, chdtri

from aggregation.arrays import FloatArray
from aggregation.errors import ConclaveError, IntegrityError

if TYPE_CHECKING:
    from learning.private_training.optimisation import Optimisation

LEVEL: Final = 0.01
"""How often heads of noise alone may pass for informative, over all tests together. A run is made once, and its report
should show a useless classifier; a chance of one in a hundred of missing it is rarer than a wrong setting.
"""
MARGIN: Final = 1.1
"""How many times longer than noise a head must be, whatever its width: the noise's deviation is known to a few percent
only, because optimisers change it. At 1.1 the signal is a sixth of the head's square.
"""
RELIABLE: Final = 0.5
"""Below this reliability, more than half of the order of texts comes from noise or from a single party."""
TIED: Final = 0.05
"""The row number orders texts with the same score; when more than a twentieth tie, it can decide much of a selection.
"""
UNKNOWN_FREEDOM: Final = 10.0
"""Directions assumed for public texts without features: encoders have dozens, and fewer only make the test stricter."""
ROWS: Final = 20_000
"""Public texts that are used, evenly spaced where there are more: a correlation's own error is then under 0.01."""

_FIGURES = (
    "scores correlate by {:.3f}, noise alone by up to {:.3f}",
    "weights have a cosine of {:.3f}, noise alone up to {:.3f}",
    "weights are {:.2f} times as long as noise, and more than {:.2f} tells",
    "scores spread {:.2f} times as wide as noise, and more than {:.2f} tells",
)


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure, and its threshold: noise alone exceeds it with no more than this test's share of `LEVEL`."""

    value: float
    chance: float

    @property
    def tells(self) -> bool:
        """Whether the figure is beyond noise."""
        return self.value > self.chance


@dataclass(frozen=True, slots=True)
class Worth:
    """What released classifiers are worth for selecting public texts.

    agreement, cosine: mean over pairs of parties of the rank correlation of their scores, and of their directions'
    cosine. norm, separation: how many times longer than noise the directions are, and wider than by noise the scores'
    log-odds spread over the texts, root mean square over parties. None where what it takes was not given.
    spread: standard deviation of log-odds over the texts, likewise. reliability: the part of the mean score's variance
    that parties share, k a / (1 + (k - 1) a) at agreement a (Spearman and Brown).
    tied: the largest share of texts with one mean score.
    """

    parties: int
    agreement: Measure | None
    cosine: Measure | None
    norm: Measure | None
    separation: Measure | None
    spread: float
    reliability: float | None
    tied: float

    @property
    def informative(self) -> bool | None:
        """Whether any figure is beyond noise; None where there is no figure."""
        return any(measure.tells for _, measure in self._measures()) if self._measures() else None

    def warnings(self) -> tuple[str, ...]:
        """Sentences for a report; none where the classifiers tell something and nothing spoils it."""
        found = []
        figures = "; ".join(text.format(measure.value, measure.chance) for text, measure in self._measures())
        if self.informative is None:
            found.append(
                "Whether the domain classifier tells anything is not known: there is one party, and the noise of its "
                "weights was not given. Its selection may be no better than random."
            )
        elif not self.informative:
            found.append(
                f"The domain classifiers tell no more than noise would ({figures}). They cost budget, and their "
                "selection is no better than random. Give them more of it or more records, or select at random, free."
            )
        elif not any(each.tells for each in (self.agreement, self.cosine) if each) and self.parties > 1:
            found.append(
                f"The domain classifiers learned something, but not the same ({figures}). Where the parties' texts are "
                "unlike each other, the mean of their scores favours what is a little like all of them."
            )
        elif self.reliability is not None and self.reliability < RELIABLE:
            found.append(
                f"Of what orders the public texts {1 - self.reliability:.0%} is noise or a single party's own: better "
                "than random, but another training would choose mostly other texts. More budget or records steady it."
            )
        if self.tied > TIED:
            found.append(
                f"{self.tied:.0%} of the public texts have one and the same score, so their row numbers decide among "
                "them. Take scores as float64 or log-odds if they are rounded, and remove texts that occur many times."
            )
        return tuple(found)

    def _measures(self) -> list[tuple[str, Measure]]:
        every = (self.agreement, self.cosine, self.norm, self.separation)
        return [(text, each) for text, each in zip(_FIGURES, every, strict=True) if each is not None]


def mean_scores(per_party: NDArray[np.floating] | Sequence[NDArray[np.floating]]) -> FloatArray:
    """Mean over parties of the probability that a text is private-like, float64 [texts].

    per_party: [parties, texts], any block of the corpus: texts do not depend on each other. Probabilities are averaged,
    not logits: a party that is overly sure moves the mean by 1 / parties at most.
    Raises `IntegrityError` for no party, lengths that differ, and what is no probability.
    Source: the classifier's f(x) of PrivDistil, section 3.4; the mean over parties is our own.
    """
    parties = len(per_party)
    if parties == 0:
        raise IntegrityError("There are no scores of any party to average.")
    total = np.zeros(len(per_party[0]))
    for party, scores in enumerate(per_party):
        if np.shape(scores) != total.shape:
            raise IntegrityError(
                f"The classifier of party {party} scored texts of the shape {np.shape(scores)}, that of party 0 "
                f"{total.shape}. Score the same texts by all."
            )
        wrong = ~((np.asarray(scores) >= 0) & (np.asarray(scores) <= 1))
        if wrong.any():
            place = int(np.flatnonzero(wrong)[0])
            raise IntegrityError(
                f"The classifier of party {party} gives text {place} of the block {scores[place]}, which is no "
                "probability. Leave the party out, or have it train again."
            )
        total += scores
    return np.minimum(total / parties, 1.0)


def direction(head: NDArray[np.floating], start: NDArray[np.floating] | None = None, *, private: int = 0) -> FloatArray:
    """The direction of a linear head of two classes: the private-like row less the public one, float64 [width].

    head: [2, width]. start: the public weights that all parties' heads started from; they are taken away, or heads that
    learned nothing would agree on them. private: the private class' row, 0 in the paper.
    Raises `IntegrityError` for other shapes or weights that are not finite.
    """
    change = np.asarray(head, np.float64) - (0 if start is None else np.asarray(start, np.float64))
    if change.ndim != 2 or len(change) != 2 or not np.isfinite(change).all():
        raise IntegrityError(f"A domain classifier's head is finite and [2, width], not {np.shape(head)}.")
    return np.asarray(change[private] - change[1 - private])


def cosines(directions: NDArray[np.floating]) -> FloatArray:
    """Cosines of parties' directions [parties, width], [parties, parties]; 0 with a head that did not move."""
    units = np.asarray(directions, np.float64)
    norms = np.linalg.norm(units, axis=1, keepdims=True)
    units = np.divide(units, norms, out=np.zeros_like(units), where=norms > 0)
    return np.asarray(units @ units.T)


def rank_correlations(scores: NDArray[np.floating]) -> FloatArray:
    """Spearman's correlations of parties' scores [parties, texts], [parties, parties]; 0 with scores all equal."""
    from scipy.stats import rankdata

    return cosines(rankdata(scores, axis=1) - (np.shape(scores)[1] + 1) / 2)


def weight_noise(directions: NDArray[np.floating], deviation: float | Sequence[float]) -> FloatArray:
    """Each party's d s^2 / |w|^2 [parties], the part of its head's square that noise of deviation s gives: near 1, all.

    directions: [parties, width d]. deviation: of one coordinate (`noise_deviation`), one for all or one a party.
    """
    squares = np.square(np.asarray(directions, np.float64)).sum(axis=1)
    noise = np.shape(directions)[1] * np.square(np.broadcast_to(np.asarray(deviation, np.float64), squares.shape))
    return np.asarray(np.divide(noise, squares, out=np.full(len(squares), np.inf), where=squares > 0))


def noise_deviation(settings: "Optimisation", steps: int, deviation: float, *, seed: int = 0) -> float:
    """Standard deviation of a coordinate of `direction` after a private training that had noise alone to learn from.

    deviation: of the noise in one coordinate of a step's sum, noise multiplier times clip. Measured, to half a percent,
    by the training's own optimiser. AdamW brings every gradient to one scale: what it gives hardly depends on
    `deviation`, and a head's noise is less where there is signal.
    """
    import torch

    from learning.private_training.optimisation import Training

    rng = np.random.default_rng(seed)
    training = Training(torch.zeros(16_384), settings, steps)
    for _ in range(steps):
        training.step(rng.normal(0, deviation, 16_384).astype(np.float32))
    return math.sqrt(2 * float(training.point.double().square().mean()))


def freedom(features: NDArray[np.floating]) -> float:
    """Directions that public texts spread over: tr(S)^2 / tr(S^2) of the covariance S of features [texts, width].

    Raises `IntegrityError` for other shapes, numbers that are not finite, and texts all alike.
    """
    texts = np.asarray(features, np.float64)
    if texts.ndim != 2 or not np.isfinite(texts).all() or not np.ptp(texts, axis=0).any():
        raise IntegrityError(f"Features are finite, [texts, width], and of texts that differ; not so {texts.shape}.")
    covariance = np.cov(texts, rowvar=False, ddof=0).reshape(texts.shape[1], -1)
    return float(np.trace(covariance) ** 2 / np.square(covariance).sum())


def chance(parties: int, directions: float, level: float = LEVEL) -> float:
    """What the mean correlation over pairs of parties exceeds, by noise alone, with about this probability.

    directions: r, see `freedom`. Of two parties, by the law of a cosine in r dimensions, cos^2 ~ Beta(1/2, (r - 1)/2).
    Of k more, the k (k - 1) / 2 pairs are uncorrelated and their mean has the variance 2 / (k (k - 1) r); its tail is
    that of chi-square with r degrees, which it tends to as k grows. Simulated, noise passes at 0 to 3 times the level.
    """
    if parties == 2:
        return math.sqrt(float(betainccinv(0.5, max(directions - 1, 1e-3) / 2, 2 * level)))
    quantile = (float(chdtri(directions, level)) - directions) / math.sqrt(2 * directions)
    return quantile * math.sqrt(2 / (parties * (parties - 1) * directions))


def worth(
    scores: NDArray[np.floating],
    *,
    directions: NDArray[np.floating] | None = None,
    noise: float | Sequence[float] | None = None,
    features: NDArray[np.floating] | None = None,
    start: NDArray[np.floating] | None = None,
) -> Worth:
    """Whether released domain classifiers tell anything beyond chance.

    scores: probabilities of private-like, [parties, public texts]. directions: the heads', [parties, width]. noise:
    deviation of a direction's coordinate by noise alone, one for all or one a party. features: what the heads see of
    public texts, the same or others, [texts, width]; only for classifiers that are a head on fixed features. start:
    probabilities by the public start that the parties share [public texts], unless heads start from zero.
    Memory: `ROWS` texts' scores a few times over, and width^2 for features.
    Raises `IntegrityError` for shapes that do not fit and numbers that cannot be.
    """
    parties = len(scores)
    if np.ndim(scores) != 2 or scores.shape[1] < 3:
        raise IntegrityError(f"Scores are [parties, public texts], three texts or more, not {np.shape(scores)}.")
    if directions is not None and (
        np.ndim(directions) != 2 or len(directions) != parties or not np.isfinite(directions).all()
    ):
        raise IntegrityError(f"Directions are finite, [{parties} parties, width]; not so {np.shape(directions)}.")
    deviation = None if noise is None else np.broadcast_to(np.asarray(noise, np.float64), (parties,))
    if deviation is not None and not (np.isfinite(deviation) & (deviation > 0)).all():
        raise ConclaveError("The noise of a head has a standard deviation above 0. Leave it out where it is not known.")
    every = slice(None, None, -(-scores.shape[1] // ROWS))
    looked = np.asarray(scores[:, every], np.float64)
    means, odds = mean_scores(looked), _log_odds(looked)
    if start is not None:
        if np.shape(start) != scores.shape[1:]:
            raise IntegrityError(f"The start scores {len(start):,} texts, the parties {scores.shape[1]:,}.")
        odds = _without(odds, _log_odds(mean_scores(start[None, every])))
    if directions is not None and features is not None and directions.shape[1] != np.shape(features)[-1]:
        raise IntegrityError(f"Heads of width {directions.shape[1]} do not see features {np.shape(features)}.")
    spread_over = UNKNOWN_FREEDOM if features is None else freedom(features)
    tests = (parties > 1) + (deviation is not None) * (features is not None)
    tests += ((parties > 1) + (deviation is not None)) * (directions is not None)
    level = LEVEL / max(tests, 1)

    def beyond(squares: FloatArray, degrees: float) -> Measure:  # squares [parties]: by noise, chi-square / degrees
        degrees *= parties
        return Measure(math.sqrt(squares.mean()), max(MARGIN, math.sqrt(float(chdtri(degrees, level)) / degrees)))

    agreement = cosine = norm = separation = None
    pairs = np.triu_indices(parties, 1)
    if parties > 1:
        agreement = Measure(float(rank_correlations(odds)[pairs].mean()), chance(parties, spread_over, level))
    if parties > 1 and directions is not None:
        cosine = Measure(float(cosines(directions)[pairs].mean()), chance(parties, directions.shape[1], level))
    if deviation is not None and directions is not None:
        norm = beyond(1 / weight_noise(directions, list(deviation)), directions.shape[1])
    variances = odds.var(axis=1)
    if deviation is not None and features is not None:
        separation = beyond(variances / (np.square(deviation) * np.var(features, axis=0).sum()), spread_over)
    shared = None if agreement is None else max(agreement.value, 0.0)
    reliability = None if shared is None else parties * shared / (1 + (parties - 1) * shared)
    tied = float(np.unique(means, return_counts=True)[1].max() / len(means))
    return Worth(parties, agreement, cosine, norm, separation, math.sqrt(variances.mean()), reliability, tied)


def _without(odds: FloatArray, start: FloatArray) -> FloatArray:
    """What is left of each row [parties, texts] when what it has in common with the start [texts] is taken away.

    By regression: how much of its start a classifier of more than one layer has kept under noise is not known.
    """
    centred, about = odds - odds.mean(axis=1, keepdims=True), start - start.mean()
    square = float(about @ about)
    if square:
        centred -= np.outer(centred @ about / square, about)
    return np.asarray(centred)


def _log_odds(chances: FloatArray) -> FloatArray:
    bounded = np.clip(chances, 1e-12, 1 - 1e-12)  # 0 and 1 have none
    return np.asarray(np.log(bounded) - np.log1p(-bounded))
