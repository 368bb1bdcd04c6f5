"""From noisy sums of differences to usable soft targets: post-processing, which costs no privacy.

With N teachers, sums y and noise of standard deviation s a cell, y / N is the teachers' mean difference m under noise
s / N. m sums to 0 over the cells of a token, so the mean of the noise over them is taken out. Then:

1. **Words.** Part of what teachers know is which words their texts use, wherever they stand. With r the public
   probability of a cell, m = r (b - sum r b) for a b of each token of the vocabulary: what a tilt exp(b) of the public
   model does, to the first order. b is found by least squares over all places, and shrunk by a variance that all b
   have in common, from their own squares less the noise's. What is left of y / N goes on as y / N below.
2. **Variance.** Cells of like r (one power of 2) are one group, the cell of all others one more. The mean of (y/N)^2
   over a group less the noise's variance is v, the variance of m there, less four standard errors of that mean, so
   that noise alone gives 0. It is at most r (1 - r): that of a probability whose mean is r.
3. **Scale.** Some tokens have far larger differences than others. The prior of a token is m ~ N(0, a v), its scale a
   one of `SCALES`, whose weights over all tokens are the likeliest, `_DOUBT` tokens of scale 0 added.
4. **Shrinking.** The posterior mean: of each cell y/N times the mean of a v / (a v + s^2/N^2) over the posterior of a.
5. **Weight.** Of the squared size of m that 1 to 3 expect at a token, the part that is known: what the words explain,
   and of the rest what shrinking leaves. All are brought down together where the data say that less is known: over
   all tokens the part is 1 - R / |m|^2, R Stein's unbiased estimate of the squared error. So a weight is 1 without
   noise, and 0 in noise that drowns everything. A student that heeds answers by their weight learns from the token
   itself where they say nothing, and is not held back by the public model.
6. **Sum.** The public probability of a cell plus both parts, but never less than its half of n / (n + r), n = s / N:
   no outcome that the public model knows is ruled out by noise. Divided by the sum.

Without noise the result is the teachers' mean of clipped differences; drowned in noise it is the public model itself,
of no weight.

Source: James & Stein 1961; scale mixtures and the doubt, Stephens 2017, "False discovery rates: a new deal"; the risk,
Stein 1981, its divergence by one random probe, Ramani, Blu & Unser 2008. The bound of the variance, the floor and its
size, and the weight are ours.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import Released
from learning.swing.differences import Cells

SCALES: Final = (0.0, 0.25, 1.0, 4.0, 16.0)
_ROUNDS: Final = 30
_DOUBT: Final = 10.0
_SMALLEST: Final = 20
"""Public probabilities below 2^-20 are one group."""
_BLOCK: Final = 1 << 16
"""Tokens whose likelihoods are computed together."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What teachers say of some tokens, out of the noise.

    chances: probabilities of the cells, those of all other tokens last, float64 [tokens, top + 1]; each row adds up to
    1. weights: float64 [tokens], from 0 to 1, how much of each row is known.
    """

    chances: NDArray[np.float64]
    weights: NDArray[np.float64]


def answers_of(released: Released, cells: Cells, teachers: int) -> Answers:
    """The teachers' mean probabilities, as far as they stand out of the noise, and how far that is.

    released: noisy sums [tokens, top + 1] over all teachers, in units of probability. teachers: N, public. Raises
    `ConclaveError` for sums of other cells, and without a teacher.
    """
    if released.values.shape != cells.public.shape or teachers < 1:
        raise ConclaveError(
            f"Sums of {released.values.shape} over {teachers:,} teachers are not of cells of {cells.public.shape}."
        )
    if not len(cells.public):
        return Answers(cells.public.copy(), np.zeros(0))
    size = cells.top + 1
    mean = released.values / teachers
    mean = mean - mean.mean(axis=1, keepdims=True)
    noise = (released.sigma / teachers) ** 2 * (1 - 1 / size)
    if noise == 0:
        return Answers(_joined(cells.public, mean, 0.0), np.ones(len(mean)))
    change, known, expected = _estimated(mean, cells, noise)
    weights = np.divide(known, expected, out=np.zeros(len(mean)), where=expected > 0)
    believed = float(known.sum()) / max(float(expected.sum()), np.finfo(float).tiny)
    weights *= _known(mean, change, cells, noise) / max(believed, np.finfo(float).tiny)
    return Answers(_joined(cells.public, change, released.sigma / teachers), weights.clip(0, 1))


def _estimated(
    mean: NDArray[np.float64], cells: Cells, noise: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """The estimate of m [tokens, cells]; by its priors, the squared size of m that is known and that is expected at
    each token, both [tokens].
    """
    words = _words(mean, cells, noise)
    left = mean - words
    factor, known, expected = _factors(left, _variances(left, cells.public, noise), cells.public, noise)
    explained = (words * words).sum(axis=1)
    return words + factor * left, explained + known, explained + expected


def _known(mean: NDArray[np.float64], change: NDArray[np.float64], cells: Cells, noise: float) -> float:
    """The part of all of m that an estimate knows, by Stein's unbiased estimate of its risk; from 0 to 1."""
    count = len(mean) * cells.top  # the mean over a token's cells is 0 by what m is
    whole = noise * (cells.top + 1) / cells.top
    size = float((mean * mean).sum()) - whole * count
    if size <= 2 * whole * math.sqrt(2 * count):
        return 0.0
    probe = np.random.default_rng(0).choice((-1.0, 1.0), mean.shape)
    probe -= probe.mean(axis=1, keepdims=True)
    step = 1e-3 * math.sqrt(whole)
    moved, _, _ = _estimated(mean + step * probe, cells, noise)
    divergence = float((probe * (moved - change)).sum()) / step
    risk = float(((mean - change) ** 2).sum()) - whole * count + 2 * whole * divergence
    return min(1.0, max(0.0, 1 - risk / size))


def _words(mean: NDArray[np.float64], cells: Cells, noise: float) -> NDArray[np.float64]:
    """What a tilt of the public model that is the same at all places explains, [tokens, cells]."""
    public = cells.public
    others = cells.ids.max(initial=0) + 1  # the cell of all others is a word of its own
    named = np.concatenate([cells.ids, np.full((len(public), 1), others)], axis=1)
    known, word = np.unique(named, return_inverse=True)
    word = word.reshape(named.shape)
    square = np.bincount(word.ravel(), (public * public).ravel(), minlength=len(known))
    met = square > 0
    tilt = np.zeros(len(known))
    tilt[met] = np.bincount(word.ravel(), (public * mean).ravel(), minlength=len(known))[met] / square[met]
    count = int(met.sum())
    signal = float((square * tilt * tilt).sum()) - noise * (count + 4 * math.sqrt(2 * count))
    if signal <= 0:
        return np.zeros_like(mean)
    variance = signal / float(square.sum())
    tilt *= variance * square / (variance * square + noise)
    each = tilt.clip(-1, None)[word]
    result: NDArray[np.float64] = public * (each - (public * each).sum(axis=1, keepdims=True))
    return result


def _variances(mean: NDArray[np.float64], public: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """The variance of the teachers' mean in each cell, [tokens, cells], by its group."""
    with np.errstate(divide="ignore"):
        group = np.clip(-np.floor(np.log2(public)), 0, _SMALLEST).astype(np.int64)
    group[:, -1] = _SMALLEST + 1
    count = np.bincount(group.ravel(), minlength=_SMALLEST + 2)
    square = np.bincount(group.ravel(), (mean * mean).ravel(), minlength=_SMALLEST + 2) / np.maximum(count, 1)
    margin = 4 * noise * np.sqrt(2 / np.maximum(count, 1))
    found: NDArray[np.float64] = np.maximum(square - noise - margin, 0)[group]
    return found


def _factors(
    mean: NDArray[np.float64], variance: NDArray[np.float64], public: NDArray[np.float64], noise: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """By what each cell is multiplied, from 0 to 1, [tokens, cells]; and the squared size of m that is known and that
    is expected at each token, both [tokens].
    """
    most = public * (1 - public)
    likelihood = np.empty((len(mean), len(SCALES)))
    for start in range(0, len(mean), _BLOCK):
        part = slice(start, start + _BLOCK)
        for place, scale in enumerate(SCALES):
            whole = noise + np.minimum(scale * variance[part], most[part])
            likelihood[part, place] = -0.5 * (np.log(whole) + mean[part] ** 2 / whole).sum(axis=1)
    likelihood = np.exp(likelihood - likelihood.max(axis=1, keepdims=True))
    weights = np.full(len(SCALES), 1 / len(SCALES))
    for _ in range(_ROUNDS):
        posterior = likelihood * weights
        posterior /= posterior.sum(axis=1, keepdims=True)
        counts = posterior.sum(axis=0)
        counts[0] += _DOUBT
        weights = counts / counts.sum()
    factor = np.zeros_like(mean)
    known, expected = np.zeros(len(mean)), np.zeros(len(mean))
    for place, scale in enumerate(SCALES):
        prior = np.minimum(scale * variance, most)
        left = prior / (prior + noise)
        factor += posterior[:, place, None] * left
        known += posterior[:, place] * (prior * left).sum(axis=1)
        expected += posterior[:, place] * prior.sum(axis=1)
    return factor, known, expected


def _joined(public: NDArray[np.float64], change: NDArray[np.float64], noise: float) -> NDArray[np.float64]:
    """public + change as distributions, [tokens, cells], that keep in every cell a part of the public one."""
    floor = 0.5 * noise / (noise + public) * public if noise else 0.0
    found = np.maximum(public + change, floor)
    result: NDArray[np.float64] = found / found.sum(axis=1, keepdims=True)
    return result
