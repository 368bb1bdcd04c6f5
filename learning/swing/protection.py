"""What is done to a teacher's soft targets before they leave: nothing, noise on the likeliest, or noise on all.

What gets noise is a whole number of 2^-30; the noise is discrete Laplace on that grid, from a `NoiseStream`. Afterwards
what is below 0 becomes 0, and what is left is divided by its sum: post-processing. (The paper leaves probabilities
below 0 and above 1 as they are; equation 10 would then weigh a token by its noise, and ask for the opposite of what the
teacher says.)
"""

import math
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggregation.errors import ConclaveError, IntegrityError
from aggregation.noise.discrete_laplace import DiscreteLaplace
from aggregation.noise.shares import delta_of
from aggregation.noise.stream import NoiseStream

GRID: Final = 1 << 30
"""Steps in a probability of 1."""
MOST_TOKENS: Final = 1 << 22
"""The most tokens of a vocabulary: putting a distribution on the grid moves less than one step a token."""
L1: Final = 2
"""The most that a token's probabilities change in L1 norm when the teacher does: from one distribution to another."""


@dataclass(frozen=True, slots=True)
class Protection:
    """Which soft targets get noise, and how much.

    kind: "none", plain distillation: nothing is promised. "top": Laplace noise on the `noised` likeliest probabilities
    of each token, the others unchanged, as in the paper (section 3.3, equation 8; its scale is 1 / epsilon, its
    `noised` 3). It is a HEURISTIC, whatever the scale: the other probabilities leave as they are, and which ones are
    noised depends on the teacher. "all": Laplace noise on every probability, so that each token's distribution is
    (2 / scale)-differentially private; see `epsilon`.

    scale: of the noise, in units of probability; not for "none".

    Raises `ConclaveError` for an unknown kind, or a number out of range.
    """

    kind: Literal["none", "top", "all"] = "none"
    scale: float = 1.0
    noised: int = 3

    def __post_init__(self) -> None:
        if self.kind not in ("none", "top", "all"):
            raise ConclaveError(f'{self.kind!r} protects no soft targets; use "none", "top" or "all".')
        if self.kind != "none":
            if not (math.isfinite(self.scale) and 1e-6 <= self.scale <= 1e5):
                raise ConclaveError(
                    f"Noise of scale {self.scale:g} on probabilities makes no sense. Give a scale from 1e-6 to 100,000."
                )
            _ = self.noise
        if self.noised < 1:
            raise ConclaveError(f"Noise on {self.noised} probabilities makes no sense. Give 1 or more.")

    @property
    def noise(self) -> DiscreteLaplace:
        """Of each noised probability, in steps of the grid; the product is exact."""
        return DiscreteLaplace(self.scale * GRID)

    def epsilon(self, tokens: int) -> float | None:
        """What the release of this many tokens' soft targets costs: tokens * 2 / scale, in pure epsilon; None, not 0,
        for a heuristic and for none.

        The relation is add-or-remove of one unit, which changes the teacher arbitrarily: each of its distributions
        becomes another, at an L1 distance of at most 2, exact on the grid. Tokens compose by addition, for one teacher
        says all of them. It holds only if texts, temperatures and the number of tokens are public (clue words of public
        texts are), the stream is secure, and each token is noised once and what was noised is reused.
        """
        return tokens * L1 / self.scale if self.kind == "all" else None

    def slack(self, tokens: int, vocabulary: int) -> float:
        """Delta to add to `epsilon` of that many tokens, for the sampler's distance from its law; 0 without a claim."""
        promised = self.epsilon(tokens)
        return 0.0 if promised is None else delta_of(tokens * vocabulary * self.noise.total_variation, promised)


@dataclass(frozen=True, slots=True)
class Protector:
    """Protects the soft targets of one text at a time; given to `learning.language.soft_targets.graded`.

    stream: of this party alone. Each text draws from a child of its own, named by its label: the same label gives the
    same noise, so no two releases may share one.
    """

    protection: Protection
    stream: NoiseStream

    def __call__(self, said: Tensor, label: str) -> Tensor:
        """Of log-probabilities [length, tokens] of one text the protected ones, likewise; -inf for a 0."""
        return protected(said, self.protection, self.stream.child("soft targets", label))


def protected(said: Tensor, protection: Protection, stream: NoiseStream) -> Tensor:
    """Log-probabilities [places, tokens] under a protection, float32; -inf for a 0.

    stream: one that draws nothing else. Raises `ConclaveError` where more probabilities are to be noised than there
    are, `IntegrityError` for NaN under "all". Sensitivity and neighbouring relation: see `Protection`.
    """
    if protection.kind == "none":
        return said
    if protection.kind == "top" and protection.noised > said.shape[1]:
        raise ConclaveError(
            f"Noise on the {protection.noised:,} likeliest of {said.shape[1]:,} tokens makes no sense. Give fewer."
        )
    chances = said.double().exp().cpu().numpy()
    if protection.kind == "all":
        steps = on_grid(chances)
        left = np.maximum(steps + protection.noise.sample(steps.shape, stream), 0).astype(np.float64)
    else:
        best = np.argpartition(-chances, protection.noised - 1, axis=1)[:, : protection.noised]
        steps = np.rint(np.take_along_axis(chances, best, axis=1) * GRID).astype(np.int64)
        noised = np.maximum(steps + protection.noise.sample(best.shape, stream), 0)
        left = chances.copy()
        np.put_along_axis(left, best, noised / GRID, axis=1)
    left[left.sum(axis=1) == 0] = 1  # everything drowned: all tokens alike
    left /= left.sum(axis=1, keepdims=True)
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(left).astype(np.float32))


def on_grid(chances: NDArray[np.float64]) -> NDArray[np.int64]:
    """Distributions [places, tokens] as whole numbers from 0 that add up to `GRID` in every row, exactly.

    Each is rounded down, and the likeliest token gets what is missing, less than a step a token. So two rows differ by
    at most 2 * `GRID` in L1 norm, whatever they were: the sensitivity does not rest on how they were computed. Raises
    `IntegrityError` for NaN, for what is below 0, and for what does not nearly add up to 1.
    """
    if chances.ndim != 2 or not 0 < chances.shape[1] <= MOST_TOKENS:
        raise IntegrityError(f"Soft targets must be [places, tokens]; these are {chances.shape}.")
    sums = chances.sum(axis=1, keepdims=True)
    if not ((np.abs(sums - 1) < 1e-2).all() and (chances >= 0).all()):  # NaN fails, too
        raise IntegrityError("Soft targets must be probabilities that add up to 1.")
    steps: NDArray[np.int64] = np.floor(chances / sums * GRID).astype(np.int64)
    most = steps.argmax(axis=1)
    rows = np.arange(len(steps))
    steps[rows, most] += GRID - steps.sum(axis=1)
    if (steps < 0).any() or (steps.sum(axis=1) != GRID).any():
        raise IntegrityError("Soft targets could not be put on their grid.")
    return steps
