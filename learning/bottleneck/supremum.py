"""What holds for all texts: the largest divergence that bounded parameters admit, and the epsilon that follows.

Everything that a text can change is held within public bounds: means, |mu| <= M in every coordinate or in Euclidean
norm; variances in [v_lo, v_hi]; pseudo-counts in [a_lo, a_hi]; and every text has the same public number of positions,
pads sampled like tokens. Then, whatever two texts are,

    D_l <= k max over (a, b) in {(a_lo, a_hi), (a_hi, a_lo)} of
                 [ln G(l a + (1 - l) b) - l ln G(a) - (1 - l) ln G(b)] / (l - 1)
         + l D^2 / (2 s) - k d (ln s - (1 - l) ln v_hi - l ln v_lo) / (2 (l - 1)),   s = l v_lo - (l - 1) v_hi,

with k positions whose parameters depend on the text, d coordinates each, D^2 the largest squared distance of all means,
and infinite unless l a_lo - (l - 1) a_hi > 0 and s > 0. Weights are charged as the Gammas that they are made of:
normalising is post-processing, and Gammas, unlike a Dirichlet, have their supremum at a corner. A Gaussian's is at the
widest first and the narrowest second.

The guarantee is (epsilon, delta) for one text under REPLACE-ONE: one sample a text shows how many texts there are, so
that adding one is not hidden. It holds only if the sampler's parameters are really held (`held`), every position is
sampled (`Posterior.filled`), a text is sampled once from a `NoiseStream`, and neither the encoder nor the layer has
seen the text, unless its training was charged. A label that goes with a sample is not covered.

Source: Mironov 2017; Gil, Alajaji & Linder 2013 (the formulas for Gammas and Gaussians); Canonne, Kamath & Steinke
2020, proposition 12 (from divergences to epsilon).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy import optimize, special

from aggregation.errors import ConclaveError
from learning.bottleneck.posterior import Posterior


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the parameters of every text are held to.

    positions: sampled vectors whose parameters depend on the text; the prior's component and what is always the same
    cost nothing. width: coordinates of a vector. mean: the most that a coordinate's mean may be, either way, or None;
    norm: the most that a position's mean vector may be in Euclidean norm, or None; one of the two is given. variances,
    counts: lowest and highest; counts is None where weights are not drawn. Raises `ConclaveError` for bounds that hold
    nothing.
    """

    positions: int
    width: int
    variances: tuple[float, float]
    mean: float | None = None
    norm: float | None = None
    counts: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.positions < 1 or self.width < 1:
            raise ConclaveError("Bounds are of one position or more, each of one coordinate or more.")
        if (self.mean is None) == (self.norm is None):
            raise ConclaveError("Means are bounded either in every coordinate or in norm. Give one of the two.")
        bound = self.mean if self.norm is None else self.norm
        if bound is None or not (math.isfinite(bound) and bound >= 0):
            raise ConclaveError(f"Means up to {bound!r} are no bounded means: no epsilon holds. Give a finite bound.")
        for name, pair in (("variances", self.variances), ("pseudo-counts", self.counts)):
            if pair is not None and not (0 < pair[0] <= pair[1] < math.inf):
                raise ConclaveError(
                    f"There are no {name} from {pair[0]:g} to {pair[1]:g}. Give two numbers above 0, the lower first."
                )

    @property
    def squared_distance(self) -> float:
        """The largest squared Euclidean distance between all means of two texts."""
        if self.norm is not None:
            return self.positions * (2 * self.norm) ** 2
        assert self.mean is not None
        return self.positions * self.width * (2 * self.mean) ** 2


@dataclass(frozen=True, slots=True)
class Guarantee:
    """(epsilon, delta) for one text under replace-one, and the order that gives it; the module says when it holds."""

    epsilon: float
    delta: float
    order: float


def supremum(bounds: Bounds, order: float) -> float:
    """The bound of the module on the divergence of that order between any two texts; infinite where there is none.

    Raises `ConclaveError` for an order of 1 or less.
    """
    if not (math.isfinite(order) and order > 1):
        raise ConclaveError(f"A Renyi divergence of order {order:g} is not computed here. Give an order above 1.")
    low, high = bounds.variances
    s = order * low - (order - 1) * high
    if s <= 0:
        return math.inf
    found = order * bounds.squared_distance / (2 * s)
    logs = math.log(s) - (1 - order) * math.log(high) - order * math.log(low)
    found -= bounds.positions * bounds.width * logs / (2 * (order - 1))
    if bounds.counts is not None:
        found += bounds.positions * gammas(bounds.counts, order)
    return found


def gammas(counts: tuple[float, float], order: float) -> float:
    """The largest divergence between Gammas of equal scale whose shapes lie between two bounds."""
    low, high = counts
    if low == high:
        return 0.0
    if order * low - (order - 1) * high <= 0:
        return math.inf

    def between(a: float, b: float) -> float:
        mixed = float(special.gammaln(order * a + (1 - order) * b))
        return (mixed - order * float(special.gammaln(a)) - (1 - order) * float(special.gammaln(b))) / (order - 1)

    return max(between(low, high), between(high, low), 0.0)


def guarantee(bounds: Bounds, delta: float) -> Guarantee:
    """The smallest epsilon that follows from any order's bound.

    delta: in (0, 1); else `ConclaveError` is raised. Where variances or pseudo-counts may vary, only low orders have a
    bound, and epsilon is what these give: often too large to mean anything. Unit: one text's sample. Relation:
    replace-one. Source: Canonne, Kamath & Steinke 2020, proposition 12.
    """
    if not 0 < delta < 1:
        raise ConclaveError(f"A delta of {delta:g} makes no sense. Give one between 0 and 1.")
    ceiling = 1e6
    for pair in (bounds.variances, bounds.counts):
        if pair is not None and pair[1] > pair[0]:
            ceiling = min(ceiling, 1 / (1 - pair[0] / pair[1]))  # from here on infinite

    def epsilon(log_surplus: float) -> float:
        order = 1 + math.exp(log_surplus)
        divergence = supremum(bounds, order)
        spent = math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1)
        return divergence + spent if math.isfinite(divergence) else math.inf

    grid = np.linspace(math.log((ceiling - 1) * 1e-9), math.log((ceiling - 1) * (1 - 1e-9)), 600)
    values = [epsilon(float(each)) for each in grid]
    best = int(np.argmin(values))
    edges = (float(grid[max(0, best - 1)]), float(grid[min(len(grid) - 1, best + 1)]))
    found = optimize.minimize_scalar(epsilon, bounds=edges, method="bounded", options={"xatol": 1e-10})
    least, place = min((float(found.fun), float(found.x)), (values[best], float(grid[best])))
    return Guarantee(max(0.0, least), delta, 1 + math.exp(place))


def held(posterior: Posterior, bounds: Bounds) -> Posterior:
    """The same samplers with every parameter held within the bounds, pads sampled: those that the guarantee is of.

    Means are clipped coordinate by coordinate, or shortened to the norm. Raises `ConclaveError` for another width, for
    more positions than the bounds count beside the prior's component, and for weights that the bounds know nothing of.
    """
    spare = 1 if posterior.log_counts is not None else 0
    if posterior.width != bounds.width or posterior.mask.shape[1] > bounds.positions + spare:
        raise ConclaveError(
            f"Samplers of {posterior.mask.shape[1]:,} positions of width {posterior.width:,} are not those of bounds "
            f"on {bounds.positions:,} of width {bounds.width:,}."
        )
    if (posterior.log_counts is None) != (bounds.counts is None):
        raise ConclaveError("Weights are drawn and not bounded, or bounded and not drawn. Give bounds that fit.")
    full = posterior.filled()
    mean = torch.nan_to_num(full.mean, nan=0.0)
    if bounds.mean is not None:
        mean = mean.clamp(-bounds.mean, bounds.mean)
    elif bounds.norm is not None:
        length = torch.linalg.vector_norm(mean, dim=2, keepdim=True)
        mean = mean * (bounds.norm / length.clamp(min=max(bounds.norm, 1e-30)))
    low, high = (math.log(each) for each in bounds.variances)
    log_variance = torch.nan_to_num(full.log_variance, nan=low).clamp(low, high)
    counts = full.log_counts
    if counts is not None and bounds.counts is not None:
        low, high = (math.log(each) for each in bounds.counts)
        counts = torch.nan_to_num(counts, nan=low).clamp(low, high)
    return Posterior(mean, log_variance, counts, full.mask)
