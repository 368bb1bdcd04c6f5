"""Moments of clean vectors from noisy ones: errors in variables, changed labels, and rows that hold nothing.

Of released rows z = x + e with e ~ N(0, sigma^2 I), and weights r_k(label) whose expectation is 1 for the true class k
and 0 for others,

    E r_k = p_k (1 - u) + u / K,    E r_k z = p_k (1 - u) m_k,    E z z' = (1 - u) E x x' + sigma^2 I

with K classes of shares p and means m, and a part u of null rows, whose vector is zero and whose label is uniform. So
the noise does not bias these, and how far they are off is known: that decides how much of them is believed.
Source: errors in variables, Fuller 1987, "Measurement Error Models", section 2.2; labels, Natarajan et al. 2013.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from learning.noisy_vectors.believing import believed
from learning.noisy_vectors.noise import Noise
from learning.noisy_vectors.public import Public

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LEAST_SHARE = 0.02
_SMALLEST_VARIANCE = 1e-9
_STRAYS = 0.1
"""The square of how far an entry of a covariance strays from public text's, at most, before rows are seen, in units of
its variances: with more, doubtful entries turn rules the wrong way. benchmarks/nvdp_projection.py compares.
"""
_EXACT = 0.01
_MOST_NULL, _NULL_EXPECTED = 0.9, 0.3


@dataclass(frozen=True, slots=True)
class Moments:
    """Estimates of clean vectors' moments, with the variances that the known noise gives them.

    rows: released. null: the part of null rows, 0 unless the vectors' length says so. mean: [d]. second: E x x',
    [d, d]. shares: of the classes, [classes]. sums: (1 - u) p_k m_k, [classes, d]. weights_product: mean of r_k r_l,
    [classes, classes]: times the covariance of a released vector, over rows, it is the covariance of `sums`.
    """

    rows: int
    null: float
    mean: Floats
    second: Floats
    shares: Floats
    sums: Floats
    weights_product: Floats


def moments_of(vectors: Floats, labels: Ints, noise: Noise, public: Public) -> Moments:
    """The corrected moments of released vectors [rows, d] and labels [rows].

    Raises `ConclaveError` for rows that do not fit one another or the public statistics, fewer than two, or a value
    that is not finite.
    """
    check(vectors, labels, public)
    rows, size = vectors.shape
    weights = noise.corrected(labels)
    second = vectors.T @ vectors / rows - noise.sigma**2 * np.eye(size)
    null = null_share(vectors, noise, public)
    raw = weights.mean(axis=0) - null / noise.classes
    product = weights.T @ weights / rows
    shares = _shares(raw / (1 - null), np.diag(product) / rows)
    return Moments(
        rows, null, vectors.mean(axis=0) / (1 - null), second / (1 - null), shares, weights.T @ vectors / rows, product
    )


def null_share(vectors: Floats, noise: Noise, public: Public) -> float:
    """An estimate of the part of null rows, from the vectors' lengths: E |z|^2 = (1 - u) E |x|^2 + d sigma^2.

    E |x|^2 is that of public vectors, up to half of the deviation that |x|^2 has from one to the other: exactly, where
    all are normalised. Seven times in ten no row is expected to be null, and otherwise any part up to 0.9 alike; the
    result is the posterior mean.
    """
    rows, size = vectors.shape
    whole = float(np.trace(public.covariance) + public.mean @ public.mean)
    if not whole > 0:
        return 0.0
    lengths = (vectors**2).sum(axis=1)
    missing = 1 - (float(lengths.mean()) - size * noise.sigma**2) / whole
    doubt = float(lengths.var()) / rows / whole**2 + (public.square_spread / whole / 2) ** 2 + _EXACT**2
    parts = np.linspace(0, _MOST_NULL, 91)
    logs = -((missing - np.append(parts, 0.0)) ** 2) / (2 * doubt)
    chances = np.exp(logs - logs.max())
    chances[:-1] *= _NULL_EXPECTED / len(parts)
    chances[-1] *= 1 - _NULL_EXPECTED
    return float(parts @ chances[:-1] / chances.sum())


def check(vectors: Floats, labels: Ints, public: Public) -> None:
    """Raise `ConclaveError` where released rows do not fit one another or the public statistics."""
    if vectors.ndim != 2 or labels.shape != (len(vectors),) or vectors.shape[1] != len(public.mean):
        raise ConclaveError(
            f"Vectors {vectors.shape} and labels {labels.shape} do not fit, or not the public statistics of "
            f"{len(public.mean)} dimensions. Give [rows, dimensions] and [rows]."
        )
    if len(vectors) < 2 or not np.isfinite(vectors).all():
        raise ConclaveError("Released vectors must be two rows or more of finite numbers. Check the samples.")


def believed_mean(found: Moments, noise: Noise, public: Public) -> Floats:
    """The mean of clean vectors [d]: what was found, and the public mean as far as noise leaves doubt."""
    values, axes = spectrum(public.covariance)
    doubt = (values + noise.sigma**2) / (found.rows * (1 - found.null) ** 2)
    off = (axes.T @ (found.mean - public.mean))[None]
    return np.asarray(public.mean + axes @ believed(off, doubt[None], np.zeros_like(off), values)[0])


def believed_covariance(found: Moments, inner: Floats, noise: Noise, expected: Floats) -> Floats:
    """A covariance of clean vectors [d, d]: what was found, `inner`, and a public one as far as noise leaves doubt.

    inner: second moments less those of means. expected: the public covariance of the same kind. In the axes of it, with
    variances v, an entry's doubt is (v_i + s^2)(v_j + s^2) / rows, twice that on the diagonal; by how much private text
    differs, in units of v_i v_j, is as likely as the entries say (`learning.noisy_vectors.believing`). Each variance
    stays between a fifth and five times the public one.
    """
    values, axes = spectrum(expected)
    root = np.sqrt(values)
    off = (axes.T @ inner @ axes) / np.outer(root, root) - np.eye(len(values))
    noisy = (values + noise.sigma**2) / values
    doubt = np.outer(noisy, noisy) * (1 + np.eye(len(values))) / (found.rows * (1 - found.null) ** 2)
    upper = np.triu_indices(len(values))
    count = len(upper[0])
    kept = believed(off[upper][None], doubt[upper][None], np.zeros((1, count)), np.ones(count), _STRAYS)[0]
    scaled = np.eye(len(values))
    scaled[upper] += kept
    scaled.T[upper] = scaled[upper]
    own, turned = np.linalg.eigh(scaled)
    scaled = (turned * np.clip(own, 0.2, 5.0)) @ turned.T
    return np.asarray(axes @ (scaled * np.outer(root, root)) @ axes.T)


def spectrum(covariance: Floats) -> tuple[Floats, Floats]:
    """A covariance's variances [d], none below a billionth of the largest, and their axes [d, d] as columns."""
    values, axes = np.linalg.eigh((covariance + covariance.T) / 2)
    least = max(float(values[-1]), np.finfo(float).tiny) * _SMALLEST_VARIANCE
    return np.maximum(values, least), axes


def _shares(found: Floats, doubt: Floats) -> Floats:
    """Classes' shares that add up to 1: what was found, and even ones as far as noise leaves doubt."""
    even = 1 / len(found)
    off = found - even
    total = float((off**2).sum())
    kept = max(0.0, 1 - float(doubt.sum()) / total) if total > 0 else 0.0
    held = np.maximum(even + kept * off, _LEAST_SHARE / len(found))
    return np.asarray(held / held.sum())
