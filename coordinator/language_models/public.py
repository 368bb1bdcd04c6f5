"""The public data of a language model's run: the model that every party starts from, and text to measure on."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coordinator.errors import PlanError
from coordinator.language_models.plan import SpokenPlan
from coordinator.plan.public_text import source_of
from coordinator.text_models.public import PublicModel, marked, placed_model
from learning.errors import DataError
from learning.text.codes import Codes
from learning.text.source import Document, read

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from learning.models.pairs import PairForm

LEAST_ROOM = 16
"""Tokens that the longest control code must leave for a text."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A public document to measure on. cell: the place of its control code, None where there are no codes, or where its
    columns hold other values. second: the answer to it, where answers are learned.
    """

    text: str
    cell: int | None
    second: str = ""


@dataclass(frozen=True, slots=True)
class PublicLanguage(PublicModel):
    """The public data of a plan of language models.

    openings: for each control code the tokens before a text, its beginning among them; one without code where there are
    no codes. bare: the beginning alone, or the end token where the tokenizer has no beginning. end: the token that ends
    a text. heldout: the documents of `[evaluation]`. codes: None where there are none. pairs: how
    answers and their inputs are read; None where single texts are learned.
    """

    openings: tuple[tuple[int, ...], ...] = ()
    bare: tuple[int, ...] = ()
    end: int = 0
    heldout: tuple[HeldOut, ...] = ()
    codes: Codes | None = None
    pairs: "PairForm | None" = None

    @property
    def tokens(self) -> int:
        """How many tokens the model has, those beyond its tokenizer among them."""
        from learning.models.encoders import tokens_of

        return tokens_of(self.model)


def prepare(plan: SpokenPlan, base: Path, cache: Path) -> PublicLanguage:
    """Load the public language model, mark the parameters that are trained, and read the public text.

    Raises `ModelError` for a model that cannot be loaded, is not causal, or whose gradients cannot be computed per
    example; `PlanError` for a tokenizer without an end token, or with more tokens than its model, and for codes that
    leave no room for text; `DataError` naming a source.
    """
    from learning.models.batching import opening
    from learning.models.encoders import language_model, speaking_model

    load = speaking_model if plan.pairs else language_model
    model, tokenizer = load(placed_model(plan.model.name, base), cache=cache)
    end = checked(model, tokenizer, plan.model.name)
    found = marked(model, tokenizer, plan, cache, wanted=plan.text.longest)
    codes = None if plan.codes_table is None else plan.codes_table.codes()
    bare = tuple(opening(tokenizer, None)) or (end,)
    openings = (bare,) if codes is None else tuple(tuple(opening(tokenizer, text)) for text in codes.texts())
    longest = max(map(len, openings))
    if longest + LEAST_ROOM > found.longest and codes is None:
        raise PlanError(
            f"[text] longest = {found.longest} leaves fewer than {LEAST_ROOM} tokens for a text after the {longest} "
            "that stand before it. Use longer texts, if the model takes them."
        )
    if longest + LEAST_ROOM > found.longest:
        raise PlanError(
            f"[codes] template: the longest code has {longest} tokens, and [text] longest = {found.longest} leaves "
            f"fewer than {LEAST_ROOM} for a text. Use a shorter template, or longer texts if the model takes them."
        )
    return PublicLanguage(
        **{field.name: getattr(found, field.name) for field in fields(found)},
        openings=openings,
        bare=bare,
        end=end,
        heldout=heldout(plan, codes, base, cache),
        codes=codes,
    )


def checked(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase", name: str) -> int:
    """The token that ends a text. Raises `PlanError` where there is none, or where the model lacks some token."""
    from learning.models.encoders import tokens_of

    end = tokenizer.eos_token_id
    if not isinstance(end, int):
        raise PlanError(
            f"[model] name: the tokenizer of {name} has no end token, so no text of it would end. Name one that has."
        )
    if len(tokenizer) > tokens_of(model):
        raise PlanError(
            f"[model] name: the tokenizer of {name} has {len(tokenizer):,} tokens, and the model {tokens_of(model):,}. "
            "Name a model with its own tokenizer."
        )
    return end


def whole_digest(tokenizer: "PreTrainedTokenizerBase") -> str:
    """A digest of everything a tokenizer does to text, and of its beginning and end: two models that share it share
    tokens.
    """
    backend: Any = getattr(tokenizer, "backend_tokenizer", None)
    said = backend.to_str() if backend is not None else repr(sorted(tokenizer.get_vocab().items()))
    ends = f"{tokenizer.bos_token_id} {tokenizer.eos_token_id}"
    return hashlib.sha256(f"{ends}\n{said}".encode()).hexdigest()


def heldout(plan: SpokenPlan, codes: Codes | None, base: Path, cache: Path) -> tuple[HeldOut, ...]:
    """The documents of `[evaluation]`. Raises `DataError`."""
    table = plan.evaluation
    if table is None:
        return ()
    source = source_of(table, base)
    columns: dict[str, str] = {}
    if plan.codes_table is not None and codes is not None:
        columns = {name: each.column or name for name, each in plan.codes_table.columns.items()}
    there = _columns_there(source, cache) if columns else ()
    kept = tuple(dict.fromkeys(column for column in columns.values() if column in there))
    source = replace(source, columns=kept)
    second = table.second if plan.pairs else None
    if second is not None:
        source = replace(source, columns=(*source.columns, second))
    found = [
        HeldOut(each.text, _cell(each, codes, columns), each.fields.get(second or "", ""))
        for each in read(source, cache)
    ]
    if second is not None:
        found = [each for each in found if each.second.strip()]
        if not found:
            raise DataError(f"[evaluation] {table.source} has no answer in its column {second!r}. Name the right one.")
    if not found:
        raise DataError(f"[evaluation] {table.source} has no text. Name the column that holds it.", code="C204")
    return tuple(found)


def _columns_there(source: Any, cache: Path) -> Sequence[str]:
    from learning.text.source import columns

    return columns(source, cache)


def _cell(document: Document, codes: Codes | None, columns: dict[str, str]) -> int | None:
    if codes is None:
        return None
    return codes.cell({name: document.fields.get(column, "") for name, column in columns.items()})
