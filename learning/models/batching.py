"""From texts to tokens, from tokens to the tensors a model takes, and from those to one loss per example.

A text is cut to what the model takes by the tokenizer's own rule: at its end, of a pair the longer one first. An
example without a token gets the padding token as its only one, so that no softmax is over nothing. Padding is on the
right.

A document of a language model is an opening, the text itself and the end token, as far as its tokenizer has these. The
opening is the beginning token and, where there is a control code, the code and a line break: it is told to the model,
which learns what comes after it.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from learning.models.checkpoints import ModelError
from learning.models.compute import device_of, moved, passing

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerBase

CHARACTERS: Final = 100
"""Characters of a text that are read for every token that the model takes: BERT cuts longer words, too."""
TOKENS: Final = 8192
"""Tokens in one pass through a model by default, padding included."""

LEAST_OWN: Final = 8
"""Tokens that a code leaves to the text after it, at least."""
BEGINS: Final = "begins"
"""The entry of a document's inputs that no model is given: where its own text begins, int64 [examples]."""
IGNORED: Final = -100
"""The target of a position that says nothing."""

_AT_ONCE: Final = 512
_PANIC: Final = "PanicException"
_FROM_PADDING: Final = frozenset(
    {
        "camembert", "data2vec-text", "esm", "ibert", "longformer", "luke", "mpnet", "roberta", "roberta-prelayernorm",
        "xlm-roberta", "xlm-roberta-xl", "xmod",
    }
)  # fmt: skip
"""Kinds of model whose first position is the one after the padding token's number."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """One example: token numbers [length], and where the second text of a pair begins, length if there is none.

    Of a document with an opening, `second` is where its own text begins.
    """

    ids: NDArray[np.int32]
    second: int

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def begins(self) -> int:
        """Of a document, the first token that a language model says: nothing says its opening, or its first token."""
        return max(1, self.second) if self.second < len(self.ids) else 1


NOTHING: Final = Tokens(np.empty(0, np.int32), 0)
"""The row of a private text that cannot be tokenised: it is no example."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """Examples as tokens, in order, and how many of them were cut to the model's length."""

    rows: list[Tokens]
    truncated: int


@dataclass(frozen=True, slots=True)
class Form:
    """What a kind of model takes.

    longest: tokens in an example, None if the model sets no limit. padding: the token that fills up, 0 if the model
    names none. types: how many token types there are, 0 if the model takes none. positions: whether it takes
    `position_ids`; first: the first of them.
    """

    longest: int | None
    padding: int
    types: int
    positions: bool
    first: int


def form_of(config: "PretrainedConfig") -> Form:
    """Read from a model's configuration what inputs it takes."""
    kind: Any = type(config)
    taken = _taken(kind)
    padding = config.pad_token_id if isinstance(getattr(config, "pad_token_id", None), int) else 0
    first = padding + 1 if config.model_type in _FROM_PADDING else 0
    places = getattr(config, "max_position_embeddings", None)
    longest = places - first if isinstance(places, int) and places > first else None
    types = getattr(config, "type_vocab_size", None) or 0
    return Form(longest, padding, types if "token_type_ids" in taken else 0, "position_ids" in taken, first)


@cache
def _taken(config: Any) -> frozenset[str]:
    from learning.models.library import transformers

    found: Any = transformers.MODEL_MAPPING[config]
    return frozenset(inspect.signature((found[0] if isinstance(found, tuple) else found).forward).parameters)


def encode(
    tokenizer: "PreTrainedTokenizerBase",
    first: Sequence[str],
    second: Sequence[str] | None = None,
    *,
    longest: int,
    known: int | None = None,
) -> Encoded:
    """Tokenise single texts, or pairs, for a classifier, with the tokens its tokenizer puts around them.

    longest: tokens in an example at most, `Form.longest` or fewer. Of a text, `CHARACTERS` times as many characters are
    looked at. A text of which anything was left out is counted as truncated. known: for private text, how many tokens
    the model has: a text that the tokenizer fails on, or gives another token, becomes a row of no token, and no other
    text becomes anything else for it. None for public text, of which such a failure is raised.
    """
    limit = CHARACTERS * longest
    padding = _padding(tokenizer)

    def some(start: int, stop: int) -> Encoded:
        texts = [[text[:limit] for text in side[start:stop]] for side in (first, second) if side is not None]
        whole = _called(tokenizer, texts, None)
        over = [place for place, tokens in enumerate(whole) if len(tokens) > longest]
        if over:
            cut = _called(tokenizer, [[side[place] for place in over] for side in texts], longest)
            for place, tokens in zip(over, cut, strict=True):
                whole[place] = tokens
        shortened = set(over)
        for side in (first, second):
            for place, text in enumerate(side[start:stop] if side is not None else ()):
                if len(text) > limit:
                    shortened.add(place)
        return Encoded([tokens if len(tokens) else _alone(padding) for tokens in whole], len(shortened))

    return encoded(some, len(first), known)


def encode_documents(
    tokenizer: "PreTrainedTokenizerBase",
    texts: Sequence[str],
    *,
    longest: int,
    known: int | None = None,
    codes: Sequence[str | None] | None = None,
) -> Encoded:
    """Tokenise documents for a causal language model: the text between the tokenizer's beginning and end, as far as it
    has these.

    A document longer than `longest` tokens loses its rest, its end token included, and is counted as truncated. known:
    as of `encode`. codes: the control code of each text, None for one that has none; each row then says in `second`
    where its own text begins, and one without a token of its own becomes the padding token. Raises `ModelError` for a
    code that leaves fewer than `LEAST_OWN` tokens to its text.
    """
    limit = CHARACTERS * longest
    coded = [None] * len(texts) if codes is None else codes
    openings = {code: _opening_within(tokenizer, code, longest) for code in dict.fromkeys((None, *coded))}
    after = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
    padding = _padding(tokenizer)

    def some(start: int, stop: int) -> Encoded:
        rows, truncated = [], 0
        cut = [text[:limit] for text in texts[start:stop]]
        found = tokenizer(cut, add_special_tokens=False, verbose=False)["input_ids"]
        for text, code, body in zip(texts[start:stop], coded[start:stop], found, strict=True):
            before = openings[code]
            ids = [*before, *body, *after]
            truncated += len(ids) > longest or len(text) > limit
            first = 0 if codes is None else len(before)
            row = _tokens(ids[:longest]) if codes is None else Tokens(np.array(ids[:longest], np.int32), first)
            rows.append(row if len(row) > first else _alone(padding))
        return Encoded(rows, truncated)

    return encoded(some, len(texts), known)


def opening(tokenizer: "PreTrainedTokenizerBase", code: str | None) -> list[int]:
    """The tokens before a document's own text: the tokenizer's beginning, if it has one, and a control code and a line
    break, if there is a code.
    """
    before = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    if code is None:
        return before
    said: list[int] = tokenizer(code + "\n", add_special_tokens=False, verbose=False)["input_ids"]
    return before + said


def _opening_within(tokenizer: "PreTrainedTokenizerBase", code: str | None, longest: int) -> list[int]:
    ids = opening(tokenizer, code)
    if code is not None and longest - len(ids) < LEAST_OWN:
        raise ModelError(
            f"The code {code[:80]!r} and what stands before it take {len(ids):,} of the {longest:,} tokens that a text "
            f"may have, and {LEAST_OWN} are to be left. Use a shorter template, or longer texts."
        )
    return ids


def encoded(some: Callable[[int, int], Encoded], count: int, known: int | None) -> Encoded:
    """All of `count` texts, `_AT_ONCE` at a time, with `some` of which their first and last are given."""
    rows: list[Tokens] = []
    truncated = 0
    for start in range(0, count, _AT_ONCE):
        stop = min(start + _AT_ONCE, count)
        found = [some(start, stop)] if known is None else _apart(some, start, stop)
        for each in found:
            rows += each.rows
            truncated += each.truncated
    if known is not None:
        rows = [row if len(row) and row.ids.min() >= 0 and row.ids.max() < known else NOTHING for row in rows]
    return Encoded(rows, truncated)


def _apart(some: Callable[[int, int], Encoded], start: int, stop: int) -> list[Encoded]:
    """As `some`, text by text where the tokenizer fails on one of them: a text's tokens do not depend on the others."""
    try:
        return [some(start, stop)]
    except BaseException as error:  # a tokenizer written in Rust may panic, which is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != _PANIC:
            raise
    if stop - start == 1:
        return [Encoded([NOTHING], 0)]
    return [each for place in range(start, stop) for each in _apart(some, place, place + 1)]


def _called(tokenizer: "PreTrainedTokenizerBase", texts: list[list[str]], longest: int | None) -> list[Tokens]:
    found = tokenizer(
        *texts,
        truncation="longest_first" if longest is not None else False,
        max_length=longest,
        return_token_type_ids=True,
        return_attention_mask=False,
        verbose=False,
    )
    types = found.get("token_type_ids") or [None] * len(found["input_ids"])
    return [_tokens(ids, kinds) for ids, kinds in zip(found["input_ids"], types, strict=True)]


def _tokens(ids: Sequence[int], types: Sequence[int] | None = None) -> Tokens:
    second = types.index(1) if types is not None and 1 in types else len(ids)
    return Tokens(np.asarray(ids, dtype=np.int32), second)


def _alone(padding: int) -> Tokens:
    return Tokens(np.array([padding], dtype=np.int32), 1)


def _padding(tokenizer: "PreTrainedTokenizerBase") -> int:
    return tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0


def inputs_of(
    config: "PretrainedConfig", rows: Sequence[Tokens], length: int = 0, *, documents: bool = False
) -> dict[str, Tensor]:
    """The tensors for `model(**inputs)`, each int64 [examples, length], length that of the longest row, or more.

    input_ids and attention_mask always; token_type_ids and position_ids where the model takes them. Position ids are
    given for every example, for a model that is left to make its own makes one row for all, and no gradient of one
    example can be told from it. documents: rows of a language model, whose inputs have `BEGINS` for `losses`. A model
    with an encoder and a decoder reads an opening by the one, and says the text itself by the other: decoder_input_ids
    and decoder_attention_mask [examples, own length + 1] are then of that, after the decoder's first token. Raises
    `ValueError` for no row, or a row without a token: `encode` gives none; `ModelError` for a decoder without a first
    token.
    """
    if not rows or not all(len(row) for row in rows):
        raise ValueError("A batch needs examples, each with a token.")
    if getattr(config, "is_encoder_decoder", False):
        return _pairs_of(config, rows, length)
    form = form_of(config)
    length = max(length, *(len(row) for row in rows))
    shape = (len(rows), length)
    ids, mask = np.full(shape, form.padding, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    types = np.zeros(shape, dtype=np.int64)
    for place, row in enumerate(rows):
        ids[place, : len(row)] = row.ids
        mask[place, : len(row)] = 1
        if form.types > 1 and not documents:
            types[place, row.second : len(row)] = 1
    inputs = {"input_ids": ids, "attention_mask": mask}
    if documents:
        inputs[BEGINS] = np.array([row.begins for row in rows], np.int64)
    if form.types:
        inputs["token_type_ids"] = types
    if form.positions:
        places = np.arange(form.first, form.first + length)
        inputs["position_ids"] = np.where((mask == 1) | (form.first == 0), places, form.padding)
    return {name: torch.from_numpy(values) for name, values in inputs.items()}


def _pairs_of(config: "PretrainedConfig", rows: Sequence[Tokens], length: int) -> dict[str, Tensor]:
    """As `inputs_of`; both sides are of the given length at least, so that a shape may follow from one row alone: no
    side is longer than its row, an opening having a token and the decoder's first token standing in its place.
    """
    start = getattr(config, "decoder_start_token_id", None)
    if not isinstance(start, int):
        raise ModelError(
            f"The {config.model_type} model does not say with which token its decoder begins. Set "
            "decoder_start_token_id in its configuration."
        )
    padding = form_of(config).padding
    inputs: dict[str, Tensor] = {}
    read = [row.ids[: row.begins] for row in rows]
    said = [np.concatenate([[start], row.ids[row.begins :]]) for row in rows]
    for prefix, parts in (("", read), ("decoder_", said)):
        shape = (len(rows), max(length, *(len(each) for each in parts)))
        ids, mask = np.full(shape, padding, dtype=np.int64), np.zeros(shape, dtype=np.int64)
        for place, each in enumerate(parts):
            ids[place, : len(each)] = each
            mask[place, : len(each)] = 1
        inputs |= {f"{prefix}input_ids": torch.from_numpy(ids), f"{prefix}attention_mask": torch.from_numpy(mask)}
    return inputs


def batches(rows: Sequence[Tokens], tokens: int) -> Iterator[NDArray[np.int64]]:
    """Split examples into batches of at most `tokens` tokens, padding included, or of one example; yields their places.

    Longer ones come first, neighbours in length together.
    """
    order = iter(np.argsort([-len(row) for row in rows], kind="stable"))
    for first in order:
        more = islice(order, max(tokens // max(len(rows[first]), 1), 1) - 1)
        yield np.array([first, *more], dtype=np.int64)


def logits_of(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """float32 [examples, classes] of a classifier, [examples, length, tokens] of a language model; on its device.

    inputs: on any device.
    """
    given = {name: each for name, each in inputs.items() if name != BEGINS}
    with passing(device_of(model)):
        output: Tensor = model(**moved(given, model)).logits
    return output.float()


def losses(model: nn.Module, inputs: dict[str, Tensor], labels: Tensor | None, *, tilt: Tensor | None = None) -> Tensor:
    """One loss per example, float32 [examples], which no other example of the batch has a part in; on the model's
    device, whatever `inputs` and `labels` are on.

    labels: int64 [examples] for a classifier (cross-entropy), or float32 [examples, classes], the probabilities that it
    is to say (soft targets, likewise); float32 [examples] within [-1, 1] for a regression (squared error, see
    `learning.text.labelled.ScoreRange`); None for a causal language model (mean cross-entropy of the
    example's tokens from `BEGINS` on, or else after its first; 0 where it has none of these). tilt: float32 [tokens],
    added to a language model's logits at every position.
    """
    logits = logits_of(model, inputs)
    if labels is None:
        tilted = logits if tilt is None else logits + tilt.to(logits.device)
        return _language(tilted, {name: each.to(logits.device) for name, each in inputs.items()})
    return losses_of(logits, labels.to(logits.device))


def losses_of(logits: Tensor, labels: Tensor) -> Tensor:
    """One loss per example, as `losses`, of what a classifier or regression said: logits [examples, classes]."""
    if labels.ndim == 1 and labels.is_floating_point():
        return (logits.squeeze(-1) - labels).square()
    return functional.cross_entropy(logits, labels, reduction="none")


def next_tokens(inputs: dict[str, Tensor]) -> Tensor:
    """What a language model is to say at each position: int64 [examples, length], `IGNORED` where it is to say nothing.

    A token of the text itself, from `BEGINS` on where inputs have that, and no padding; a decoder's tokens all are.
    """
    side = "decoder_" if "decoder_input_ids" in inputs else ""
    ids, mask = inputs[f"{side}input_ids"], inputs[f"{side}attention_mask"]
    targets = torch.full_like(ids, IGNORED)
    targets[:, :-1] = ids[:, 1:].masked_fill(mask[:, 1:] == 0, IGNORED)
    if BEGINS in inputs:
        places = torch.arange(1, ids.shape[1] + 1, device=ids.device)
        targets = targets.masked_fill(places < inputs[BEGINS][:, None], IGNORED)
    return targets


def _language(logits: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    targets = next_tokens(inputs)
    each = functional.cross_entropy(
        logits.view(-1, logits.shape[-1]), targets.view(-1), reduction="none", ignore_index=IGNORED
    ).view(targets.shape)
    own = (targets != IGNORED).sum(dim=1).clamp(min=1)
    return each.sum(dim=1) / own
