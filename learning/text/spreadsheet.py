"""Excel workbooks (.xlsx) as tables of text: one sheet, row by row, its cells as people see them.

A sheet's first row that holds anything names its columns. Whether a sheet is there, and which columns it has, follows
from that row alone, so that no later row, which may be a person's, decides whether a workbook can be read. Openpyxl,
the extra `excel`, reads the file: a sheet as a stream, the texts that a workbook keeps apart from its sheets as a
whole.
"""

import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import date, datetime, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from learning.errors import DataError
from learning.text.table import Row, Table, first_line, shown

if TYPE_CHECKING:
    from openpyxl import Workbook

XLSX: Final = ".xlsx"
_OLD: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""How an Excel file begins that is older than .xlsx, or has a password."""
_ZEROS: Final = re.compile(r"0{2,}")
_BROKEN: Final = (
    zipfile.BadZipFile, zlib.error, EOFError, SyntaxError, KeyError, IndexError, ValueError, TypeError,
    AttributeError, NotImplementedError, RuntimeError,
)  # fmt: skip
"""What openpyxl raises for files that are none of its kind: SyntaxError is XML's, RuntimeError a zip's password."""


def table_of(path: Path, sheet: str | None) -> Table:
    """The table of one sheet of a workbook: `sheet`, or the only one that has a first row.

    Its columns are the cells of that row; cells under none of them are left out, and so are empty rows. Raises
    `DataError`: openpyxl is not installed, the file is broken or has a password, no such sheet, several sheets, two
    columns of one name.
    """
    with _told(path):
        with closing(_opened(path)) as book:
            heads = _heads(book)
        chosen = _chosen(path, heads, sheet)
        head = heads.get(chosen, ())
        twice = [name for name, times in Counter(filter(None, head)).items() if times > 1]
        if twice:
            raise DataError(f"{path} has two columns named {shown(twice[0])!r}. Rename one.")
    return Table(str(path), tuple(filter(None, head)), _rows(path, chosen, head) if head else iter(()))


def sheets(path: Path) -> list[str]:
    """The sheets of a workbook that have a first row, in its own order. Raises `DataError` as `table_of`."""
    with _told(path), closing(_opened(path)) as book:
        return list(_heads(book))


def _heads(book: "Workbook") -> dict[str, tuple[str, ...]]:
    """The first row that holds anything, by sheet; a sheet without one is left out."""
    firsts = ((sheet.title, next(_filled(sheet), ())) for sheet in book.worksheets)
    return {title: tuple(name.strip() for name in first) for title, first in firsts if first}


def _chosen(path: Path, heads: dict[str, tuple[str, ...]], sheet: str | None) -> str:
    named = ", ".join(f'"{shown(each)}"' for each in heads)
    if sheet is not None and sheet not in heads:
        raise DataError(f'{path} has no sheet "{sheet}" with rows. Its sheets with rows: {named or "none"}.')
    if sheet is None and len(heads) > 1:
        raise DataError(
            f"{path} has {len(heads)} sheets with rows: {named}. Say which one, beside its source: {_key(heads)}."
        )
    return sheet or next(iter(heads), "")


def _key(heads: Iterable[str]) -> str:
    return f'sheet = "{shown(next(iter(heads)))}"'


def _rows(path: Path, title: str, head: Sequence[str]) -> Iterator[Row | str]:
    with _told(path, "to its end"), closing(_opened(path)) as book:
        rows = _filled(next(sheet for sheet in book.worksheets if sheet.title == title))
        next(rows, None)
        for row in rows:
            yield {name: value for name, value in zip(head, (*row, *[""] * len(head)), strict=False) if name}


def _filled(sheet: Any) -> Iterator[tuple[str, ...]]:
    """The rows of a sheet that hold anything, as text. sheet: openpyxl's, of a workbook that is only read."""
    sheet.reset_dimensions()  # some programs write wrong ones
    for row in sheet.iter_rows():
        cells = tuple(map(_text, row))
        if any(cell.strip() for cell in cells):
            yield cells


def _text(cell: Any) -> str:
    """A cell as people see it: 1 and not 1.0, dates by ISO 8601; empty for no value, or an error in its place."""
    value = cell.value
    if value is None or cell.data_type == "e":
        return ""
    match value:
        case str():
            return value
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | float():
            return _number(value, cell.number_format)
        case datetime():
            return (value.date() if value.time() == time() else value).isoformat()
        case date() | time():
            return value.isoformat()
        case timedelta():
            return f"{value.total_seconds() / 86_400:.15g}"
    return str(value)


def _number(value: int | float, form: str) -> str:
    """Whole numbers without a point, with the leading zeros of a form such as 00000; others to Excel's 15 digits."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        whole = str(int(value))
        return whole.zfill(len(form)) if value >= 0 and _ZEROS.fullmatch(form) else whole
    return f"{value:.15g}"


def _opened(path: Path) -> "Workbook":
    """The workbook, to be read only, formulas by the values that were stored with them."""
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise DataError(
            f"{path} is an Excel file, and openpyxl, which reads those, is not installed: "
            "pip install 'conclave-distill[excel]'. Or save the sheet as CSV."
        ) from None
    with path.open("rb") as file:
        if file.read(len(_OLD)) == _OLD:
            raise DataError(
                f"{path} has a password, or is of Excel's older kind (.xls). Save it as .xlsx without a password."
            )
    warnings.filterwarnings("ignore", module=r"openpyxl\.")  # they name cells: a date that is none, a style left out
    return load_workbook(path, read_only=True, data_only=True, keep_links=False)


@contextmanager
def _told(path: Path, how_far: str = "") -> Iterator[None]:
    """Turns what a broken file raises into a `DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or first_line(error)}.") from error
    except _BROKEN as error:
        why = "it is no whole Excel file (.xlsx)"
        raise DataError(
            f"{path} cannot be read{f' {how_far}' if how_far else ''}: {why} ({first_line(error)})."
        ) from error
