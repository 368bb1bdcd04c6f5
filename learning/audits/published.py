"""Audits of what was published alone: synthetic texts through a model of them, and what a student says after a prompt.

Whoever has published texts and nothing else trains a small model on them and asks it for the canaries: one that left
its words in the texts is likelier under it than one that was never there.
Sources: Meeus et al. 2025, "The Canary's Echo" (the n-gram attack); Li et al., "Swing Distillation", figure 1
(the likeliest words after a prompt).
"""

import heapq
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from learning.language.speaker import Speaker
from learning.models.compute import device_of, passing

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ORDER: Final = 2
WORDS: Final = 100
"""As many words as figure 1 looks at."""
LONGEST: Final = 6
"""Tokens of a word, at most; a longer one is left out."""
_AT_ONCE: Final = 32
_MOST_PASSES: Final = 400
LEAST: Final = 1e-6
"""Words less probable than this are not looked for."""
_DISCOUNT: Final = 0.75
_SPACES: Final = frozenset(" \u0120\u010a\u2581\n\t")
"""How a token begins that begins a word: a space or a line break, or what tokenizers write for these."""

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True)
class NGrams:
    """A model of texts that counts sequences of up to `order` tokens, with interpolated absolute discounting.

    p(w | h) = max(c(hw) - D, 0)/c(h) + D n(h)/c(h) p(w | shorter h), D = 0.75, n(h) the number of different tokens
    after h, and 1/tokens below the shortest: every token has a probability above 0.

    tokens: how many there are. counts: of every sequence. after: of every history, tokens after it and how many
    different ones. Source: Ney, Essen & Kneser 1994.
    """

    order: int
    tokens: int
    counts: dict[tuple[int, ...], int]
    after: dict[tuple[int, ...], tuple[int, int]]

    @classmethod
    def trained(cls, texts: Sequence[Tokens], tokens: int, order: int = ORDER) -> "NGrams":
        """The model of texts of tokens 0 .. tokens - 1, and of nothing else.

        Raises `ConclaveError` for no text, an order below 1, or a token that there is not.
        """
        if order < 1 or not any(len(text) for text in texts):
            raise ConclaveError(f"{len(texts):,} texts make no model of {order} tokens. Give texts, and an order of 1.")
        if max(max(text, default=0) for text in texts) >= tokens or min(min(text, default=0) for text in texts) < 0:
            raise ConclaveError(f"A text has a token outside 0 to {tokens - 1:,}. Use the tokenizer of the texts.")
        counts: Counter[tuple[int, ...]] = Counter()
        for text in texts:
            own = tuple(text)
            for size in range(1, order + 1):
                counts.update(own[place : place + size] for place in range(len(own) - size + 1))
        after: dict[tuple[int, ...], tuple[int, int]] = {}
        for sequence, count in counts.items():
            total, different = after.get(sequence[:-1], (0, 0))
            after[sequence[:-1]] = total + count, different + 1
        return cls(order, tokens, dict(counts), after)

    def log_probability(self, text: Tokens, begins: int = 0) -> float:
        """The log-probability, nats, of a text's tokens from `begins` on, each after those before it."""
        own = tuple(text)
        return sum(
            math.log(self._of(own[max(0, place - self.order + 1) : place], own[place]))
            for place in range(begins, len(own))
        )

    def scores(self, texts: Sequence[Tokens], begins: Sequence[int] | None = None) -> NDArray[np.float64]:
        """The log-probability of every text, from its own `begins` on, float64 [texts]."""
        starts = [0] * len(texts) if begins is None else begins
        return np.array([self.log_probability(text, start) for text, start in zip(texts, starts, strict=True)])

    def _of(self, history: tuple[int, ...], token: int) -> float:
        shorter = self._of(history[1:], token) if history else 1 / self.tokens
        total, different = self.after.get(history, (0, 0))
        if not total:
            return shorter
        seen = self.counts.get((*history, token), 0)
        return (max(seen - _DISCOUNT, 0.0) + _DISCOUNT * different * shorter) / total


def echoes(
    published: Sequence[Tokens],
    canaries: Sequence[Tokens],
    tokens: int,
    *,
    public: Sequence[Tokens] = (),
    order: int = ORDER,
) -> NDArray[np.float64]:
    """Scores of canaries [canaries], higher where published texts seem to echo one: how much likelier it is under a
    model of them than under one of public texts of the same kind, where there are any.

    tokens: of the tokenizer. Nothing of the run but what was published takes part, so that a bound from these scores
    (`learning.audits.one_run`) is one for any reader of it. Raises as `NGrams.trained`.
    """
    own = NGrams.trained(published, tokens, order).scores(canaries)
    return own - NGrams.trained(public, tokens, order).scores(canaries) if public else own


@dataclass(frozen=True, slots=True)
class Word:
    """A word that a model may say next: its text, and its probability with what ends it."""

    text: str
    probability: float


def likeliest_words(
    speaker: Speaker, tokenizer: "PreTrainedTokenizerBase", prompt: str, count: int = WORDS
) -> list[Word]:
    """The most probable words after a prompt, most probable first: what an attacker of figure 1 reads off.

    A word is what stands between two spaces; its probability is that of its tokens and of a token after it that begins
    something new, added over the ways to spell it. Nothing is drawn: a beginning is left out where it alone is less
    probable than `count` whole words, or than `LEAST`; so are words of more than `LONGEST` tokens. After 12,800
    beginnings the search ends. Raises `ConclaveError` for a prompt without a token, and for a count below 1.
    """
    opening = [int(each) for each in tokenizer(prompt, add_special_tokens=False)["input_ids"]]
    if not opening or count < 1:
        raise ConclaveError(f"{count} words after {len(opening)} tokens cannot be found. Give a prompt, and 100.")
    search = _Search(speaker, tokenizer, opening, count)
    for _ in range(_MOST_PASSES):
        if not search.step():
            break
    best = sorted(search.words.items(), key=lambda each: (-each[1], each[0]))[:count]
    return [Word(text, probability) for text, probability in best]


def named(words: Sequence[Word], names: Sequence[str]) -> list[Word]:
    """Which of the words are among these names, whatever their case and the marks around them, in the same order."""
    wanted = {_bare(name) for name in names}
    return [word for word in words if _bare(word.text) in wanted]


def _bare(word: str) -> str:
    return word.strip(" .,;:!?\"'()[]").casefold()


class _Search:
    """Beginnings of words after an opening, the most probable first, and the words that were found whole."""

    def __init__(
        self, speaker: Speaker, tokenizer: "PreTrainedTokenizerBase", opening: Sequence[int], count: int
    ) -> None:
        self._speaker, self._tokenizer, self._opening, self._count = speaker, tokenizer, list(opening), count
        self._open: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        self.words: dict[str, float] = {}
        raw = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
        special = set(tokenizer.all_special_ids)
        self._special = np.array([token in special for token in range(len(raw))])
        spaced = np.array([str(each)[:1] in _SPACES for each in raw])
        self._ends = spaced | self._special
        self._starts = spaced & ~self._special if spaced.any() else ~self._special

    def step(self) -> bool:
        """Look at the most probable beginnings; False where none can be more probable than the words that there are."""
        floor = self._floor()
        taken: list[tuple[float, tuple[int, ...]]] = []
        while self._open and len(taken) < _AT_ONCE and -self._open[0][0] > floor:
            taken.append(heapq.heappop(self._open))
        by_length: dict[int, list[tuple[float, tuple[int, ...]]]] = {}
        for each in taken:
            by_length.setdefault(len(each[1]), []).append(each)
        for some in by_length.values():
            for (log, tokens), logs in zip(some, self._next([tokens for _, tokens in some]), strict=True):
                self._grow(-log, tokens, logs)
        return bool(taken)

    def _floor(self) -> float:
        """The log-probability of the last of the best words so far."""
        if len(self.words) < self._count:
            return math.log(LEAST)
        return math.log(heapq.nlargest(self._count, self.words.values())[-1])

    def _grow(self, log: float, tokens: tuple[int, ...], logs: NDArray[np.float64]) -> None:
        ends = self._ends[: len(logs)]
        if tokens:
            text = str(self._tokenizer.decode(list(tokens))).strip()
            ending = float(np.exp(log + logs)[: len(ends)][ends].sum())
            if text and ending > 0:
                self.words[text] = self.words.get(text, 0.0) + ending
        if len(tokens) == LONGEST:
            return
        may = np.flatnonzero(~ends if tokens else self._starts[: len(logs)])
        floor = self._floor()
        for token in may[log + logs[may] > floor].tolist():
            heapq.heappush(self._open, (-(log + float(logs[token])), (*tokens, token)))

    def _next(self, rows: Sequence[tuple[int, ...]]) -> NDArray[np.float64]:
        """Log-probabilities of the next token, [rows, tokens], of beginnings of one length."""
        device = device_of(self._speaker.model)
        ids = torch.tensor([[*self._opening, *each] for each in rows], device=device)
        with torch.inference_mode(), passing(device):
            logs = self._speaker.log_probabilities(self._speaker.model(input_ids=ids).logits[:, -1].float())
        return np.asarray(logs.cpu().double().numpy())
