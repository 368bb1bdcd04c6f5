"""A linear classifier of clean vectors, learned from noisy ones whose noise is known.

An ordinary classifier of the released rows learns almost nothing: its weights are shrunk by the noise, and most by it
where the text varies least. Here the classes' means are corrected for changed labels and null rows, the covariance for
the noise, and both are combined with public text as far as noise leaves doubt. The rule is a linear discriminant:

    score_k(x) = m_k' S^-1 x - m_k' S^-1 m_k / 2 + ln p_k

with class means m, covariance within classes S, and shares p. All of it is post-processing of released rows.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from learning.noisy_vectors.believing import believed
from learning.noisy_vectors.moments import (
    Moments,
    believed_covariance,
    believed_mean,
    check,
    moments_of,
    spectrum,
)
from learning.noisy_vectors.noise import Noise
from learning.noisy_vectors.public import Public

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_MOST_APART: Final = 9.0
"""The squared distance of two classes, in deviations of a class, up to which any is as likely: they overlap by 7%."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A linear classifier: scores = x W + b. weights: W, [d, classes]. bias: b, [classes]."""

    weights: Floats
    bias: Floats

    def scores(self, vectors: Floats) -> Floats:
        """The score of every class, [texts, classes], of clean vectors [texts, d]."""
        return np.asarray(vectors @ self.weights + self.bias)

    def classes(self, vectors: Floats) -> Ints:
        """The class with the highest score, [texts]."""
        return np.asarray(self.scores(vectors).argmax(axis=1), np.int64)


def learned(vectors: Floats, labels: Ints, noise: Noise, public: Public) -> Rule:
    """The classifier that makes most of released rows and public text together.

    vectors: released, [rows, d]. labels: released, [rows]. public: statistics of public vectors under the same
    projection; its class means, where there are any, are where the classes are looked for first. The differences of the
    classes' means are combined with the public ones by `learning.noisy_vectors.believing`, mean and covariance with
    public ones by how clear they are. Raises `ConclaveError` for rows that do not fit one another or the public
    statistics.
    """
    found = moments_of(vectors, labels, noise, public)
    _check_classes(noise, public)
    mean = believed_mean(found, noise, public)
    means = _class_means(found, noise, public)
    means = means - found.shares @ means
    between = (means.T * found.shares) @ means
    inner, expected = found.second - np.outer(mean, mean), public.covariance
    if public.class_means is None:
        within = _less(believed_covariance(found, inner, noise, expected), between)
    else:
        within = believed_covariance(found, inner - between, noise, public.within)
    return discriminant(mean + means, within, found.shares)


def corrected(vectors: Floats, labels: Ints, noise: Noise, public: Public) -> Rule:
    """The classifier of corrected means under the public covariance: unbiased, and as noisy as the rows are few.

    Given as `learned`, whose control this is: nothing but a covariance is taken from public text. Raises as `learned`.
    """
    found = moments_of(vectors, labels, noise, public)
    means = found.sums / ((1 - found.null) * found.shares[:, None])
    return discriminant(means, public.within, found.shares)


def plain(vectors: Floats, labels: Ints, noise: Noise, public: Public) -> Rule:
    """An ordinary logistic regression of the released rows, as if they were clean: a control. Raises as `learned`."""
    from scipy.optimize import minimize

    check(vectors, labels, public)
    rows, size = vectors.shape
    hot = np.eye(noise.classes)[labels]

    def loss(parameters: Floats) -> tuple[float, Floats]:
        matrix = parameters.reshape(size + 1, noise.classes)
        scores = vectors @ matrix[:-1] + matrix[-1]
        scores = scores - scores.max(axis=1, keepdims=True)
        chances = np.exp(scores)
        whole = chances.sum(axis=1, keepdims=True)
        off = chances / whole - hot
        slope = np.vstack([vectors.T @ off, off.sum(axis=0)]) / rows
        value = float((np.log(whole[:, 0]) - (scores * hot).sum(axis=1)).mean())
        return value + 0.5e-4 * float((matrix**2).sum()), (slope + 1e-4 * matrix).reshape(-1)

    start = np.zeros((size + 1) * noise.classes)
    solved = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    matrix = np.asarray(solved.x).reshape(size + 1, noise.classes)
    return Rule(matrix[:-1], matrix[-1])


def floor(public: Public) -> Rule:
    """The classifier of public text alone: what every other has to beat.

    Raises `ConclaveError` where public text has no labels and no guess (`Public.leaning`).
    """
    if public.class_means is None or public.shares is None:
        raise ConclaveError("Public text without labels makes no classifier. Give labels, or a guess of a direction.")
    return discriminant(public.class_means, public.within, public.shares)


Trainer = Callable[[Floats, Ints, Noise, Public], Rule]


def discriminant(means: Floats, within: Floats, shares: Floats) -> Rule:
    """The linear discriminant of class means [classes, d], a covariance [d, d] and shares [classes]."""
    values, axes = spectrum(within)
    weights = axes @ ((axes.T @ means.T) / values[:, None])
    return Rule(weights, np.log(shares) - 0.5 * np.einsum("kd,dk->k", means, weights))


def _class_means(found: Moments, noise: Noise, public: Public) -> Floats:
    """The classes' means less their plain mean, [classes, d], combined with public ones.

    Contrasts of classes are turned so that their noise is independent: with R the product of weights over shares and C
    the centring, the noise of C m is C R C over rows, times the covariance of a released vector.
    """
    classes = noise.classes
    values, axes = spectrum(public.within)
    whole = (1 - found.null) * found.shares
    centring = np.eye(classes) - 1 / classes
    noisy = centring @ (found.weights_product / np.outer(whole, whole) / found.rows) @ centring
    strengths, turned = np.linalg.eigh((noisy + noisy.T) / 2)
    contrasts, strengths = turned[:, 1:], np.maximum(strengths[1:], 1e-12)
    estimate = contrasts.T @ (found.sums / whole[:, None]) @ axes
    expected = np.zeros_like(estimate) if public.class_means is None else contrasts.T @ public.class_means @ axes
    doubt = strengths[:, None] * (values + noise.sigma**2)
    return np.asarray(contrasts @ believed(estimate, doubt, expected, values, _MOST_APART / len(values)) @ axes.T)


def _less(total: Floats, between: Floats) -> Floats:
    """A covariance less what the classes' means take of it; a fifth of every variance stays."""
    values, axes = spectrum(total)
    root = np.outer(np.sqrt(values), np.sqrt(values))
    own, turned = np.linalg.eigh(np.eye(len(values)) - (axes.T @ between @ axes) / root)
    scaled = (turned * np.maximum(own, 0.2)) @ turned.T
    return np.asarray(axes @ (scaled * root) @ axes.T)


def _check_classes(noise: Noise, public: Public) -> None:
    if public.class_means is not None and len(public.class_means) != noise.classes:
        raise ConclaveError(
            f"Public text has {len(public.class_means)} classes and the rows {noise.classes}. Use one label map."
        )
