"""Canaries for language models: texts that a model can only say because it was trained on them.

A canary is a prefix that is like the training text, and a suffix that nothing suggests: a token that occurs nowhere
else, or tokens that the model finds unlikely. Its score is the log-probability of the suffix after the prefix; numbers
are in `learning.audits.exposure`.
Sources: new tokens, Panda, Tang, Nasr, Choquette-Choo & Mittal 2025, "Privacy Auditing of Large Language Models";
unlikely suffixes after natural prefixes, Meeus, Wutschitz, Zanella-Beguelin, Tople & Shokri 2025, "The
Canary's Echo: Auditing Privacy Risks of LLM-Generated Synthetic Text".
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from learning.audits.one_run import canaries_for
from learning.language.speaker import Speaker
from learning.models.compute import device_of, passing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

AT_ONCE: Final = 64
"""Canaries that go through a model together."""
_STEPS: Final = 40
_HOTTEST: Final = 1e4


@dataclass(frozen=True, slots=True)
class Canary:
    """Tokens of a prefix and of a suffix. Raises `ConclaveError` where either is empty."""

    prefix: tuple[int, ...]
    suffix: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.prefix or not self.suffix:
            raise ConclaveError("A canary needs a prefix and a suffix of one token or more each.")

    @property
    def tokens(self) -> tuple[int, ...]:
        """The whole text that is put into the training, or left out."""
        return self.prefix + self.suffix


def prefixes(tokenizer: "PreTrainedTokenizerBase", texts: Sequence[str], length: int) -> list[tuple[int, ...]]:
    """The first `length` tokens of every text, for canaries; texts should be like those of the training.

    Raises `ConclaveError` for a text that is shorter, and where two texts begin alike.
    """
    if length < 1:
        raise ConclaveError(f"A prefix of {length} tokens is none. Use 1 or more.")
    found = [tuple(_ids(tokenizer, text)[:length]) for text in texts]
    short = sum(len(each) < length for each in found)
    if short:
        raise ConclaveError(
            f"{short:,} of {len(texts):,} texts have fewer than {length} tokens. Use longer texts or a shorter prefix."
        )
    apart(found)
    return found


def new_tokens(begins: Sequence[Sequence[int]], first: int) -> list[Canary]:
    """Canaries whose suffix is one token each that no text has: `first`, `first` + 1, and so on.

    begins: prefixes, all different. first: the number of tokens that the model had; it needs as many more as there are
    canaries (`resize_token_embeddings`). Raises as `apart`, and for a first below 1.
    """
    if first < 1:
        raise ConclaveError(f"New tokens from {first} on are none. Give the number of tokens that the model had.")
    apart(begins)
    return [Canary(tuple(each), (first + place,)) for place, each in enumerate(begins)]


def unlikely(
    speaker: Speaker, begins: Sequence[Sequence[int]], length: int, perplexity: float, rng: np.random.Generator
) -> list[Canary]:
    """Canaries with a suffix of `length` tokens of about this perplexity each, drawn from the model after each prefix.

    Every token is drawn at the temperature at which a draw's expected surprise is ln(perplexity), or as near to that as
    the model's tokens allow: a natural suffix at the model's own perplexity, a random one at the highest. speaker: the
    public model, never one that saw private text. begins: prefixes, all different and of one length. Raises as `apart`,
    and for a perplexity of no more than 1, a length of none, or prefixes of different lengths.
    """
    if not (perplexity > 1 and math.isfinite(perplexity)) or length < 1:
        raise ConclaveError(f"A suffix of {length} tokens at perplexity {perplexity:g} cannot be drawn.")
    apart(begins)
    if len({len(each) for each in begins}) != 1:
        raise ConclaveError("Prefixes of canaries must have one number of tokens.")
    made: list[Canary] = []
    for start in range(0, len(begins), AT_ONCE):
        some = np.array([list(each) for each in begins[start : start + AT_ONCE]])
        tokens = some
        for _ in range(length):
            drawn = _drawn(_next(speaker, tokens), math.log(perplexity), rng)
            tokens = np.hstack([tokens, drawn[:, None]])
        made += [Canary(tuple(row[: some.shape[1]]), tuple(row[some.shape[1] :])) for row in tokens.tolist()]
    return made


def scores(speaker: Speaker, canaries: Sequence[Canary]) -> NDArray[np.float64]:
    """The log-probability of every canary's suffix after its prefix, nats, float64 [canaries].

    For an audit of membership take the difference to a model that saw none of them, where there is one.
    """
    found = np.zeros(len(canaries))
    kinds: dict[tuple[int, int], list[int]] = {}
    for place, each in enumerate(canaries):
        kinds.setdefault((len(each.prefix), len(each.suffix)), []).append(place)
    for (begins, _), places in kinds.items():
        for start in range(0, len(places), AT_ONCE):
            some = places[start : start + AT_ONCE]
            ids = torch.tensor([canaries[place].tokens for place in some])
            with torch.inference_mode(), passing(device_of(speaker.model)):
                logits = speaker.model(input_ids=ids.to(device_of(speaker.model))).logits
                logs = speaker.log_probabilities(logits[:, begins - 1 : -1].float()).cpu()
            found[some] = logs.gather(2, ids[:, begins:, None])[..., 0].sum(dim=1).double().numpy()
    return found


def apart(begins: Sequence[Sequence[int]]) -> None:
    """Raises `ConclaveError` for no prefix, and where two are the same: what follows one would then compete with what
    follows the other, and their coins would not be independent.
    """
    if not begins:
        raise ConclaveError("There are no prefixes, so there are no canaries. Give texts like those of the training.")
    shared = len(begins) - len({tuple(each) for each in begins})
    if shared:
        raise ConclaveError(
            f"{shared:,} of {len(begins):,} canaries share their prefix with another, so one's suffix pushes out "
            "another's. Use longer prefixes, or other texts."
        )


def enough(canaries: int, epsilon: float, *, delta: float, confidence: float) -> None:
    """Raises `ConclaveError` where so many canaries could not refute a claim though every guess were right; it says how
    many it takes (`learning.audits.one_run.canaries_for`).
    """
    least = canaries_for(epsilon, delta=delta, confidence=confidence)
    if canaries < least:
        raise ConclaveError(
            f"{canaries:,} canaries cannot refute epsilon {epsilon:g} at delta {delta:g} and confidence "
            f"{confidence:g}, whatever is guessed. It takes {least:,} or more; several times as many show something."
        )


def _next(speaker: Speaker, tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """Log-probabilities of the next token, [rows, tokens]."""
    with torch.inference_mode(), passing(device_of(speaker.model)):
        ids = torch.from_numpy(tokens).to(device_of(speaker.model))
        logs = speaker.log_probabilities(speaker.model(input_ids=ids).logits[:, -1].float())
    return np.asarray(logs.cpu().double().numpy())


def _drawn(logs: NDArray[np.float64], surprise: float, rng: np.random.Generator) -> NDArray[np.int64]:
    """A token for each row of log-probabilities [rows, tokens], at the temperature that has this surprise."""
    low, high = np.full(len(logs), 1e-2), np.full(len(logs), _HOTTEST)
    for _ in range(_STEPS):  # the expected surprise rises with the temperature
        middle = np.sqrt(low * high)
        below = -(_tempered(logs, middle) * logs).sum(axis=1) < surprise
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    said = _tempered(logs, high).cumsum(axis=1)
    return np.asarray((said < rng.random(len(logs))[:, None] * said[:, -1:]).sum(axis=1))


def _tempered(logs: NDArray[np.float64], temperatures: NDArray[np.float64]) -> NDArray[np.float64]:
    scaled = logs / temperatures[:, None]
    weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _ids(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    return [int(each) for each in tokenizer(text, add_special_tokens=False)["input_ids"]]
