"""A table of text: columns and rows, wherever they come from."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from learning.errors import DataError

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
            )


def first_line(error: BaseException) -> str:
    """What an error says in its first line, without the full stop; its kind where it says nothing."""
    lines = str(error).strip().splitlines()
    return shown((lines[0] if lines else type(error).__name__).rstrip("."))


def shown(text: str) -> str:
    """What a file says of itself, as a terminal may see it: printable, and never long."""
    return "".join(each if each.isprintable() else "?" for each in text[:LONGEST])
