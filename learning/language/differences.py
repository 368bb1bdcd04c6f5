"""How far what a model says of tokens is from what a public model says, over outcomes that are public.

Of each token the public model's most probable outcomes are named, and all others are one outcome more. A difference is
a vector of one number for each: the model's probability less the public model's, as that is kept on its grid.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learning.language.generation import Texts
from learning.language.soft_targets import SMALLEST, STEP
from learning.language.speaker import Speaker, own
from learning.models.batching import Tokens, batches, inputs_of
from learning.models.compute import device_of, moved, passing

_TOKENS = 4096
_RARE = 3.0
"""Standard deviations of what happens by chance once in 700 times. Of a variance these are the normal deviate of its
chi-square (Wilson & Hilferty 1931).
"""


@dataclass(frozen=True, slots=True)
class Outcomes:
    """What the public model says of every token of some texts: its most probable outcomes, and their codes as of
    `learning.language.soft_targets`.

    ids: whole numbers [tokens, top], different in every row. codes: uint16 [tokens, top].
    """

    ids: NDArray[Any]
    codes: NDArray[np.uint16]

    @property
    def shape(self) -> tuple[int, int]:
        """Tokens, and numbers of one difference."""
        return self.ids.shape[0], self.ids.shape[1] + 1

    def chances(self, part: slice | NDArray[np.int64]) -> NDArray[np.float32]:
        """The public model's probabilities of some tokens' outcomes, that of all others last, float32 [tokens, top +
        1]; the last one is what is left of 1, and slightly below 0 where rounding took more than all.
        """
        named = np.exp(self.codes[part].astype(np.float32) * -STEP)
        return np.hstack([named, 1 - named.sum(axis=1, keepdims=True)])


def differences(
    speaker: Speaker, texts: Texts, openings: Sequence[Sequence[int]], outcomes: Outcomes
) -> NDArray[np.float32]:
    """A model's probabilities less the public model's, float32 [tokens, top + 1], unbounded: text after text.

    openings: what stands before each text, one token or more. The L2 norm of a difference of two distributions is at
    most sqrt(2). Memory: the result, and of one batch the distributions of 4,096 tokens. Source: the private signal of
    knowledge distillation (Hinton et al. 2015), centred on what is public.
    """
    found = np.empty(outcomes.shape, np.float32)
    rows = [
        Tokens(np.concatenate([np.asarray(before, np.int32), ids]), len(before))
        for before, ids in zip(openings, texts, strict=True)
    ]
    speaker.model.eval()  # type: ignore[no-untyped-call]
    for places in batches(rows, _TOKENS):
        some = [rows[int(place)] for place in places]
        with torch.inference_mode(), passing(device_of(speaker.model)):
            logits = speaker.model(**moved(inputs_of(speaker.model.config, some), speaker.model)).logits[:, :-1].float()
            said = speaker.log_probabilities(logits[own(some, logits.shape[1] + 1).to(logits.device)]).cpu()
        parts = [np.arange(texts.stops[place], texts.stops[place + 1]) for place in places]
        where = np.concatenate(parts)
        named = said.gather(1, torch.from_numpy(outcomes.ids[where].astype(np.int64))).exp().numpy()
        found[where] = np.hstack([named, 1 - named.sum(axis=1, keepdims=True)]) - outcomes.chances(where)
    return found


def denoised(
    means: NDArray[np.float64], sigma: float, outcomes: Outcomes, *, least: float = 0.1
) -> NDArray[np.float64]:
    """The teachers' mean probabilities of every token's outcomes, all others last, float64 [tokens, top + 1]: the
    public model's, moved by as much of the noisy differences as stands out of their noise. Post-processing.

    means: the noisy mean difference over teachers, [tokens, top + 1]. sigma: standard deviation of the noise on each of
    its numbers. least: the share of the public model's probability that an outcome keeps under noise, for a number that
    noise took below 0 says only that it is small. Of every outcome, by its place among the public model's, the mean
    over tokens and what differs from it are drawn towards 0 by the part of their variance that the noise explains, and
    wholly where the noise alone reaches that variance by chance (`_RARE`). Then each row is made a distribution.
    Source: empirical Bayes, Efron & Morris 1973.
    """
    public, tokens = outcomes.chances(slice(None)).astype(np.float64), max(1, len(means))
    middle = means.mean(axis=0)
    apart = means - middle
    kept = _standing(middle**2, sigma**2 / tokens, 1) * middle
    found = public + kept + _standing((apart**2).mean(axis=0), sigma**2, tokens) * apart
    found = np.maximum(found, np.maximum(least * public if sigma > 0 else 0.0, SMALLEST))
    return np.asarray(found / found.sum(axis=1, keepdims=True))


def _standing(variance: NDArray[np.float64], noise: float, count: int) -> NDArray[np.float64]:
    """The part of variances, each of so many numbers, that noise of this variance does not explain, from 0 to 1; 0
    where it may be chance.
    """
    reached = noise * (1 - 2 / (9 * count) + _RARE * math.sqrt(2 / (9 * count))) ** 3
    part = 1 - noise / np.maximum(variance, max(noise, np.finfo(float).tiny))
    return np.where(variance > reached, part, 0.0)
