"""Pairs of an input and an answer, as tokens of a language model that is told the one and says the other.

A causal model reads both in one: the tokenizer's beginning, the input, a public separator, the answer, the end token. A
model with an encoder and a decoder reads the input by its encoder, with the tokens that its tokenizer puts around a
text, and says the answer and the end token by its decoder.

The answer has room of its own, whatever its length: an input is cut at the same place before every answer, so that
where it ends tells nothing of what is to be said.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from learning.models.batching import CHARACTERS, Encoded, Tokens, encode, encoded, opening
from learning.models.checkpoints import ModelError

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

LEAST_INPUT = 8
"""Tokens that an answer and a separator leave to an input, at least."""


@dataclass(frozen=True, slots=True)
class PairForm:
    """How pairs are read.

    separator: what stands between input and answer, for a causal model. longest: tokens of a pair, all that stands
    around it included. answer: tokens of an answer among these, its end included. apart: whether an encoder of its own
    reads the input.
    """

    separator: str
    longest: int
    answer: int
    apart: bool

    def of(self, config: "PretrainedConfig") -> "PairForm":
        """The same form for a model of this configuration, causal or with an encoder and a decoder."""
        return PairForm(self.separator, self.longest, self.answer, bool(getattr(config, "is_encoder_decoder", False)))


def check_room(tokenizer: "PreTrainedTokenizerBase", form: PairForm) -> None:
    """Raise `ModelError` for a separator that is no token, and where an input has fewer than `LEAST_INPUT` tokens."""
    before, after = _around(tokenizer, form)
    if not (form.apart or after):
        raise ModelError(
            f"The separator {form.separator[:40]!r} is no token of this model, so that an answer would follow its "
            "input like more of it. Use another separator."
        )
    room = form.longest - form.answer - len(before) - len(after)
    if room < LEAST_INPUT:
        raise ModelError(
            f"Pairs of {form.longest:,} tokens leave {max(0, room):,} for an input beside {form.answer:,} of its "
            f"answer and {len(before) + len(after):,} around it, and {LEAST_INPUT} are to be left. Use longer pairs, "
            "or shorter answers."
        )


def encode_inputs(tokenizer: "PreTrainedTokenizerBase", inputs: Sequence[str], form: PairForm) -> Encoded:
    """What stands before an answer, for public inputs: rows of one token or more, all of them opening.

    An input that is longer than its room loses its rest and is counted as truncated. Raises as `check_room`.
    """
    return encoded(lambda start, stop: _openings(tokenizer, inputs[start:stop], form), len(inputs), None)


def encode_pairs(
    tokenizer: "PreTrainedTokenizerBase",
    inputs: Sequence[str],
    answers: Sequence[str],
    form: PairForm,
    *,
    known: int | None = None,
) -> Encoded:
    """Tokenise pairs: `Tokens.second` is where an answer begins, which has a token or more, its end token the last.

    A pair of which anything was cut is counted as truncated; an answer longer than its room loses its rest, its end
    token included. known: for private text, as of `learning.models.batching.encode`. Raises as `check_room`.
    """
    check_room(tokenizer, form)
    limit = CHARACTERS * form.longest

    def some(start: int, stop: int) -> Encoded:
        before = _openings(tokenizer, inputs[start:stop], form)
        own, cut = _answers(tokenizer, [each[:limit] for each in answers[start:stop]], form)
        rows = [
            Tokens(np.concatenate([first.ids, second]), len(first))
            for first, second in zip(before.rows, own, strict=True)
        ]
        return Encoded(rows, max(before.truncated, cut))

    return encoded(some, len(inputs), known)


def _openings(tokenizer: "PreTrainedTokenizerBase", inputs: Sequence[str], form: PairForm) -> Encoded:
    check_room(tokenizer, form)
    if form.apart:
        found = encode(tokenizer, inputs, longest=form.longest - form.answer)
        return Encoded([Tokens(row.ids, len(row)) for row in found.rows], found.truncated)
    before, after = _around(tokenizer, form)
    room = form.longest - form.answer - len(before) - len(after)
    limit = CHARACTERS * form.longest
    said = tokenizer([each[:limit] for each in inputs], add_special_tokens=False, verbose=False)["input_ids"]
    rows, truncated = [], 0
    for text, body in zip(inputs, said, strict=True):
        truncated += len(body) > room or len(text) > limit
        ids = np.array([*before, *body[:room], *after], np.int32)
        rows.append(Tokens(ids, len(ids)))
    return Encoded(rows, truncated)


def _answers(
    tokenizer: "PreTrainedTokenizerBase", answers: Sequence[str], form: PairForm
) -> "tuple[list[np.ndarray[tuple[int], np.dtype[np.int32]]], int]":
    """The tokens of answers, and how many of these are cut."""
    end = tokenizer.eos_token_id
    if not isinstance(end, int):
        raise ModelError("The tokenizer has no end token, so that no answer would end. Name a model that has one.")
    found = tokenizer(list(answers), add_special_tokens=False, verbose=False)["input_ids"]
    whole = [np.array([*body, end], np.int32) for body in found]
    return [each[: form.answer] for each in whole], sum(len(each) > form.answer for each in whole)


def _around(tokenizer: "PreTrainedTokenizerBase", form: PairForm) -> tuple[list[int], list[int]]:
    """The tokens before an input and after it, as a causal model reads them."""
    if form.apart:
        return [], []
    after: list[int] = tokenizer(form.separator, add_special_tokens=False, verbose=False)["input_ids"]
    return opening(tokenizer, None), after
