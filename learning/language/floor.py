"""A distribution of tokens from noisy counts, and how far a public model has to be tilted towards it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray

from learning.models.compute import device_of, passing

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Floats = NDArray[np.float64]

LEAST: Final = 0.01
"""The least part of its public probability that a token keeps, whatever its count: no token becomes impossible."""
TINY: Final = 1e-9
STANDS: Final = 2.0
"""How many standard deviations of the noise a count has to be from what is expected, to keep more than its size says: 1
is the rule of James and Stein, which keeps much noise where most tokens have none; 2 was better at all noise tried.
"""
CLEAR: Final = 3.0
"""A count stands out by itself where it is so many standard deviations of the noise from what is expected."""
_ROUNDS: Final = 3
_TEXTS: Final = 256


def unigram(counts: Floats, sigma: float, marginal: Floats) -> Floats:
    """The distribution of tokens, float64 [tokens], from noisy counts [tokens] whose noise has this standard deviation.

    marginal: the public model's own, [tokens]. Every count is drawn towards what the marginal leads one to expect, the
    more the less it stands out of the noise: the positive-part James-Stein rule with a wider band, token by token,
    where an expected count may be off by as much as itself. Post-processing of the counts.
    Source: James & Stein 1961, "Estimation with quadratic loss"; the public target is ours.
    """
    total = max(float(counts.sum()), 1.0)
    expected, rest = total * marginal, np.ones(len(counts), bool)
    for _ in range(_ROUNDS):  # what stands out by itself says nothing of how much is left for the others
        rest &= np.abs(counts - expected) <= CLEAR * sigma
        left = max(0.0, float(counts[rest].sum()))
        expected[rest] = left * marginal[rest] / max(float(marginal[rest].sum()), TINY)
    apart = counts - expected
    with np.errstate(divide="ignore", invalid="ignore"):
        by_itself = 1 - np.divide((STANDS * sigma) ** 2, apart**2, out=np.full_like(apart, np.inf), where=apart != 0)
        by_size = expected**2 / (expected**2 + sigma**2) if sigma else np.ones_like(apart)
    kept = expected + np.clip(np.maximum(by_itself, by_size), 0.0, 1.0) * apart
    found = np.maximum(kept, LEAST * total * marginal) / total + TINY
    return np.asarray(found / found.sum())


def tilt(floor: Floats, marginal: Floats, part: float) -> Floats:
    """What is added to a public model's logits, float64 [tokens]: `part` of the way from its marginal to the floor, in
    log-probabilities.
    """
    near = (marginal + TINY) / (marginal + TINY).sum()
    return np.asarray(part * (np.log(floor) - np.log(near)))


def own_marginal(
    model: "PreTrainedModel",
    opening: Sequence[int],
    *,
    longest: int,
    seed: int,
    told: Callable[[int, int], None] = lambda done, total: None,
) -> Floats:
    """The mean distribution of a model over 256 texts that it writes itself from an opening, float64 [tokens].

    longest: tokens of a text. The same on the same machine for the same seed. Memory: the texts' keys and values.
    """
    device = device_of(model)
    chance = torch.Generator().manual_seed(seed)
    ids = torch.tensor([list(opening) or [0]] * _TEXTS)
    total: torch.Tensor | None = None
    kept = None
    places = torch.arange(ids.shape[1]).expand(_TEXTS, -1)
    with torch.inference_mode(), passing(device):
        for step in range(longest - ids.shape[1]):
            said = model(
                input_ids=ids.to(device),
                attention_mask=torch.ones(_TEXTS, int(places[0, -1]) + 1, dtype=torch.int64, device=device),
                position_ids=places.to(device),
                past_key_values=kept,
                use_cache=True,
            )
            kept = said.past_key_values
            chances = torch.softmax(said.logits[:, -1].float(), dim=-1).cpu()
            total = chances.double().sum(0) if total is None else total + chances.double().sum(0)
            ids = torch.multinomial(chances, 1, generator=chance)
            places = places[:, -1:] + 1
            told(step + 1, longest - len(opening))
    assert total is not None
    found = total.numpy()
    return np.asarray(found / found.sum())
