"""A linear regression on clean vectors, learned from noisy ones whose scores were put into bins and then changed.

A party releases the bin of a score, under randomised response over all bins. With c the bins' centres and r_k the
weights that correct a released bin, t = sum_k r_k c_k has the true bin's centre as its expectation, so that
cov(t, z) is that of score and clean vector, and the weights are S^-1 cov, with the covariance S corrected for the
noise.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from learning.noisy_vectors.believing import believed
from learning.noisy_vectors.moments import believed_covariance, believed_mean, moments_of, spectrum
from learning.noisy_vectors.noise import Noise
from learning.noisy_vectors.public import Public

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """A linear regression: score = x w + b. weights: w, [d]. bias: b, in the score's unit."""

    weights: Floats
    bias: float

    def scores(self, vectors: Floats) -> Floats:
        """The score of clean vectors [texts, d], float64 [texts]."""
        return np.asarray(vectors @ self.weights + self.bias)


def centres(low: float, high: float, bins: int) -> Floats:
    """The middles [bins] of equal parts of a range of scores. Raises `ConclaveError` for fewer than two bins."""
    if bins < 2 or not low < high:
        raise ConclaveError(f"{bins} bins from {low} to {high} tell no scores apart. Give two or more, of a range.")
    return low + (high - low) * (np.arange(bins) + 0.5) / bins


def binned(scores: Floats, low: float, high: float, bins: int) -> Ints:
    """The bin of every score, [texts]; one outside the range falls into the nearest, one that is no number into 0."""
    if bins < 2 or not low < high:
        raise ConclaveError(f"{bins} bins from {low} to {high} tell no scores apart. Give two or more, of a range.")
    places = np.floor((np.nan_to_num(scores, nan=low, posinf=high, neginf=low) - low) / (high - low) * bins)
    return np.clip(places, 0, bins - 1).astype(np.int64)


def learned_scores(vectors: Floats, bins: Ints, noise: Noise, public: Public, middles: Floats) -> ScoreRule:
    """The regression that makes most of released rows and public text together.

    vectors: released, [rows, d]. bins: released, [rows]; `noise.classes` is how many there are. middles: the score that
    a bin stands for, [bins]. public: its covariance with scores, where there is one, is what is looked for first.
    Raises `ConclaveError` for rows that do not fit one another, the bins or the public statistics.
    """
    along, mean, total, score = _along(vectors, bins, noise, public, middles, alone=False)
    values, axes = spectrum(total)
    weights = axes @ ((axes.T @ along) / values)
    return ScoreRule(weights, score - float(weights @ mean))


def corrected_scores(vectors: Floats, bins: Ints, noise: Noise, public: Public, middles: Floats) -> ScoreRule:
    """The regression of corrected covariances with the score under the public covariance: a control. As
    `learned_scores`.
    """
    along, mean, _, score = _along(vectors, bins, noise, public, middles, alone=True)
    values, axes = spectrum(public.covariance)
    weights = axes @ ((axes.T @ along) / values)
    return ScoreRule(weights, score - float(weights @ mean))


def plain_scores(vectors: Floats, bins: Ints, noise: Noise, public: Public, middles: Floats) -> ScoreRule:
    """Ordinary least squares on the released rows, as if they were clean: a control. As `learned_scores`."""
    moments_of(vectors, bins, noise, public)
    score, mean = middles[bins], vectors.mean(axis=0)
    off = vectors - mean
    weights = np.linalg.lstsq(off, score - score.mean(), rcond=None)[0]
    return ScoreRule(weights, float(score.mean() - weights @ mean))


def floor_scores(public: Public, score: float) -> ScoreRule:
    """The regression of public text alone. score: the mean score expected. Raises `ConclaveError` where public text has
    neither scores nor a guess (`Public.leaning`).
    """
    if public.with_scores is None:
        raise ConclaveError("Public text without scores makes no regression. Give scores, or a guess of a direction.")
    values, axes = spectrum(public.covariance)
    weights = axes @ ((axes.T @ public.with_scores) / values)
    return ScoreRule(weights, score - float(weights @ public.mean))


def _along(
    vectors: Floats, bins: Ints, noise: Noise, public: Public, middles: Floats, *, alone: bool
) -> tuple[Floats, Floats, Floats, float]:
    """The covariance of score and clean vector [d], the clean mean [d] and covariance [d, d], and the mean score."""
    if middles.shape != (noise.classes,) or not np.isfinite(middles).all():
        raise ConclaveError(f"{middles.shape} scores do not fit {noise.classes} bins. Give the middle of each.")
    found = moments_of(vectors, bins, noise, public)
    mean = believed_mean(found, noise, public)
    total = believed_covariance(found, found.second - np.outer(mean, mean), noise, public.covariance)
    targets = noise.corrected(bins) @ middles
    middle = float(middles.mean())  # of a null row, whose bin is uniform
    score = (float(targets.mean()) - found.null * middle) / (1 - found.null)
    score = float(np.clip(score, middles.min(), middles.max()))
    along = (targets - score) @ vectors / len(vectors) / (1 - found.null)
    if alone:
        return along, mean, total, score
    values, axes = spectrum(public.covariance)
    spread = float(((targets - score) ** 2).mean()) / (1 - found.null) ** 2
    doubt = (spread / len(vectors) * (values + noise.sigma**2))[None]
    # Weights explain no more of the scores than there is.
    most = float(np.ptp(middles)) ** 2 / 4 / len(values)
    known = np.zeros_like(along) if public.with_scores is None else public.with_scores
    return axes @ believed((axes.T @ along)[None], doubt, (axes.T @ known)[None], values, most)[0], mean, total, score
