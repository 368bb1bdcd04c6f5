"""The layers that turn an encoder's token vectors into samplers: nonparametric, one Gaussian a token, or one a text.

With x_i the vector of token i, the nonparametric layer has

    mu_i = A x_i + a,   ln s_i^2 = B x_i + b,   ln a_i = <u, x_i> + <v, x_i^2> + c,

x^2 coordinate by coordinate, and puts the prior's component (mean 0, variance 1, pseudo-count 1) before the tokens, at
position 0, where padding never moves it. So a text of no tokens has a sampler: the prior's.

Source: Henderson & Fehr 2023, section 3, and the paper on noisy transformer embeddings (NVDP), sections 2.2, 3.1, 4.1.
"""

import math
from collections.abc import Mapping
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

from aggregation.errors import ConclaveError
from learning.bottleneck.posterior import LARGEST_MEAN, LOG_COUNTS, LOG_VARIANCES, Posterior
from learning.models.checkpoints import ModelError
from learning.models.seeded import draw

LARGEST_INPUT: Final = 1e4
"""The most that a coordinate of a token's vector may be, either way."""
LARGEST_PARAMETER: Final = 1e6
"""The most that a parameter of somebody else may be: no sum of a layer is then beyond float32."""
PRIOR_COUNT: Final = 1.0
"""The pseudo-count of the prior's component."""
START_LOG_VARIANCE: Final = -3.0
"""Where the logarithm of every variance begins: with less noise than the prior, so that a task can be learned."""
START_LOG_COUNT: Final = 2.0
"""Where the logarithm of every token's pseudo-count begins: weights are then known to about a third."""


class TokenBottleneck(nn.Module):
    """A Gaussian for every token, with a pseudo-count and the prior's component (NVIB) or without (VIB by token).

    read: the width of the encoder's vectors. width: of the noisy ones. counted: whether tokens have pseudo-counts.
    seed: of the initial parameters, the same bytes on every machine. Raises `ConclaveError` for a width below 1.
    """

    def __init__(self, read: int, width: int, *, counted: bool, seed: int) -> None:
        super().__init__()
        if read < 1 or width < 1:
            raise ConclaveError(f"A layer from {read} to {width} coordinates makes no sense. Give 1 or more of each.")
        self.read, self.width, self.counted = read, width, counted
        self.mean = nn.Linear(read, width)
        self.log_variance = nn.Linear(read, width)
        _begin("mean", self.mean, 1 / math.sqrt(read), 0.0, seed)
        _begin("log_variance", self.log_variance, 0.1 / math.sqrt(read), START_LOG_VARIANCE, seed)
        if counted:
            self.linear_count = nn.Linear(read, 1)
            self.square_count = nn.Linear(read, 1, bias=False)
            _begin("linear_count", self.linear_count, 0.1 / math.sqrt(read), START_LOG_COUNT, seed)
            _begin("square_count", self.square_count, 0.01 / math.sqrt(read), None, seed)

    def forward(self, vectors: Tensor, mask: Tensor) -> Posterior:
        """The samplers of texts.

        vectors: of tokens [texts, tokens, read], float16 or more. mask: bool [texts, tokens], which tokens are there. A
        text with a number that is not finite at one of them is a text of no tokens, in silence: an error would tell
        something of a private text. Result: [texts, tokens + 1, width] with pseudo-counts, else [texts, tokens, width].
        Raises `ConclaveError` for other shapes.
        """
        x, mask = clean(vectors, mask, self.read, self.mean.weight.dtype)
        mean = self.mean(x).clamp(-LARGEST_MEAN, LARGEST_MEAN)
        log_variance = self.log_variance(x).clamp(*LOG_VARIANCES)
        missing = ~mask.unsqueeze(2)
        mean, log_variance = mean.masked_fill(missing, 0.0), log_variance.masked_fill(missing, 0.0)
        if not self.counted:
            return Posterior(mean, log_variance, None, mask)
        counts = (self.linear_count(x) + self.square_count(x * x)).squeeze(2).clamp(*LOG_COUNTS)
        return Posterior(
            functional.pad(mean, (0, 0, 1, 0)),
            functional.pad(log_variance, (0, 0, 1, 0)),
            functional.pad(counts.masked_fill(~mask, 0.0), (1, 0), value=math.log(PRIOR_COUNT)),
            functional.pad(mask, (1, 0), value=True),
        )


class PooledBottleneck(nn.Module):
    """One Gaussian for a whole text: tanh of a linear map of its tokens' mean vector, under noise that is the same for
    every text.

    sigma: its standard deviation where that is fixed; None where one a coordinate is learned, as softplus of a
    parameter. Other arguments as of `TokenBottleneck`. tanh is that of BERT's own pooled vector, and keeps means from
    growing past the noise. Source: VIB-fixed and VIB-learned of the paper, section 4.1.
    """

    def __init__(self, read: int, width: int, *, sigma: float | None, seed: int) -> None:
        super().__init__()
        if read < 1 or width < 1:
            raise ConclaveError(f"A layer from {read} to {width} coordinates makes no sense. Give 1 or more of each.")
        if sigma is not None and not (math.isfinite(sigma) and 1e-2 <= sigma <= 7):
            raise ConclaveError(f"Noise of deviation {sigma:g} makes no sense here. Give one from 0.01 to 7.")
        self.read, self.width, self.sigma = read, width, sigma
        self.mean = nn.Linear(read, width)
        _begin("mean", self.mean, 1 / math.sqrt(read), 0.0, seed)
        if sigma is None:
            start = math.exp(START_LOG_VARIANCE / 2)
            self.deviation = nn.Parameter(torch.full((width,), math.log(math.expm1(start))))

    def forward(self, vectors: Tensor, mask: Tensor) -> Posterior:
        """The samplers of texts, [texts, 1, width]; arguments as of `TokenBottleneck.forward`.

        The mean vector of the tokens of a text of none is 0.
        """
        x, mask = clean(vectors, mask, self.read, self.mean.weight.dtype)
        pooled = x.sum(dim=1) / mask.sum(dim=1, keepdim=True).clamp(min=1)
        mean = torch.tanh(self.mean(pooled)).unsqueeze(1)
        if self.sigma is None:
            log_variance = 2 * torch.log(functional.softplus(self.deviation).clamp(min=1e-6)).clamp(
                LOG_VARIANCES[0] / 2, LOG_VARIANCES[1] / 2
            )
        else:
            log_variance = mean.new_full((self.width,), 2 * math.log(self.sigma))
        return Posterior(
            mean, log_variance.expand(mean.shape), None, torch.ones(mean.shape[:2], dtype=torch.bool, device=x.device)
        )


def clean(vectors: Tensor, mask: Tensor, read: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Vectors of tokens that are there, held to `LARGEST_INPUT`, 0 elsewhere, and the mask: both without the texts that
    hold a number that is not finite.

    Raises `ConclaveError` for shapes that do not fit.
    """
    if vectors.ndim != 3 or vectors.shape[2] != read or mask.shape != vectors.shape[:2] or mask.dtype != torch.bool:
        raise ConclaveError(
            f"The layer reads vectors [texts, tokens, {read}] and a mask of booleans [texts, tokens]; these are "
            f"{tuple(vectors.shape)} and {tuple(mask.shape)} of {mask.dtype}."
        )
    sound = torch.isfinite(vectors).all(dim=2) | ~mask
    mask = mask & sound.all(dim=1, keepdim=True)
    x = torch.where(mask.unsqueeze(2), vectors, torch.zeros((), dtype=vectors.dtype, device=vectors.device)).to(dtype)
    return x.clamp(-LARGEST_INPUT, LARGEST_INPUT), mask


def load_parameters(layer: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a layer, in place, parameters that somebody else trained.

    They may be anything: names and shapes are compared, and every number must be at most `LARGEST_PARAMETER`, either
    way. Raises `ModelError`, and changes nothing.
    """
    own = dict(layer.named_parameters())
    if set(own) != set(tensors):
        odd = sorted(set(own) ^ set(tensors))[0]
        raise ModelError(f"These are not the parameters of this layer: {odd[:80]!r} is only in one of the two.")
    for name, parameter in own.items():
        given = tensors[name]
        fits = given.shape == parameter.shape and given.dtype == parameter.dtype
        if not (fits and bool((given.abs() <= LARGEST_PARAMETER).all())):  # NaN fails, too
            raise ModelError(
                f"Parameter {name} must be {tuple(parameter.shape)} of {parameter.dtype} up to "
                f"{LARGEST_PARAMETER:g}; this one is not."
            )
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(tensors[name])


def _begin(name: str, linear: nn.Linear, deviation: float, bias: float | None, seed: int) -> None:
    draw(name, linear.weight, seed, bound=deviation * math.sqrt(3))
    if bias is not None:
        nn.init.constant_(linear.bias, bias)
