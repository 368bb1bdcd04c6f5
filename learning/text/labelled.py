"""Labelled text: which columns are text and label, which labels there are, and examples read from rows. No torch.

A plan's declarations are public: the columns, the label map, the range of scores. The content of rows is not. A row of
private text whose label cannot be used makes no example, and is counted; in public text it is an error.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from aggregation.errors import ConclaveError
from learning.errors import DataError
from learning.text.source import Document, Skipped, Source

TextKind = Literal["single", "pair", "regression"]

NO_SECOND: Final = "no second text"
NO_LABEL: Final = "no label"
OTHER_LABEL: Final = "a label outside the label map"
OTHER_SCORE: Final = "no score of the declared range"
_SHOWN: Final = 80


class LabelMapError(ConclaveError):
    """A label map, a range of scores or columns that a plan cannot declare."""

    CODE = "C205"


class LabelError(DataError):
    """A row's label that the plan's map or range does not have. The message quotes it: for the text's owner alone."""

    CODE = "C205"


@dataclass(frozen=True, slots=True)
class LabelMap:
    """The classes of a classifier, in order: a class is its place.

    names: what the published model calls them. values: what the label column holds for each, the names if empty.
    Raises `LabelMapError` for fewer than two classes, a name or value that is empty or comes twice, or values that are
    not as many as the names.
    """

    names: tuple[str, ...]
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(self.names) < 2:
            raise LabelMapError(f"A label map needs two classes or more, not {len(self.names)}. Name the others.")
        if self.values and len(self.values) != len(self.names):
            raise LabelMapError(
                f"The label map has {len(self.names)} classes and {len(self.values)} values. Give as many."
            )
        for what, entries in (("class", self.names), ("value", self.values)):
            seen: set[str] = set()
            for entry in entries:
                if not entry.strip() or entry != entry.strip():
                    raise LabelMapError(f"The label map has the {what} {entry!r}. Give it without space around it.")
                if entry in seen:
                    raise LabelMapError(f"The label map has the {what} {entry!r} twice. Name each once.")
                seen.add(entry)

    def index(self, value: str) -> int:
        """The place of the class that a row's label stands for. Raises `LabelError` for a label of no class."""
        known = self.values or self.names
        try:
            return known.index(value.strip())
        except ValueError:
            raise LabelError(
                f"The label {_short(value)!r} is outside the label map, which holds {_listed(known)}. Correct the "
                "rows, or the plan's map."
            ) from None


@dataclass(frozen=True, slots=True)
class ScoreRange:
    """The range of a regression's scores, in their own unit; models see it as -1 to 1.

    Raises `LabelMapError` unless low < high and both are finite.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise LabelMapError(
                f"Scores cannot range from {self.low} to {self.high}. Give finite numbers, the lower first."
            )

    @property
    def middle(self) -> float:
        """The score that a model sees as 0."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """Half the width of the range: a model's unit."""
        return (self.high - self.low) / 2

    def value(self, text: str) -> float:
        """A row's score, in the declared range. Raises `LabelError` for one outside it, or for what is no number."""
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if not self.low <= score <= self.high:
            raise LabelError(
                f"The score {_short(text)!r} is no number from {self.low:g} to {self.high:g}. Correct the rows, or the "
                "plan's range."
            )
        return score

    def standard(self, score: float) -> float:
        """A score as models see it, -1 to 1."""
        return (score - self.middle) / self.half

    def score(self, standard: float) -> float:
        """What a model says, as a score of the range, held within it."""
        return min(max(self.middle + self.half * standard, self.low), self.high)


@dataclass(frozen=True, slots=True)
class TextColumns:
    """Which columns hold text and label. kind: one text and its class; a pair and its class; one or two and a score.

    Raises `LabelMapError` for a pair without a second column, a single with one, or one column in two roles.
    """

    kind: TextKind
    first: str
    second: str | None
    label: str

    def __post_init__(self) -> None:
        if self.kind == "pair" and self.second is None:
            raise LabelMapError("A pair needs two text columns. Name the second.")
        if self.kind == "single" and self.second is not None:
            raise LabelMapError(f'A single text has no second column, and {self.second} is named. Use kind = "pair".')
        named = [name for name in (self.first, self.second, self.label) if name is not None]
        if len(set(named)) < len(named):
            raise LabelMapError(f"The columns {', '.join(named)} must differ. Name each once.")


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled record. target: a class's place in the label map, or a score in the declared range."""

    first: str
    second: str | None
    target: int | float


def source_of(source: Source, columns: TextColumns) -> Source:
    """The source with its labelled columns: `learning.text.source.read` then counts rows without a label."""
    more = () if columns.second is None else (columns.second,)
    return dataclasses.replace(
        source, text=columns.first, label=columns.label, columns=tuple(dict.fromkeys((*source.columns, *more)))
    )


def examples(
    documents: Iterable[Document],
    columns: TextColumns,
    targets: LabelMap | ScoreRange,
    left_out: Skipped,
    *,
    lenient: bool = False,
) -> Iterator[Example]:
    """The examples of documents that were read from `source_of`, in their order.

    left_out: is given rows without a second text or without a label; it counts them and reports nothing. A document
    makes one example or none, so the documents of one unit give the examples of that unit. lenient: for private text; a
    label or score that the plan does not have is left out as well. Raises `LabelError` for such a label or score of
    public text.
    """
    for document, second, label in usable(documents, columns, left_out):
        try:
            target = targets.index(label) if isinstance(targets, LabelMap) else targets.value(label)
        except LabelError:
            if not lenient:
                raise
            left_out.reasons[OTHER_LABEL if isinstance(targets, LabelMap) else OTHER_SCORE] += 1
        else:
            yield Example(document.text, second, target)


def usable(
    documents: Iterable[Document], columns: TextColumns, left_out: Skipped
) -> Iterator[tuple[Document, str | None, str]]:
    """The documents that have a second text, where columns name one, and a label, whatever it is: with both as stored.

    left_out: as of `examples`.
    """
    for document in documents:
        second = None if columns.second is None else document.fields.get(columns.second, "")
        label = document.fields.get(columns.label, "")
        if second is not None and not second.strip():
            left_out.reasons[NO_SECOND] += 1
        elif not label.strip():
            left_out.reasons[NO_LABEL] += 1
        else:
            yield document, second, label


def _short(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:_SHOWN])


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown} and {len(names) - 20:,} more" if len(names) > 20 else shown
