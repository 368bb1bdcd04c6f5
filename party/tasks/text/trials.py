"""Trials of a model and its tokenizer on made-up public text, before any text of this party's is opened.

A failure here is the same at every party, and tells nothing of a shard. Passing is no proof that nothing fails later;
the lists of known parts, and the rule that a failing example counts as none, cover that.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
import torch
from torch import nn

from learning.classification.training import predict_head
from learning.errors import ComputeError
from learning.models.adapting import trainable
from learning.models.batching import Tokens, encode, encode_documents, inputs_of, losses
from learning.models.checkpoints import ModelError
from learning.models.features import features
from learning.models.pairs import PairForm, encode_pairs
from learning.private_training.per_example import PerExample
from party.errors import TrainingError
from party.tasks.job import is_exhausted

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MOST_TRIED: Final = 2048
"""The most tokens of an example on which a model is tried."""

_STEP: Final = 61
_EACH: Final = 400
"""Every `_STEP`-th character there is, so many in a text."""


def awkward() -> Iterator[str]:
    """Texts that a tokenizer may not be made for, the same at every party; the first few are the most usual."""
    yield from ("", " ", "a", "The film was good.", "unbelievablyunheardofwords", "word " * 600, "a" * 3000)
    yield "\n\t \r\n" * 40
    yield "".join(map(chr, range(32))) + "\x7f\x80\x85\xa0\xad"
    yield "e\u0301 \u0301\u0302\u0303 a\u20dd \u093f \u0e33 \ufe0f"  # combining marks, some of them alone
    yield "\U0001f469\u200d\U0001f469\u200d\U0001f466 \U0001f1e9\U0001f1ea \U0001f44d\U0001f3fd"  # emoji, joined
    yield "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202e abc \u202c \u2067x\u2069 12,3"  # to the left
    yield "\u6771\u4eac\u90fd \u3053\u3093 \uac00\ub098 \u0e44\u0e17\u0e22 na\u00efve \u00df \u0130 \ufb01 \u2126"
    yield "\ufeff\ufffe\uffff\U0010ffff\U0001fffe\ue000\ufdd0\ufffd \u2028\u2029"  # no characters
    yield "\u2581 ## [UNK] [CLS] <s> </s> <|endoftext|> <0x0A>"
    codes = itertools.chain(range(0, 0xD800, _STEP), range(0xE000, 0x110000, _STEP))
    while some := "".join(map(chr, itertools.islice(codes, _EACH))):
        yield some


def try_tokenizer(
    tokenizer: "PreTrainedTokenizerBase", size: int, longest: int, *, documents: bool, pairs: bool
) -> list[Tokens]:
    """Tokenise awkward texts as a shard's will be; returns their tokens.

    size: number of tokens that the model knows. documents: as a language model reads them. pairs: also two texts
    together. Raises `TrainingError` for a tokenizer that fails, or that gives a number the model does not know or too
    many numbers.
    """
    if type(tokenizer).__name__ != "TokenizersBackend":
        raise TrainingError("the tokenizer that was provided would be read as another kind. Provide another model.")
    texts = [*awkward(), "word " * min(longest, MOST_TRIED)]
    try:
        largest = max(tokenizer.get_vocab().values(), default=0)
        if documents:
            rows = encode_documents(tokenizer, texts, longest=longest).rows
        else:
            rows = encode(tokenizer, texts, longest=longest).rows
            if pairs:
                rows += encode(tokenizer, texts, texts[::-1], longest=longest).rows
    except Exception as error:  # the library can raise anything for a text
        if is_exhausted(error):
            raise
        raise _failed(error) from error
    except BaseException as error:  # a panic in the library's own code, which is no `Exception`
        if type(error).__name__ != "PanicException":
            raise
        raise _failed(error) from error
    largest = max(largest, *(int(row.ids.max()) for row in rows))
    if largest >= size or min(int(row.ids.min()) for row in rows) < 0:
        raise TrainingError(
            f"the tokenizer that was provided gives the number {largest:,}, and the model knows {size:,}. Provide the "
            "one made for it."
        )
    if max(map(len, rows)) > longest:
        raise TrainingError(
            f"the tokenizer that was provided makes examples longer than {longest:,} tokens. Provide another model."
        )
    return rows


@contextmanager
def _trying() -> Iterator[None]:
    """Whatever the library raises for a text, as `TrainingError`; but for `ModelError`, and for memory that ran out."""
    try:
        yield
    except ModelError:
        raise
    except Exception as error:  # the library can raise anything for a text
        if is_exhausted(error):
            raise
        raise _failed(error) from error
    except BaseException as error:  # a panic in the library's own code, which is no `Exception`
        if type(error).__name__ != "PanicException":
            raise
        raise _failed(error) from error


def try_codes(tokenizer: "PreTrainedTokenizerBase", size: int, longest: int, codes: Sequence[str]) -> None:
    """Tokenise every control code of a plan as it will stand before texts.

    size, longest: as of `try_tokenizer`. Raises `ModelError` for a code that leaves its text too little room, and
    `TrainingError` for a tokenizer that fails at one.
    """
    with _trying():
        rows = encode_documents(tokenizer, [""] * len(codes), longest=longest, codes=codes).rows
    numbers = np.concatenate([row.ids for row in rows])
    if numbers.max() >= size or numbers.min() < 0:
        raise TrainingError(
            f"the tokenizer that was provided gives a control code the number {int(numbers.max()):,}, and the model "
            f"knows {size:,}. Provide the one made for it."
        )


def try_pairs(tokenizer: "PreTrainedTokenizerBase", size: int, form: PairForm) -> list[Tokens]:
    """Tokenise awkward texts as inputs and answers; returns their tokens. size: as of `try_tokenizer`, which has tried
    the tokenizer. Raises `ModelError` as `learning.models.pairs.check_room`, `TrainingError` as `try_tokenizer`.
    """
    texts = [*awkward(), "word " * min(form.longest, MOST_TRIED)]
    with _trying():
        rows = encode_pairs(tokenizer, texts, texts[::-1], form).rows
    numbers = np.concatenate([row.ids for row in rows])
    if numbers.max() >= size or numbers.min() < 0 or max(map(len, rows)) > form.longest:
        raise TrainingError(
            "the tokenizer that was provided makes pairs of numbers that the model does not know, or that are too "
            "long. Provide the one made for it."
        )
    return rows


def try_model(
    model: "PreTrainedModel",
    rows: Sequence[Tokens],
    targets: int | None,
    *,
    head: nn.Module | None = None,
    apart: bool = True,
) -> None:
    """Run the model on a few examples, and compute the gradients of the trained parameters.

    targets: classes of a classifier, 0 for a regression, None for a language model. head: its last layer, where only
    that is trained. apart: whether gradients are computed per example, as in private training. Memory: as for one
    example of `MOST_TRIED` tokens. Raises `TrainingError` for an output or a gradient that is not finite, and for a
    model that fails; `ModelError` where gradients cannot be computed per example; `ComputeError` where the device's
    memory is too small.
    """
    order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
    tried = [rows[place] for place in dict.fromkeys((*range(4), order[0], order[len(order) // 2], order[-1]))]
    tried = [row if len(row) <= MOST_TRIED else Tokens(row.ids[:MOST_TRIED], MOST_TRIED) for row in tried]
    try:
        finite = _finite_head(model, head, tried) if head is not None else _finite(model, tried, targets, apart=apart)
    except (ModelError, ComputeError):
        raise
    except Exception as error:  # a model with odd settings can raise anything
        if is_exhausted(error):
            raise
        raise TrainingError(
            f"the model that was provided fails at made-up text ({type(error).__name__}). Provide another model."
        ) from error
    if not finite:
        raise TrainingError(
            "the model that was provided says numbers of made-up text, or has gradients of it, that are not finite. "
            "Provide another model."
        )


def _finite_head(model: "PreTrainedModel", head: nn.Module, rows: list[Tokens]) -> bool:
    vectors = features(model, rows)
    return bool(np.isfinite(vectors).all() and np.isfinite(predict_head(head, vectors)).all())


def _finite(model: "PreTrainedModel", rows: list[Tokens], targets: int | None, *, apart: bool) -> bool:
    labels = None
    if targets is not None:
        labels = torch.zeros(1, dtype=torch.int64) if targets else torch.zeros(1)
    gradients = PerExample(model) if apart else None
    own = list(trainable(model).values())
    for row in rows:
        if gradients is None:
            loss = losses(model, inputs_of(model.config, [row]), labels).sum()
            slopes = torch.autograd.grad(loss, own, allow_unused=True, materialize_grads=True)
        else:
            with gradients.recording(1):
                loss = losses(model, inputs_of(model.config, [row]), labels).sum()
                loss.backward()  # type: ignore[no-untyped-call]
            slopes = (gradients.bounds(),)
        if not all(bool(torch.isfinite(each).all()) for each in (loss, *slopes)):
            return False
    return True


def _failed(error: BaseException) -> TrainingError:
    return TrainingError(
        f"the tokenizer that was provided fails at made-up text ({type(error).__name__}). Provide another model."
    )
