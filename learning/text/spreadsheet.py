"""Excel workbooks (.xlsx) as tables of text: one sheet, row by row, its cells as people see them.

A sheet's first row that holds anything names its columns. Whether a sheet is there, and which columns it has, follows
from that row alone, so that no later row, which may be a person's, decides whether a workbook can be read. In private
text no later row ends the reading either: each row, and each text that the workbook keeps apart from its sheets, is
parsed by itself (`learning.text.pieces`); a cell that cannot be read is empty, and a row that is not XML is one that
cannot be used. Where a row stands, whatever number it gives itself, is its place. Openpyxl, the extra `excel`, reads
what the workbook says of its sheets and cells: a sheet as a stream, the texts apart as a whole.
"""

import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from learning.errors import DataError
from learning.text.pieces import pieces
from learning.text.table import TOO_LONG, Row, Table, first_line, shown

XLSX: Final = ".xlsx"
_OLD: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
"""How an Excel file begins that is older than .xlsx, or has a password."""
_NO_XML: Final = "not XML"
"""Why a row is left out that cannot be parsed."""
_VALUE: Final = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}v"
_ZEROS: Final = re.compile(r"0{2,}")
_BROKEN: Final = (
    zipfile.BadZipFile, zlib.error, EOFError, SyntaxError, KeyError, IndexError, ValueError, TypeError,
    AttributeError, ArithmeticError, NotImplementedError, RuntimeError,
)  # fmt: skip
"""What openpyxl raises for files that are none of its kind: SyntaxError is XML's, RuntimeError a zip's password."""


class _Unreadable(Exception):
    """A part of a workbook that cannot be read, and with which strict reading ends."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row's cells, in their columns. damaged: why the whole row cannot be used, else empty. lacking: whether one of
    its cells could not be read, and is empty.
    """

    cells: tuple[str, ...]
    damaged: str = ""
    lacking: bool = False

    @property
    def holds(self) -> bool:
        """Whether it holds anything, or held something that cannot be read."""
        return bool(self.damaged) or self.lacking or any(cell.strip() for cell in self.cells)


@dataclass(frozen=True, slots=True)
class _Book:
    """A workbook that is open. sheets: where each is in it, by title and in order. texts: those that cells of all
    sheets refer to by number; None for one that cannot be read.
    """

    reader: Any
    sheets: dict[str, str]
    texts: list[str | None]

    def close(self) -> None:
        """Close the file."""
        self.reader.archive.close()


def table_of(path: Path, sheet: str | None, *, lenient: bool = False) -> Table:
    """The table of one sheet of a workbook: `sheet`, or the only one that has a first row.

    Its columns are the cells of that row; cells under none of them are left out, and so are empty rows. lenient: for
    private text; otherwise a row or cell that cannot be read ends the reading. Raises `DataError`: openpyxl is not
    installed, the file is broken or has a password, no such sheet, several sheets, two columns of one name.
    """
    with _told(path):
        with closing(_opened(path)) as book:
            heads = _heads(book)
        chosen = _chosen(path, heads, sheet)
        head = heads.get(chosen, ())
        twice = [name for name, times in Counter(filter(None, head)).items() if times > 1]
        if twice:
            raise DataError(f"{path} has two columns named {shown(twice[0])!r}. Rename one.")
    rows = _rows(path, chosen, head, lenient=lenient) if head else iter(())
    return Table(str(path), tuple(filter(None, head)), rows)


def sheets(path: Path) -> list[str]:
    """The sheets of a workbook that have a first row, in its own order. Raises `DataError` as `table_of`."""
    with _told(path), closing(_opened(path)) as book:
        return list(_heads(book))


def _heads(book: _Book) -> dict[str, tuple[str, ...]]:
    """The first row that holds anything, by sheet; a sheet without one is left out."""
    firsts = {title: next(_filled(book, title), None) for title in book.sheets}
    for first in firsts.values():
        if first is not None and (first.damaged or first.lacking):
            raise _Unreadable(f"its first row is {first.damaged or 'of cells that cannot be read'}")
    return {title: tuple(name.strip() for name in first.cells) for title, first in firsts.items() if first is not None}


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


def _rows(path: Path, title: str, head: Sequence[str], *, lenient: bool) -> Iterator[Row | str]:
    with _told(path, "to its end"), closing(_opened(path)) as book:
        rows = _filled(book, title)
        next(rows, None)
        for row in rows:
            if not lenient and (row.damaged or row.lacking):
                raise _Unreadable(f"a row is {row.damaged or 'of cells that cannot be read'}")
            if row.damaged:
                yield row.damaged
            else:
                cells = (*row.cells, *[""] * len(head))
                yield {name: value for name, value in zip(head, cells, strict=False) if name}


def _filled(book: _Book, title: str) -> Iterator[_Row]:
    """The rows of a sheet that hold anything, or might have."""
    from openpyxl.worksheet._reader import WorkSheetParser

    wb, texts = book.reader.wb, cast("Any", book.texts)
    with book.reader.archive.open(book.sheets[title]) as stream:
        parser = WorkSheetParser(
            BytesIO(),  # each row is given to it by itself
            texts,
            data_only=True,
            epoch=wb.epoch,
            date_formats=wb._date_formats,
            timedelta_formats=wb._timedelta_formats,
        )
        for piece in pieces(stream, "worksheet", "row"):
            row = _Row((), TOO_LONG) if piece is None else _row(piece, parser, wb)
            if row.holds:
                yield row


def _row(piece: bytes, parser: Any, book: Any) -> _Row:
    """A row from its XML. What it is depends on it alone, and on the texts that its cells refer to."""
    from openpyxl.xml.functions import fromstring

    try:
        (found,) = fromstring(piece)
    except _BROKEN:
        return _Row((), _NO_XML)
    parser.row_counter = parser.col_counter = 0
    cells: dict[int, str] = {}
    lacking = False
    for each in found:
        try:
            number = each.findtext(_VALUE) if each.get("t") == "s" else None
            if number and (int(number) < 0 or parser.shared_strings[int(number)] is None):
                raise IndexError(f"text {number} cannot be read")
            cell = parser.parse_cell(each)
            cells[cell["column"]] = _text(cell, book)
        except _BROKEN:
            lacking = True
    return _Row(tuple(cells.get(column, "") for column in range(1, max(cells, default=0) + 1)), lacking=lacking)


def _text(cell: dict[str, Any], book: Any) -> str:
    """A cell as people see it: 1 and not 1.0, dates by ISO 8601; empty for no value, or an error in its place."""
    value = cell["value"]
    if value is None or cell["data_type"] == "e":
        return ""
    match value:
        case str():
            return value
        case bool():
            return "TRUE" if value else "FALSE"
        case int() | float():
            return _number(value, _form(cell, book))
        case datetime():
            return (value.date() if value.time() == time() else value).isoformat()
        case date() | time():
            return value.isoformat()
        case timedelta():
            return f"{value.total_seconds() / 86_400:.15g}"
    return str(value)


def _form(cell: dict[str, Any], book: Any) -> str:
    """The number format of a cell, such as 00000."""
    from openpyxl.cell.read_only import ReadOnlyCell

    sheet: Any = SimpleNamespace(parent=book)
    return str(ReadOnlyCell(sheet, **cell).number_format)


def _number(value: int | float, form: str) -> str:
    """Whole numbers without a point, with the leading zeros of a form such as 00000; others to Excel's 15 digits."""
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        whole = str(int(value))
        return whole.zfill(len(form)) if value >= 0 and _ZEROS.fullmatch(form) else whole
    return f"{value:.15g}"


def _opened(path: Path) -> _Book:
    """The workbook, to be read only, formulas by the values that were stored with them."""
    try:
        import openpyxl  # noqa: F401 - what comes after it may be there without it
        from openpyxl.reader.excel import ExcelReader
        from openpyxl.styles.stylesheet import apply_stylesheet
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
    reader = ExcelReader(path, read_only=True, data_only=True, keep_links=False)
    try:
        reader.read_manifest()
        reader.read_workbook()
        apply_stylesheet(reader.archive, reader.wb)
        found = [(sheet.name, rel) for sheet, rel in reader.parser.find_sheets()]
        places = {
            name: rel.target for name, rel in found if rel.target in reader.valid_files and "chartsheet" not in rel.Type
        }
        return _Book(reader, places, _texts(reader))
    except BaseException:
        reader.archive.close()
        raise


def _texts(reader: Any) -> list[str | None]:
    """The texts that a workbook keeps apart from its sheets, by their numbers."""
    from openpyxl.xml.constants import SHARED_STRINGS

    if (kept := reader.package.find(SHARED_STRINGS)) is None:
        return []
    with reader.archive.open(kept.PartName[1:]) as stream:
        return [None if piece is None else _shared(piece) for piece in pieces(stream, "sst", "si")]


def _shared(piece: bytes) -> str | None:
    from openpyxl.cell.text import Text
    from openpyxl.xml.functions import fromstring

    try:
        found: Any
        (found,) = fromstring(piece)
        return str(cast("Any", Text.from_tree(found)).content).replace("x005F_", "")
    except _BROKEN:
        return None


@contextmanager
def _told(path: Path, how_far: str = "") -> Iterator[None]:
    """Turns what a broken file raises into a `DataError`."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or first_line(error)}.") from error
    except (_Unreadable, *_BROKEN) as error:
        why = "it is no whole Excel file (.xlsx)"
        raise DataError(
            f"{path} cannot be read{f' {how_far}' if how_far else ''}: {why} ({first_line(error)})."
        ) from error
