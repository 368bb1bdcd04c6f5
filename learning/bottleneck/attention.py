"""What reads a noisy sequence: denoising attention, a small feed-forward layer, and a head for one task.

Every head sees its own d coordinates of each vector z_j of the sample, with weight pi_j. For a query q,

    softmax_j( <q, z_j> / sqrt d + ln pi_j - |z_j|^2 / (2 sqrt d) ) z_j:

the mean of z given that q is z under Gaussian noise of variance sqrt d, where pi and z are what one believed before.
Queries are a linear map of the sample's own vectors, and no connection leads around the attention: whatever comes out
was a function of the sample, so that nothing unsampled passes.

Source: Henderson & Fehr 2023, section 3.2 (denoising attention); NVDP, section 3.1, figure 1.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from aggregation.errors import ConclaveError
from learning.bottleneck.posterior import Sample


class DenoisingAttention(nn.Module):
    """Multi-head attention over a sample.

    width: of its vectors, a multiple of `heads`; else `ConclaveError` is raised. plain: leave out weights and norms, as
    ordinary attention does: softmax(<q, z> / sqrt d) z.
    """

    def __init__(self, width: int, heads: int, *, plain: bool = False) -> None:
        super().__init__()
        if heads < 1 or width < heads or width % heads:
            raise ConclaveError(f"{heads} heads do not divide a width of {width}. Give a number that does.")
        self.heads, self.plain = heads, plain
        self.query = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, sample: Sample) -> Tensor:
        """One vector for every position, [texts, positions, width]; those of positions that are not there have no
        meaning. Everything is finite, also for a text without positions.
        """
        texts, positions, width = sample.vectors.shape
        size = width // self.heads
        z = sample.vectors.view(texts, positions, self.heads, size).transpose(1, 2)
        q = self.query(sample.vectors).view(texts, positions, self.heads, size).transpose(1, 2)
        scores = q @ z.transpose(2, 3) / math.sqrt(size)
        if not self.plain:
            prior = sample.log_weights[:, None, :] - z.square().sum(dim=3) / (2 * math.sqrt(size))
            scores = scores + prior.unsqueeze(2)
        # A finite floor: softmax over nothing is then even, of vectors that are 0.
        scores = scores.masked_fill(~sample.mask[:, None, None, :], -torch.finfo(scores.dtype).max / 4)
        mixed = torch.softmax(scores, dim=3) @ z
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(texts, positions, width))
        return out


class Reader(nn.Module):
    """From samples to what a task asks: attention, feed-forward, the mean over positions, a linear head.

    outputs: classes, or 1 of a regression. A pair of texts is one sequence, encoded together. plain: attention and mean
    without the sample's weights. dropout: of the attention's and the feed-forward layer's outputs. seed: of the initial
    parameters. Raises `ConclaveError` as `DenoisingAttention`, and for no output.
    """

    def __init__(
        self, width: int, outputs: int, *, heads: int, seed: int, plain: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if outputs < 1:
            raise ConclaveError(f"A head of {outputs} outputs says nothing. Give 1 or more.")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.attention = DenoisingAttention(width, heads, plain=plain)
            self.first = nn.LayerNorm(width)
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
            self.second = nn.LayerNorm(width)
            self.head = nn.Linear(width, outputs)
        self.dropout = nn.Dropout(dropout)

    def forward(self, sample: Sample) -> Tensor:
        """Logits [texts, outputs]. A text without positions gets those of a mean of 0."""
        h = self.first(self.dropout(self.attention(sample)))
        h = self.second(h + self.dropout(self.down(functional.gelu(self.up(h)))))
        if self.attention.plain:
            weights = sample.mask.to(h.dtype) / sample.mask.sum(dim=1, keepdim=True).clamp(min=1)
        else:
            weights = torch.exp(sample.log_weights).masked_fill(~sample.mask, 0.0)
        said: Tensor = self.head((h * weights.unsqueeze(2)).sum(dim=1))
        return said
