"""The published form and what it is compared with, under one interface: samplers, a sample, logits, divergences.

| form | what is sampled | who reads it |
|---|---|---|
| "nvib" | a Gaussian a token and the prior's, Dirichlet weights | denoising attention |
| "vtdp" | a Gaussian a token, each by itself | plain attention |
| "vib-fixed" | one Gaussian a text, noise of a fixed deviation | a feed-forward layer |
| "vib-learned" | one Gaussian a text, noise learned, the same for every text | a feed-forward layer |
| "plain" | nothing: vectors as they are | plain attention |
| "regularised" | nothing; dropout 0.1 and weight decay in training | plain attention |

None of these has a guarantee, whatever is measured of it; the last two do not even have noise.

Source: NVDP, sections 3.1 and 4.1.
"""

from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from torch import Tensor, nn

from aggregation.errors import ConclaveError
from learning.bottleneck.attention import Reader
from learning.bottleneck.layer import PooledBottleneck, TokenBottleneck
from learning.bottleneck.losses import PER_TOKEN, kl_dirichlet, kl_gaussian
from learning.bottleneck.posterior import Posterior, Sample, Source, expected, sampled

Name = Literal["nvib", "vtdp", "vib-fixed", "vib-learned", "plain", "regularised"]
NAMES: Final[tuple[Name, ...]] = get_args(Name)
DROPOUT: Final = 0.1
"""Dropout of "regularised", as the paper's."""


@dataclass(frozen=True, slots=True)
class Form:
    """Which form, and how large.

    read: width of the encoder's vectors. width: of the noisy ones. tokens: the public number of tokens that a text has
    at most. outputs: classes of the task, or 1 of a regression. heads: of the attention; they divide the width. pads:
    "sampled", positions that a text does not have are sampled, too, from the prior's Gaussian, so that what is measured
    between texts of different length is what an observer sees; "masked", they are left out: every sample then says its
    text's length, and what is measured with pads does not hold for it. sigma: of "vib-fixed". per_token: of the prior
    (`learning.bottleneck.losses`). Raises `ConclaveError` for a name or a number that makes no sense.
    """

    name: Name
    read: int
    width: int
    tokens: int
    outputs: int
    heads: int = 8
    pads: Literal["sampled", "masked"] = "sampled"
    sigma: float = 1.0
    per_token: float = PER_TOKEN

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise ConclaveError(f"{self.name!r} is no form; use one of {', '.join(NAMES)}.")
        if self.pads not in ("sampled", "masked"):
            raise ConclaveError(f'Pads are "sampled" or "masked", not {self.pads!r}.')
        if min(self.read, self.width, self.tokens, self.outputs) < 1:
            raise ConclaveError("A form needs a width, tokens and outputs of 1 or more each.")

    @property
    def noisy(self) -> bool:
        """Whether anything is sampled."""
        return self.name not in ("plain", "regularised")

    @property
    def pooled(self) -> bool:
        """Whether a text becomes one vector."""
        return self.name in ("vib-fixed", "vib-learned")

    @property
    def positions(self) -> int:
        """Vectors in a sample of a text: its tokens', with the prior's component where there is one."""
        return 1 if self.pooled else self.tokens + (self.name == "nvib")


class NoisyModel(nn.Module):
    """A form with parameters: a bottleneck, which parties get, and a reader, which the coordinator keeps.

    seed: of the initial parameters, the same on every machine for the bottleneck.
    """

    def __init__(self, form: Form, seed: int) -> None:
        super().__init__()
        self.form = form
        if form.pooled:
            sigma = form.sigma if form.name == "vib-fixed" else None
            self.bottleneck: TokenBottleneck | PooledBottleneck = PooledBottleneck(
                form.read, form.width, sigma=sigma, seed=seed
            )
        else:
            self.bottleneck = TokenBottleneck(form.read, form.width, counted=form.name == "nvib", seed=seed)
        self.reader = Reader(
            form.width,
            form.outputs,
            heads=form.heads,
            seed=seed,
            plain=form.name != "nvib",
            dropout=DROPOUT if form.name == "regularised" else 0.0,
        )

    def posterior(self, vectors: Tensor, mask: Tensor) -> Posterior:
        """The samplers of texts, [texts, `Form.positions`, width]; vectors [texts, tokens, read] and mask bool [texts,
        tokens] of `Form.tokens` tokens or fewer. Without noise only the means have a meaning.
        """
        found: Posterior = self.bottleneck(vectors, mask)
        if self.form.pooled or self.form.pads == "masked" or not self.form.noisy:
            return found
        return found.filled(self.form.positions)

    def sample(self, posterior: Posterior, source: Source) -> Sample:
        """One sample of every text; of a form without noise the means."""
        return sampled(posterior, source) if self.form.noisy else expected(posterior)

    def logits(self, sample: Sample) -> Tensor:
        """What the reader says of samples, [texts, outputs]."""
        said: Tensor = self.reader(sample)
        return said

    def kl(self, posterior: Posterior) -> tuple[Tensor, Tensor]:
        """KL_D and KL_G of every text, each [texts], in nats (`learning.bottleneck.losses`); 0 without noise."""
        if not self.form.noisy:
            nothing = torch.zeros(len(posterior), dtype=posterior.mean.dtype, device=posterior.mean.device)
            return nothing, nothing
        return kl_dirichlet(posterior, self.form.per_token), kl_gaussian(posterior)
