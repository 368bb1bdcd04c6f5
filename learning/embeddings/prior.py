"""From noisy frequencies and moments to word vectors: the most probable model about a public one.

Released were, under normal noise, the frequencies N 1 of private counts N and the moments U' N U along public
directions (`learning.embeddings.moments`). The model is the exponential family that they are the sufficient statistics
of,

    P_ij = exp(b_i + b_j + u_i' K u_j),

and the student minimises

    sum_ij P_ij - 2 b . f - <K, S> + 1/2 sum_kl R_kl (K - a K0)_kl^2

with f the frequencies and S the moments, as shares of the whole. That is convex, and linear in what is noisy, so noise
does not bias it. K0 is the public interaction: whatever co-occurrence in private text has in common with public text,
above all syntax, costs nothing.

How far to trust it is learned from the released values alone, which is free. Directions are turned, in the order of
their strength, to have mean 0 and be uncorrelated under f. There the curvature is about the identity, so the residual
S - E[u u'] under P with K = a K0 is about K - a K0, plus noise of known variance v_kl (of the release and of the text).
Turning takes the moments' noisy means away from every entry; they are drawn to those of f first, and what is left of
their noise is in v_kl.
Entries of about equal rank, in shells that double, have one prior variance t: it and `a`, of a few values, maximise the
residuals' likelihood under N(0, t + v). R = v / t: a shell that shows nothing but noise keeps the public values, and a
public interaction that the residuals speak against is dropped (a = 0).

f comes first: log f has a normal prior about public frequencies, and the likelihood of Poisson counts shifted by the
noise variance, as in `learning.embeddings.denoising`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggregation.arrays import FloatArray
from aggregation.errors import IntegrityError
from aggregation.mechanisms.mechanism import Released
from learning.embeddings.denoising import BLOCK_CELLS, FREQUENCIES
from learning.embeddings.moments import Directions
from learning.embeddings.optimising import fixed_threads, minimise
from learning.embeddings.skipgram import SkipGram

TRUSTS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Multiples `a` of the public interaction that are tried."""
BURSTS = 3.0
"""Variance of the text's moments over that of independent pairs: a word brings all pairs of its window. Chosen on
WikiText-2, where 1 to 10 differ by less than 1%.
"""

_SMALLEST_SHELL = 4
_VARIANCES = np.geomspace(1e-9, 0.1, 81)
_EVIDENCE = 2.0  # nats by which a shell's likelihood must rise, or it keeps the public values
_RIDGE = 1e-3  # for the directions' correlations: under private frequencies two directions may nearly coincide
_NEWTON_STEPS = 60
_BALANCING_STEPS = 30
_CEILING = 20.0  # of log P, against overflow in a line search


def frequencies_of(released: Released, directions: Directions) -> FloatArray:
    """How frequent words are, [V], summing to 1, from released moments or frequencies alone (k = 0).

    With k = 0 and the whole budget it is the floor that every student must beat. Words are drawn to public frequencies,
    the more so the less of them can be told from noise.
    Raises `IntegrityError` for values that do not fit the directions, and a sigma that is not positive and finite.
    """
    noisy, _ = _unpacked(released, directions)
    public = -2 * np.log(directions.weights.astype(np.float64))
    variance = (released.sigma / directions.weights.astype(np.float64)) ** 2
    logarithms = np.log(np.maximum(noisy, np.sqrt(variance)))
    for _ in range(_NEWTON_STEPS):
        away = logarithms - public
        counts = np.exp(np.minimum(logarithms, 700.0))
        trust = counts / (counts + variance)
        slope = (counts - noisy) * trust + FREQUENCIES * (away - away.mean())
        logarithms = logarithms - np.clip(slope / (counts * trust + FREQUENCIES), -1.0, 1.0)
    shares = np.exp(logarithms - logarithms.max())
    return np.asarray(shares / shares.sum(), dtype=np.float64)


def fit_moments(
    released: Released,
    directions: Directions,
    *,
    steps: int = 20,
    on_step: Callable[[float], None] | None = None,
) -> SkipGram:
    """Fit the student to what `VectorMechanism` released of `learning.embeddings.moments.contribute`; vectors are [V,
    k].

    released: values [columns] and the standard deviation of the noise on each. on_step: told the fraction done.
    Post-processing: it costs no privacy. The same values give the same bytes on the same machine.
    Memory: 4 bytes a cell of [V, V], and a few blocks of 16 MiB. Time at V = 2,000 and k = 100: 10 s on one core.
    Raises `IntegrityError` like `frequencies_of`.
    """
    frequencies = frequencies_of(released, directions)
    with torch.no_grad(), fixed_threads(directions.size):
        if not directions.rank:
            vectors = np.zeros((directions.size, 0), np.float32)
            return SkipGram(vectors, vectors, np.log(frequencies).astype(np.float32))
        return _Problem(released, directions, frequencies).solve(steps, on_step)


@dataclass(frozen=True, slots=True)
class Trust:
    """public: the multiple of the public interaction. residual, variance, noise: [k, k], of the module's docstring."""

    public: float
    residual: FloatArray
    variance: FloatArray
    noise: FloatArray
    bias: Tensor


class _Problem:
    """One release, in directions turned to mean 0 and no correlation under the frequencies found."""

    def __init__(self, released: Released, directions: Directions, frequencies: FloatArray):
        self.size, self.rank = directions.size, directions.rank
        _, moments = _unpacked(released, directions)
        pairs = max(float(moments[0, 0]), released.sigma)
        means = moments[0, 1:] / pairs
        plain = directions.vectors.astype(np.float64)
        centre = frequencies @ plain
        means, kept = _shrunk(means, centre, (released.sigma / pairs) ** 2 / 2)
        # After clipping the sample's means differ from f: it is centred on f's, so that b follows f alone.
        moved = moments[1:, 1:] / pairs - np.outer(means, centre) - np.outer(centre, means) + np.outer(centre, centre)
        plain = plain - centre
        covariance = (plain * frequencies[:, None]).T @ plain
        lengths = np.sqrt(np.diag(covariance)) + 1e-12
        lower = np.linalg.cholesky(covariance / np.outer(lengths, lengths) + _RIDGE * np.eye(self.rank))
        turn = np.linalg.inv(lower).T / lengths[:, None]
        back = np.linalg.inv(turn)
        self.moments = turn.T @ moved @ turn
        self.public = back @ np.diag(directions.strengths.astype(np.float64)) @ back.T
        spread = (turn * turn).sum(axis=0)
        noise = (released.sigma / pairs) ** 2 / 2 * np.outer(spread, spread)
        # The means' noise enters every entry, more so for directions whose mean is far from 0.
        shift = kept**2 * (released.sigma / pairs) ** 2 / 2 * np.outer(spread, (centre @ turn) ** 2)
        self.noise = noise + np.diag(np.diag(noise)) + shift + shift.T + 2 * np.diag(np.diag(shift)) + BURSTS / pairs
        self.frequencies = torch.from_numpy(frequencies).float()
        self.vectors = torch.from_numpy(np.ascontiguousarray(plain @ turn)).float()

    def trust(self) -> Trust:
        """The multiple of the public interaction and the shells' variances under which the residuals are likeliest."""
        shells, best, chosen = _shells(self.rank), -np.inf, None
        for public in TRUSTS:
            bias, expected = self._balanced(public)
            residual = self.moments - expected
            variance, likelihood = np.zeros_like(residual), 0.0
            for shell in range(int(shells.max()) + 1):
                here = np.triu(shells == shell)
                spread = _VARIANCES[:, None] + self.noise[here]
                logs = -(np.log(spread) + residual[here] ** 2 / spread).sum(axis=1) / 2
                place = int(logs.argmax()) if logs.max() > logs[0] + _EVIDENCE else 0
                variance[shells == shell] = _VARIANCES[place]
                likelihood += float(logs[place])
            if likelihood > best:
                best, chosen = likelihood, Trust(public, residual, variance, self.noise, bias)
        if chosen is None:
            raise IntegrityError("The moments do not fit any model. Are sigma and the values in the same unit?")
        return chosen

    def solve(self, steps: int, on_step: Callable[[float], None] | None) -> SkipGram:
        trust = self.trust()
        start = torch.from_numpy(trust.public * self.public).float()
        precision = torch.from_numpy(trust.noise / trust.variance).float()
        moments = torch.from_numpy(self.moments).float()

        def objective(bias: Tensor, core: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            away = core - start
            loss = (precision.double() * away.double().square()).sum() / 2
            loss -= 2 * (bias.double() @ self.frequencies.double()) + (core.double() * moments.double()).sum()
            by_bias, by_core = -2 * self.frequencies, precision * away - moments
            carried = self.vectors @ core
            for rows in self._blocks():
                model = torch.addmm(bias[rows, None] + bias, carried[rows], self.vectors.T)
                model = model.clamp_(max=_CEILING).exp_()
                loss += model.sum(dtype=torch.float64)
                by_bias[rows] += 2 * model.sum(1)
                by_core += self.vectors[rows].T @ (model @ self.vectors)
            return loss, by_bias, (by_core + by_core.T) / 2

        scale = (2 * self.frequencies).sqrt(), (1 + precision).sqrt()
        bias, core = minimise((trust.bias, start), scale, objective, steps, on_step)
        if not (torch.isfinite(bias).all() and torch.isfinite(core).all()):
            raise IntegrityError("Fitting the moments did not stay finite. Are sigma and the values in the same unit?")
        return self._student(bias, core)

    def _student(self, bias: Tensor, core: Tensor) -> SkipGram:
        """K turned to its axes: x_i = |L|^1/2 Q' u_i as centre, the same with L's signs as context."""
        values, axes = np.linalg.eigh(core.double().numpy())
        order = np.argsort(-np.abs(values), kind="stable")
        values, axes = values[order], axes[:, order]
        inputs = self.vectors.double().numpy() @ (axes * np.sqrt(np.abs(values)))
        outputs = inputs * np.where(values < 0, -1.0, 1.0)
        away = bias.double().numpy()
        return SkipGram(*(part.astype(np.float32) for part in (inputs, outputs, away - away.mean())))

    def _balanced(self, public: float) -> tuple[Tensor, FloatArray]:
        """b [V] with which the model of K = public * K0 has the frequencies for its margins; its moments [k, k]."""
        carried = self.vectors @ torch.from_numpy(public * self.public).float()
        cells = torch.empty(self.size, self.size)
        for rows in self._blocks():
            cells[rows] = torch.addmm(torch.zeros(1), carried[rows], self.vectors.T).clamp_(max=_CEILING).exp_()
        weights = self.frequencies.clone()
        for _ in range(_BALANCING_STEPS):
            weights = (weights * self.frequencies / (cells @ weights)).sqrt_()
        weighted = weights[:, None] * self.vectors
        total = float(weights @ (cells @ weights))
        expected = (weighted.T @ (cells @ weighted)).double().numpy() / total
        return weights.log(), np.asarray((expected + expected.T) / 2, dtype=np.float64)

    def _blocks(self) -> list[slice]:
        rows = max(1, BLOCK_CELLS // self.size)
        return [slice(first, min(first + rows, self.size)) for first in range(0, self.size, rows)]


def _shrunk(noisy: FloatArray, towards: FloatArray, variance: float) -> tuple[FloatArray, float]:
    """Noisy means [k] drawn to what frequencies say they are (James and Stein 1961); how much of the way is kept."""
    away = noisy - towards
    kept = max(0.0, 1.0 - variance * len(away) / max(float(away @ away), 1e-300))
    return towards + kept * away, kept


def _unpacked(released: Released, directions: Directions) -> tuple[FloatArray, FloatArray]:
    if not (np.isfinite(released.sigma) and released.sigma > 0):
        raise IntegrityError(f"The noise of noisy moments has a positive standard deviation, not {released.sigma}.")
    return directions.unpack(released.values)


def _shells(rank: int) -> NDArray[np.int64]:
    """Which shell an entry of [rank, rank] is in: by the weaker of its two directions, 0..3, 4..7, 8..15 and so on."""
    place = np.maximum.outer(np.arange(rank), np.arange(rank))
    return np.asarray(np.floor(np.log2(np.maximum(place / _SMALLEST_SHELL, 0.5))) + 1, dtype=np.int64)
