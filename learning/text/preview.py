"""What a table of text looks like: its columns, and which of them may be the text, a label or a user.

For the owner of the text, at their own terminal. It counts and measures; it never quotes what a row holds, but for
the values of a column that has few.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from learning.errors import DataError
from learning.text.source import Source, tables
from learning.text.table import MAXIMUM_CELL, Row, shown

MOST_ROWS: Final = 20_000
MOST_VALUES: Final = 2000
MOST_CLASSES: Final = 20
"""Rows that are looked at; values of a column that are told apart; values of a column that may be a label."""

_LABELS: Final = ("label", "class", "category", "target", "sentiment", "topic", "kind")
_TEXTS: Final = ("text", "sentence", "document", "body", "content", "note", "review", "message", "comment")
_USERS: Final = ("user", "patient", "author", "customer", "client", "person", "member", "account", "speaker", "subject")


@dataclass(slots=True)
class Column:
    """A column of the rows that were looked at. filled: how many have a value there. values: the values, up to
    `MOST_VALUES` of them, None where there are more. characters: of all values together.
    """

    name: str
    filled: int = 0
    values: set[str] | None = field(default_factory=set)
    characters: int = 0

    @property
    def length(self) -> float:
        """Characters of a value, on average."""
        return self.characters / self.filled if self.filled else 0.0

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The values of a column that may be a label, sorted; None for another column."""
        if self.values is None or not 2 <= len(self.values) <= MOST_CLASSES or self.filled < 2 * len(self.values):
            return None
        return tuple(sorted(self.values, key=lambda each: (not each.isdigit(), len(each) * each.isdigit(), each)))

    @property
    def said(self) -> str:
        """What the column holds, in words."""
        if not self.filled:
            return "empty"
        if (classes := self.classes) is not None and self.length <= 40:
            few = ", ".join(shown(each[:20]) for each in classes[:6])
            return f"{len(classes)} values: {few}{', ...' if len(classes) > 6 else ''}"
        many = f"more than {MOST_VALUES:,}" if self.values is None else f"{len(self.values):,}"
        return f"{many} values of about {max(1, round(self.length)):,} characters"

    def add(self, value: object) -> None:
        """Count the value of one row."""
        text = value.decode(errors="replace") if isinstance(value, bytes) else "" if value is None else str(value)
        if not text.strip():
            return
        self.filled += 1
        self.characters += len(text)
        if self.values is not None:
            self.values.add(text.strip()[:200])
            if len(self.values) > MOST_VALUES:
                self.values = None


@dataclass(frozen=True, slots=True)
class Preview:
    """The first rows of a source. rows: how many were looked at. whole: whether these are all."""

    columns: tuple[Column, ...]
    rows: int
    whole: bool

    def named(self, name: str) -> Column | None:
        """The column of that name, None where there is none."""
        return next((column for column in self.columns if column.name == name), None)

    @property
    def text(self) -> str | None:
        """The column that looks like text: one that is called so, else the one with the longest values."""
        if (found := self._called(_TEXTS, [column for column in self.columns if column.length >= 10])) is not None:
            return found
        longest = max(self.columns, key=lambda column: column.length, default=None)
        return longest.name if longest is not None and longest.filled else None

    @property
    def label(self) -> str | None:
        """The column that looks like a label: one that is called so, else the only one of few values."""
        taken = (self.text, self.user)
        able = [column for column in self.columns if column.classes is not None and column.name not in taken]
        if (found := self._called(_LABELS, able)) is not None:
            return found
        return able[0].name if len(able) == 1 else None

    @property
    def user(self) -> str | None:
        """The column that is called like a person."""
        return self._called(_USERS, [column for column in self.columns if column.name != self.text])

    @staticmethod
    def _called(words: tuple[str, ...], columns: Iterable[Column]) -> str | None:
        able = [(column.name, column.name.lower()) for column in columns]
        exact = [name for word in words for name, lower in able if lower == word]
        inside = [name for word in words for name, lower in able if word in lower]
        return next(iter((*exact, *inside)), None)


def preview(source: Source, cache: Path) -> Preview:
    """Look at the first rows of a source, all its columns whatever `source` names. Raises `DataError` as `columns`."""
    found: dict[str, Column] = {}
    rows, whole = 0, True
    for table in tables(source, cache):
        for name in table.columns:
            found.setdefault(name, Column(name))
        for row in itertools.islice(table.rows, MOST_ROWS - rows):
            rows += 1
            if not isinstance(row, str):
                _count(row, found)
        if rows >= MOST_ROWS:
            whole = next(iter(table.rows), None) is None
            break
    if not found:
        raise DataError(f"{source.source} is empty: it has no columns.", code="C204")
    return Preview(tuple(found.values()), rows, whole)


def _count(row: Row, found: dict[str, Column]) -> None:
    for name, value in row.items():
        if not isinstance(value, str | bytes) or len(value) <= MAXIMUM_CELL:
            found.setdefault(name, Column(name)).add(value)
