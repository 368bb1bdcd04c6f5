"""The certified form of swing: what teachers say, as differences from a public model, summed under Gaussian noise.

Of each query token the public model's own likeliest tokens are the cells, and one more cell is all other tokens: a
public index set, which says nothing of a teacher. A teacher's matrix is its distribution over the cells of every token
minus the public model's, clipped to an L2 norm over all tokens together, on an integer grid; matrices are summed over
all teachers of all parties, under noise in shares: `DifferencesMechanism`, whose sensitivity is 2 * clip under
add-or-remove of one unit. A difference is small where private texts teach nothing new, so that little is clipped.

At one token two distributions p and p' differ by |p - p'|^2 = |p|^2 + |p'|^2 - 2 p.p' <= 2, so two matrices of T tokens
by sqrt(2 T) at most. A clip above sqrt(T / 2), for which 2 * clip is too much, is refused.

It holds only if texts, cells, temperatures and clue words are public; every teacher learned from its own units and
public values alone; and what `DifferencesMechanism` asks of the noise.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.vectors import DifferencesMechanism
from aggregation.noise.shares import GAUSSIAN

LARGEST_CLIP: Final = math.sqrt(0.5)
"""Half of the distance of two certainties: with a larger clip a token the sensitivity would be that distance."""
LEVELS: Final = 1 << 16
"""Grid steps in the clip by default: rounding is then far below any noise."""


@dataclass(frozen=True, slots=True)
class Cells:
    """The public index set of some query tokens, and the public model's probabilities there.

    ids: int64 [tokens, top], all different in a row. public: float64 [tokens, top + 1], the last of all other tokens;
    each row adds up to 1. Raises `IntegrityError` where they are not so.
    """

    ids: NDArray[np.int64]
    public: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.ids.ndim != 2 or self.public.shape != (len(self.ids), self.ids.shape[1] + 1):
            raise IntegrityError(
                f"Cells of {self.ids.shape} tokens and {self.public.shape} probabilities do not match."
            )
        ordered = np.sort(self.ids, axis=1)
        if (ordered[:, 1:] == ordered[:, :-1]).any() or (self.ids < 0).any():
            raise IntegrityError("A token is named twice among the cells of one place, or is none.")
        if not ((self.public >= 0).all() and (np.abs(self.public.sum(axis=1) - 1) < 1e-6).all()):
            raise IntegrityError("The public model's probabilities of the cells do not add up to 1.")

    @property
    def top(self) -> int:
        """Cells of single tokens."""
        return int(self.ids.shape[1])


def cells_of(said: Tensor, top: int) -> Cells:
    """The cells of some places, of the public model's log-probabilities [places, tokens]: its `top` likeliest tokens.

    Raises `ConclaveError` unless at least one token is left over.
    """
    if not 1 <= top < said.shape[1]:
        raise ConclaveError(f"{top:,} cells of {said.shape[1]:,} tokens make no sense. Give fewer, at least 1.")
    ids = said.topk(top, dim=-1).indices.cpu().numpy().astype(np.int64)
    return Cells(ids, _over(said, ids))


def differences(said: Tensor, cells: Cells) -> NDArray[np.float64]:
    """A teacher's distribution over the cells minus the public model's, [places, top + 1], not clipped.

    said: its log-probabilities [places, tokens], under the temperatures under which the public model said the cells.
    A place at which it says what is no number counts as one at which it says what the public model does. Raises
    `IntegrityError` for other places, or a model of fewer tokens.
    """
    if len(said) != len(cells.ids) or cells.ids.max(initial=0) >= said.shape[1]:
        raise IntegrityError(f"What a teacher says of {tuple(said.shape)} places and tokens does not fit the cells.")
    found = _over(said, cells.ids) - cells.public
    # An error would tell of the teacher; a difference of 0 is one of the answers that any teacher may give.
    result: NDArray[np.float64] = np.where(np.isfinite(found).all(axis=1, keepdims=True), found, 0.0)
    return result


def mechanism(
    tokens: int,
    top: int,
    *,
    clip: float,
    noise_multiplier: float,
    shares: int,
    levels: int = LEVELS,
    distribution: str = GAUSSIAN,
) -> DifferencesMechanism:
    """The mechanism of the sum of `top` + 1 numbers of each of so many tokens.

    clip: C, the root of the mean over tokens of a teacher's squared norms, in units of probability: its matrix is
    clipped to C sqrt(tokens). noise_multiplier: of the sum's noise over the sensitivity of all tokens together.
    shares, levels, distribution: as of `DifferencesMechanism`. Raises `ConclaveError` for a clip above `LARGEST_CLIP`,
    and as `DifferencesMechanism` does.
    """
    if clip > LARGEST_CLIP:
        raise ConclaveError(
            f"A clip of {clip:g} is more than half the distance of any two distributions: its noise would hide what "
            f"cannot happen. Give at most {math.floor(LARGEST_CLIP * 1e4) / 1e4:g}."
        )
    whole = clip * math.sqrt(tokens)
    return DifferencesMechanism(whole, levels, noise_multiplier, shares, distribution, tokens, top + 1)


def _over(said: Tensor, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Probabilities of the cells, those of all other tokens last, [places, top + 1]; each row adds up to 1."""
    named = said.gather(1, torch.from_numpy(ids).to(said.device)).double().exp().cpu().numpy()
    named[said.sum(dim=1).isnan().cpu().numpy()] = np.nan
    rest = np.maximum(1 - named.sum(axis=1, keepdims=True), 0)
    found: NDArray[np.float64] = np.concatenate([named, rest], axis=1)
    found /= found.sum(axis=1, keepdims=True)
    return found
