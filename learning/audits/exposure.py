"""Exposure of canaries: how far up a secret number stands among all numbers that it could have been.

Canaries are texts with a random number of so many digits after a common prompt. Under a model, every one of the 10^d
numbers has a likelihood; a canary's rank among them says whether the model saw it. Numbers share the work of their
common beginnings, so that ranks are exact: a model is asked once for every beginning, a ninth as often as there are
numbers.
Source: Carlini et al. 2019, "The Secret Sharer", definitions 3 to 5.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aggregation.errors import ConclaveError
from learning.language.speaker import Speaker
from learning.models.compute import device_of, passing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

DIGITS: Final = 10
MOST_DEPTH: Final = 8
WIDTH: Final = 1000
"""Nodes of the trie whose next digits are asked for together."""
_ROUNDS: Final = 2000

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean with its bootstrap interval at 95%."""

    mean: float
    low: float
    high: float


def digit_tokens(
    tokenizer: "PreTrainedTokenizerBase", prompt: str, separator: str = " "
) -> tuple[list[int], list[int]]:
    """The tokens of a prompt, and that of each digit after a separator.

    Raises `ConclaveError` for an empty prompt, and where a digit is not one token of its own, the same after the prompt
    and after any digit: then candidates would not share their beginnings.
    """
    opening = _encoded(tokenizer, prompt)
    if not opening:
        raise ConclaveError("A canary needs a prompt of one token or more before its number.")
    digits = []
    for digit in range(DIGITS):
        word = f"{separator}{digit}"
        alone = _encoded(tokenizer, word)
        after = [
            _encoded(tokenizer, f"{prompt}{separator}{other}{word}")[len(opening) + 1 :] for other in range(DIGITS)
        ]
        first = _encoded(tokenizer, prompt + word)
        if len(alone) != 1 or first != [*opening, *alone] or any(each != alone for each in after):
            raise ConclaveError(
                f"The tokenizer has no token of its own for the digit {digit} after {separator!r}, so canaries of "
                "numbers cannot be ranked. Separate the digits in another way, or use another model."
            )
        digits += alone
    if len(set(digits)) != DIGITS:
        raise ConclaveError("The tokenizer gives two digits one token, so numbers cannot be told apart.")
    return opening, digits


def likelihoods(
    speaker: Speaker,
    opening: Sequence[int],
    digits: Sequence[int],
    depth: int,
    *,
    width: int = WIDTH,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Floats:
    """The log-probability of every number of `depth` digits after an opening, float32 [10**depth], in order of the
    numbers.

    opening: tokens, one or more. digits: the token of each digit. width: nodes of the trie that are asked together.
    progress: is told how many numbers are done, of how many. Memory: the result, and for each depth the keys and values
    of `10 * width` beginnings at the most. Raises `ConclaveError` for a depth of none or above `MOST_DEPTH`.
    """
    if not 1 <= depth <= MOST_DEPTH or not opening or width < 1:
        raise ConclaveError(
            f"Numbers of {depth} digits after {len(opening)} tokens cannot be ranked; use 1 to {MOST_DEPTH} digits "
            "after a prompt."
        )
    trie = _Trie(speaker, digits, np.empty(DIGITS**depth, np.float32), width, progress)
    with torch.inference_mode(), passing(device_of(speaker.model)):
        kept, said = trie.next(torch.tensor([list(opening)]), None, 0)
        trie.fill(kept, said, depth, 0, len(opening))
    return trie.found


def ranks(logs: Floats, numbers: Sequence[int]) -> NDArray[np.float64]:
    """The rank of each number among all, 1 for the most likely, float64 [numbers]; numbers that are equally likely
    share the mean of their places.

    logs: as of `likelihoods`. Raises `ConclaveError` for a number that is not among them, and for numbers named twice.
    """
    own = np.asarray(numbers, np.int64)
    if len(own) and (own.min() < 0 or own.max() >= len(logs)):
        raise ConclaveError(f"A canary's number is from 0 to {len(logs) - 1:,}.")
    if len(np.unique(own)) != len(own):
        raise ConclaveError("Two canaries have one number under one prompt, so they are not two.")
    ordered = np.sort(logs)
    above = len(logs) - np.searchsorted(ordered, logs[own], side="right")
    equal = len(logs) - above - np.searchsorted(ordered, logs[own], side="left")
    return np.asarray(above + (equal + 1) / 2, np.float64)


def exposures(ranked: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """log2(size) - log2(rank) bits of each, float64 [canaries]. size: how many numbers there are.

    Where nothing leaked a rank is uniform, and exposure has a mean of 1 / ln 2, about 1.44 bits: 3.14 bits or more are
    met by chance in 11 of 100 canaries.
    """
    return np.asarray(math.log2(size) - np.log2(ranked))


def excess(seen: NDArray[np.float64], unseen: NDArray[np.float64], *, seed: int = 0) -> Interval:
    """By how many bits exposures [canaries] are above those of the same canaries under a model that never saw them.

    The interval is that of the mean of paired differences, by resampling canaries. Raises `ConclaveError` where they
    are not paired, or fewer than two.
    """
    if seen.shape != unseen.shape or len(seen) < 2:
        raise ConclaveError(f"{len(seen)} and {len(unseen)} exposures are no pairs of two canaries or more.")
    apart = seen - unseen
    rng = np.random.default_rng(seed)
    means = apart[rng.integers(0, len(apart), (_ROUNDS, len(apart)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(apart.mean()), float(low), float(high))


def uniform(ranked: NDArray[np.float64], size: int) -> float:
    """The p-value of ranks as small as these if nothing leaked: a one-sided Kolmogorov-Smirnov test against the uniform
    distribution of ranks among `size` numbers.
    """
    from scipy import stats

    return float(stats.kstest(ranked / size, "uniform", alternative="greater").pvalue)


@dataclass(frozen=True, slots=True)
class _Trie:
    """The numbers below the root of a trie, whose likelihoods are written to `found`."""

    speaker: Speaker
    digits: Sequence[int]
    found: Floats
    width: int
    progress: Callable[[int, int], None]

    def fill(self, kept: Any, said: Tensor, depth: int, first: int, length: int) -> None:
        """Write the likelihoods of all numbers below some nodes.

        kept: the nodes' keys and values. said: log-probabilities of their beginnings with each next digit, [nodes, 10].
        depth: digits that are still to come. first: the smallest of the numbers. length: tokens of a beginning.
        """
        below = said.reshape(-1)
        if depth == 1:
            self.found[first : first + len(below)] = below.numpy()
            self.progress(first + len(below), len(self.found))
            return
        each = DIGITS ** (depth - 1)
        for start in range(0, len(below), self.width):
            children = torch.arange(start, min(start + self.width, len(below)))
            ids = torch.tensor(self.digits)[children % DIGITS, None]
            parents = copy.deepcopy(kept)
            parents.batch_select_indices((children // DIGITS).to(device_of(self.speaker.model)))
            deeper, more = self.next(ids, parents, length)
            self.fill(deeper, more + below[children, None], depth - 1, first + start * each, length + 1)

    def next(self, ids: Tensor, kept: Any, length: int) -> tuple[Any, Tensor]:
        """Keys and values with some more tokens [nodes, tokens], and the log-probabilities of each digit after them,
        float32 [nodes, 10]. length: tokens before them.
        """
        device = device_of(self.speaker.model)
        count, more = ids.shape
        said = self.speaker.model(
            input_ids=ids.to(device),
            attention_mask=torch.ones(count, length + more, dtype=torch.int64, device=device),
            position_ids=torch.arange(length, length + more, device=device).expand(count, -1),
            past_key_values=kept,
            use_cache=True,
        )
        logs = self.speaker.log_probabilities(said.logits[:, -1].float())
        return said.past_key_values, logs[:, torch.tensor(self.digits)].cpu()


def _encoded(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    return [int(each) for each in tokenizer(text, add_special_tokens=False)["input_ids"]]
