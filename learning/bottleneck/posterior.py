"""The law that a text's noisy sequence is drawn from, and one draw of it.

Of a text: component i is a Gaussian N(mu_i, s_i^2) with a pseudo-count a_i; weights are Dirichlet,

    pi ~ Dir(a),  z_i ~ N(mu_i, diag s_i^2),

one vector a component. A Dirichlet sample is Gammas over their sum. All is kept in logs: the Gamma of a tiny count is
0 in any floating-point format, its logarithm is not. With U uniform, ln Gamma(a) = ln Gamma(a + 1) + (ln U) / a exactly
in law; of the first term torch knows the gradient for a, the second is elementary.

Source: Henderson & Fehr 2023, "A VAE for Transformers with Nonparametric Variational Information Bottleneck", and the
paper on noisy transformer embeddings (NVDP), section 3.3, with one vector a component.
"""

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from scipy import special
from torch import Tensor
from torch.nn import functional

from aggregation.errors import ConclaveError
from aggregation.noise.stream import NoiseStream

LARGEST_MEAN: Final = 1e4
"""The most that a coordinate of a mean may be, either way."""
LOG_VARIANCES: Final = (-10.0, 4.0)
"""Between which the logarithm of a variance is held."""
LOG_COUNTS: Final = (-8.0, 8.0)
"""Between which the logarithm of a pseudo-count is held."""
LEAST_LOG_WEIGHT: Final = -80.0
"""Below which no logarithm of a weight goes, so that a live position of a float32 row never has the weight 0."""
NO_WEIGHT: Final = -1e4
"""The logarithm of the weight of a position that is not there: finite, and 0 as a weight."""
PAD_COUNT: Final = 1.0
"""The pseudo-count of a pad, that of the prior's component: see `Posterior.filled`."""

Source = torch.Generator | NoiseStream


@dataclass(frozen=True, slots=True)
class Posterior:
    """The samplers of some texts.

    mean, log_variance: [texts, positions, width]. log_counts: logarithms of pseudo-counts [texts, positions]; None
    where weights are not drawn: every position that is there has the same. mask: bool [texts, positions], whether a
    position is there. Numbers under a False of the mask have no meaning, and are finite.
    """

    mean: Tensor
    log_variance: Tensor
    log_counts: Tensor | None
    mask: Tensor

    def __post_init__(self) -> None:
        texts, positions = self.mask.shape
        shapes = (self.mean.shape[:2], self.log_variance.shape[:2])
        counts = (texts, positions) if self.log_counts is None else tuple(self.log_counts.shape)
        if any(tuple(each) != (texts, positions) for each in (*shapes, counts)) or (
            self.mean.shape != self.log_variance.shape
        ):
            raise ConclaveError(
                f"A posterior of {texts:,} texts at {positions:,} positions needs means, variances and pseudo-counts "
                f"of these; they are {tuple(self.mean.shape)}, {tuple(self.log_variance.shape)} and {counts}."
            )

    def __len__(self) -> int:
        return len(self.mask)

    @property
    def width(self) -> int:
        """The coordinates of a vector."""
        return self.mean.shape[2]

    def filled(self, positions: int | None = None) -> "Posterior":
        """The same with a pad at every position that is not there: mean 0, variance 1, pseudo-count `PAD_COUNT`.

        positions: how many there are to be, at least as many as now, which is the default; new ones come last. A pad is
        a copy of the prior's component and is really sampled, so that a sample says its text's length only as far as
        its vectors do. The paper (footnote 3) gives pads the prior's mean and variance for its measurement. Its
        pseudo-count cannot be 0: Dirichlet samples with and without a component are infinitely far apart. We take 1,
        the prior's, which moves two texts of different length as little as any public choice that the prior itself
        has. Raises `ConclaveError` for fewer positions.
        """
        now = self.mask.shape[1]
        more = (now if positions is None else positions) - now
        if more < 0:
            raise ConclaveError(f"Texts of {now:,} positions do not fit in {positions:,}. Ask for more positions.")
        mask = functional.pad(self.mask, (0, more))
        missing = ~mask.unsqueeze(2)
        mean = functional.pad(self.mean, (0, 0, 0, more)).masked_fill(missing, 0.0)
        log_variance = functional.pad(self.log_variance, (0, 0, 0, more)).masked_fill(missing, 0.0)
        counts = self.log_counts
        if counts is not None:
            counts = functional.pad(counts, (0, more)).masked_fill(~mask, math.log(PAD_COUNT))
        return Posterior(mean, log_variance, counts, torch.ones_like(mask))

    def of(self, some: slice | Tensor) -> "Posterior":
        """The samplers of some of the texts."""
        counts = None if self.log_counts is None else self.log_counts[some]
        return Posterior(self.mean[some], self.log_variance[some], counts, self.mask[some])

    def detached(self) -> "Posterior":
        """The same without gradients."""
        counts = None if self.log_counts is None else self.log_counts.detach()
        return replace(self, mean=self.mean.detach(), log_variance=self.log_variance.detach(), log_counts=counts)


@dataclass(frozen=True, slots=True)
class Sample:
    """One noisy sequence a text: what leaves a party.

    vectors: [texts, positions, width], 0 where the mask is False. log_weights: [texts, positions], `NO_WEIGHT` where
    the mask is False; the weights of a text add up to 1, of one without positions to 0. mask: bool [texts, positions].
    It has no guarantee by itself: see `learning.bottleneck.supremum` for what bounded parameters give.
    """

    vectors: Tensor
    log_weights: Tensor
    mask: Tensor

    def __len__(self) -> int:
        return len(self.mask)


def joined(posteriors: list[Posterior]) -> Posterior:
    """Texts of several posteriors of the same form and positions, in order."""
    counts = [each.log_counts for each in posteriors if each.log_counts is not None]
    return Posterior(
        torch.cat([each.mean for each in posteriors]),
        torch.cat([each.log_variance for each in posteriors]),
        torch.cat(counts) if counts else None,
        torch.cat([each.mask for each in posteriors]),
    )


def in_order(samples: list[Sample]) -> Sample:
    """Texts of several samples of the same positions, in order."""
    return Sample(
        torch.cat([each.vectors for each in samples]),
        torch.cat([each.log_weights for each in samples]),
        torch.cat([each.mask for each in samples]),
    )


def sampled(posterior: Posterior, source: Source) -> Sample:
    """Draw one noisy sequence of every text, in training and afterwards alike.

    source: a seeded torch generator for training and science, through which gradients reach the posterior; or a
    `NoiseStream` for what a party lets go, one that draws nothing else, without gradients. A text is drawn once: a
    second draw of the same text tells more, so whoever released one stores it.
    """
    normal, uniform, gamma = _noise(posterior, source)
    mask = posterior.mask
    vectors = posterior.mean + torch.exp(0.5 * posterior.log_variance) * normal
    vectors = vectors.masked_fill(~mask.unsqueeze(2), 0.0)
    if posterior.log_counts is None:
        return Sample(vectors, equal_weights(mask, vectors.dtype), mask)
    assert gamma is not None
    assert uniform is not None
    log_gamma = torch.log(gamma) + torch.log(uniform) * torch.exp(-posterior.log_counts)
    return Sample(vectors, _log_shares(log_gamma, mask), mask)


def expected(posterior: Posterior) -> Sample:
    """The middle of every sampler, without noise: means, and counts over their sum. It protects nothing."""
    mask = posterior.mask
    vectors = posterior.mean.masked_fill(~mask.unsqueeze(2), 0.0)
    if posterior.log_counts is None:
        return Sample(vectors, equal_weights(mask, vectors.dtype), mask)
    return Sample(vectors, _log_shares(posterior.log_counts, mask), mask)


def equal_weights(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Logarithms [texts, positions] of weights that are alike at all positions that are there."""
    live = mask.sum(dim=1, keepdim=True).clamp(min=1).to(dtype)
    return (-torch.log(live)).expand(mask.shape).masked_fill(~mask, NO_WEIGHT)


def _log_shares(logs: Tensor, mask: Tensor) -> Tensor:
    """Logarithms of each number's share of its row's sum, where the mask is True."""
    shares = torch.log_softmax(logs.masked_fill(~mask, -torch.finfo(logs.dtype).max / 4), dim=1)
    return shares.clamp(min=LEAST_LOG_WEIGHT).masked_fill(~mask, NO_WEIGHT)


def _noise(posterior: Posterior, source: Source) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Standard normals like the means; uniforms in (0, 1) and Gammas of the counts plus 1 like the counts."""
    like, counts = posterior.mean, posterior.log_counts
    if isinstance(source, NoiseStream):
        with torch.no_grad():
            normal = torch.from_numpy(special.ndtri(_open(source, like.numel()))).view(like.shape).to(like)
            if counts is None:
                return normal, None, None
            uniform = torch.from_numpy(_open(source, counts.numel())).view(counts.shape).to(counts)
            more = counts.detach().double().exp().add(1.0).cpu().numpy()
            drawn = special.gammaincinv(more, _open(source, counts.numel()).reshape(more.shape))
            return normal, uniform, torch.from_numpy(np.asarray(drawn)).to(counts)
    normal = torch.randn(like.shape, generator=source, dtype=like.dtype, device=source.device).to(like.device)
    if counts is None:
        return normal, None, None
    uniform = torch.rand(counts.shape, generator=source, dtype=torch.float64, device=source.device)
    uniform = uniform.clamp(min=2**-53).to(counts)
    return normal, uniform, torch._standard_gamma(torch.exp(counts) + 1.0, generator=source)


def _open(stream: NoiseStream, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Uniform numbers [count] in the open (0, 1), of 52 bits each."""
    return ((stream.uint64(count) >> np.uint64(12)).astype(np.float64) + 0.5) / 2.0**52
