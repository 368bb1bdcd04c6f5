"""A table of text: columns and rows, from any source."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from learning.errors import DataError
from learning.text.reading import divided

Row = Mapping[str, object]

LONGEST = 300
"""The most characters of a file's own text that a message quotes."""
MAXIMUM_CELL = 16 * 1024 * 1024
"""The most characters of one text or one CSV cell, and, in private text, of one line or one .txt file."""
TOO_LONG = f"with more than {MAXIMUM_CELL:,} characters"
"""Why a row that is longer is left out."""
NOT_UTF8 = "not UTF-8"
"""Why a row that is not UTF-8 is left out."""


@dataclass(frozen=True, slots=True)
class Table:
    """The columns and rows of one file, or of one dataset.

    rows: a string in place of a row is the reason why that row cannot be used. columns: empty where only the rows could
    tell them and nobody may look ahead, as in private JSON: then each row is checked by itself.
    """

    name: str
    columns: tuple[str, ...]
    rows: Iterator[Row | str]

    def require(self, needed: Iterable[str]) -> None:
        """Raise `DataError` for a column that is needed and absent."""
        absent = [name for name in needed if name not in self.columns]
        if absent and self.columns:
            raise DataError(
                f"{self.name} has no column {absent[0]!r}. Its columns are: {shown(', '.join(self.columns))}."
                f"{divided(self.columns)}",
                code="C203",
            )


def first_line(error: BaseException) -> str:
    """The first line of an error's message, without the full stop; the error's type where it has no message."""
    lines = str(error).strip().splitlines()
    return shown((lines[0] if lines else type(error).__name__).rstrip("."))


def shown(text: str) -> str:
    """A file's own text as a terminal may show it: printable, and cut to `LONGEST`."""
    return "".join(each if each.isprintable() else "?" for each in text[:LONGEST])
