"""Local files as tables of text, read in place, row by row: .csv .tsv .jsonl .json .parquet .xlsx .txt, and `.gz` of
all but .parquet and .xlsx.

Files are not copied. Nothing here needs torch.
"""

import codecs
import csv
import glob
import itertools
import json
import re
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from learning.errors import DataError
from learning.text import spreadsheet
from learning.text.reading import BROKEN, GZIP, UTF_8, Reading, advice, ending, opened
from learning.text.table import MAXIMUM_CELL, NOT_UTF8, TOO_LONG, Row, Table, first_line, shown

LOOK_AHEAD = 100
"""Rows of a JSON file that are read to find its columns."""

_TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet", spreadsheet.XLSX)
_PLAIN = (".txt",)
_PACKED = (".parquet", spreadsheet.XLSX)
"""Files that are compressed already, and that have no encoding."""
ENDINGS = (*_TABLES, *_PLAIN, GZIP)
"""File name endings that can be read."""

_JSON_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)


def tables_matching(pattern: str, how: Reading) -> Iterator[Table]:
    """The tables of the files that a glob names, in the order of their paths. Raises `DataError` if it names none."""
    paths = sorted(
        Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file() and not _lock(name)
    )
    if not paths:
        raise DataError(f"{pattern} matches no file.", code="C201")
    return (table_of(path, path.name, how) for path in paths)


def tables_in(folder: Path, how: Reading) -> Iterator[Table]:
    """The tables of the files below a folder, in the order of their paths; hidden files are left out.

    Raises `DataError` for a folder without a file that can be read, or with rows of two kinds.
    """
    inside = sorted(
        path for path in folder.rglob("*") if path.is_file() and not _lock(path) and not path.name.startswith(".")
    )
    tables = [path for path in inside if _readable(path) and ending(path) in _TABLES]
    plain = [path for path in inside if _readable(path) and ending(path) in _PLAIN]
    if tables and plain:
        raise DataError(
            f"{folder} holds both {tables[0].name} (a row is a document) and {plain[0].name} (a file is a document). "
            "Give a glob that names one kind."
        )
    if not tables and not plain:
        raise DataError(f"{folder} holds no file that ends in {' '.join(ENDINGS)}.", code="C201")
    return (table_of(path, path.relative_to(folder).as_posix(), how) for path in tables or plain)


def _lock(path: str | Path) -> bool:
    """Whether a file is what Excel leaves beside one that is open."""
    return Path(path).name.startswith("~$")


def _readable(path: Path) -> bool:
    return path.suffix in ENDINGS and (path.suffix != GZIP or ending(path) in (*_TABLES, *_PLAIN))


def table_of(path: Path, name: str, how: Reading) -> Table:
    """The table of one file. name: what its rows call it.

    Raises `DataError` for another ending, and for a file that cannot be opened or whose columns cannot be read.
    """
    readers = {".csv": _csv, ".tsv": _csv, ".jsonl": _json_lines, ".json": _json, ".parquet": _parquet, ".txt": _plain}
    readers[spreadsheet.XLSX] = _xlsx
    if ending(path) not in readers or (path.suffix == GZIP and ending(path) in _PACKED):
        raise DataError(f"{path} is of no kind that can be read. Known endings: {' '.join(readers)}.")
    try:
        return readers[ending(path)](path, name, how)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or first_line(error)}.") from error


def _lines(path: Path, how: Reading) -> Iterator[str]:
    """Lines with their ends, decoded one by one so that the message can name the line.

    Where reading is lenient, an invalid byte becomes half a surrogate pair, by which a document recognises the bad row.
    """
    errors = "surrogateescape" if how.lenient else "strict"
    try:
        with opened(path) as file:
            for number, line in enumerate(file, start=1):
                line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                try:
                    yield line.decode(how.encoding, errors)
                except UnicodeDecodeError as error:
                    if how.encoding == UTF_8:
                        raise DataError(f"{path}, line {number}: not UTF-8. {advice(path)}") from error
                    raise DataError(f'{path}, line {number}: not of the encoding "{how.encoding}".') from error
    except (*BROKEN, OSError) as error:
        raise DataError(f"{path} cannot be read: {_why(error)}.") from error


def _why(error: Exception) -> str:
    if isinstance(error, BROKEN):
        return f"it is no whole gzip file ({first_line(error)})"
    return getattr(error, "strerror", None) or first_line(error)


def _bounded_lines(path: Path, encoding: str) -> Iterator[str | None]:
    """Lines as of a lenient `_lines`, None for one that is longer than `MAXIMUM_CELL` bytes: it is never held whole."""
    try:
        with opened(path) as file:
            line = file.readline(MAXIMUM_CELL).removeprefix(codecs.BOM_UTF8)
            while line:
                whole = len(line) < MAXIMUM_CELL or line.endswith(b"\n")
                yield line.decode(encoding, "surrogateescape") if whole else None
                while not whole:
                    rest = file.readline(MAXIMUM_CELL)
                    whole = not rest or rest.endswith(b"\n")
                line = file.readline(MAXIMUM_CELL)
    except (*BROKEN, OSError) as error:
        raise DataError(f"{path} cannot be read: {_why(error)}.") from error


def _plain(path: Path, name: str, how: Reading) -> Table:
    def rows() -> Iterator[Row | str]:
        if how.lenient and _long(path):
            yield TOO_LONG
        else:
            yield {"text": "".join(_lines(path, how)), "file": name}

    return Table(str(path), ("text", "file"), rows())


def _long(path: Path) -> bool:
    """Whether a file has more bytes than a text may have. Raises `DataError`."""
    if path.suffix != GZIP:
        return path.stat().st_size > MAXIMUM_CELL
    try:
        with opened(path) as file:
            return len(file.read(MAXIMUM_CELL + 1)) > MAXIMUM_CELL
    except (*BROKEN, OSError) as error:
        raise DataError(f"{path} cannot be read: {_why(error)}.") from error


def _csv(path: Path, name: str, how: Reading) -> Table:
    csv.field_size_limit(MAXIMUM_CELL)
    delimiter = how.delimiter or ("\t" if ending(path) == ".tsv" else ",")
    found = _lenient_csv(path, delimiter, how) if how.lenient else _strict_csv(path, delimiter, how)
    cells = (row for row in found if row)
    header = next(cells, [])
    if isinstance(header, str):
        raise DataError(f"{path} has a first line that is {header}. Name its columns there.")
    twice = [column for column, times in Counter(header).items() if times > 1]
    if twice:
        raise DataError(f"{path} has two columns named {shown(twice[0])!r}. Rename one.")

    def rows() -> Iterator[Row | str]:
        for row in cells:
            if isinstance(row, str):
                yield row
            else:
                yield (
                    dict(zip(header, row, strict=True)) if len(row) == len(header) else "with another number of columns"
                )

    return Table(str(path), tuple(header), rows())


def _strict_csv(path: Path, delimiter: str, how: Reading) -> Iterator[list[str]]:
    reader = csv.reader(_lines(path, how), delimiter=delimiter, strict=True)
    try:
        yield from reader
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not a CSV row ({first_line(error)}).") from error


def _lenient_csv(path: Path, delimiter: str, how: Reading) -> Iterator[list[str] | str]:
    """Records, or a string in place of an invalid one: it costs its first line, and the further lines that it took are
    read again.
    """
    feed = _Feed(_bounded_lines(path, how.encoding))
    reader = csv.reader(feed, delimiter=delimiter, strict=True)
    while True:
        feed.taken.clear()
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            feed.back()
            yield "not a CSV row"


class _Feed(Iterator[str]):
    """Lines for a reader of CSV, which can be given back: `taken` are those since it was last emptied."""

    def __init__(self, lines: Iterator[str | None]):
        self._lines = lines
        self._waiting: deque[str | None] = deque()
        self.taken: list[str | None] = []

    def __next__(self) -> str:
        line = self._waiting.popleft() if self._waiting else next(self._lines)
        self.taken.append(line)
        if line is None:
            raise csv.Error(TOO_LONG)
        return line

    def back(self) -> None:
        """Give back all but the first."""
        self._waiting.extendleft(reversed(self.taken[1:]))


def _objects(name: str, values: Iterator[object], how: Reading) -> Table:
    """A table of JSON values: its columns are the keys of the first rows that are objects; none where it is lenient.

    A string among the values is why a row cannot be read.
    """
    ahead = [] if how.lenient else list(itertools.islice(values, LOOK_AHEAD))
    columns = dict.fromkeys(key for value in ahead if isinstance(value, dict) for key in value)
    rows = (value if isinstance(value, dict | str) else "not an object" for value in itertools.chain(ahead, values))
    return Table(name, tuple(columns), rows)


def _json_lines(path: Path, name: str, how: Reading) -> Table:
    def values() -> Iterator[object]:
        for line in _bounded_lines(path, how.encoding) if how.lenient else _lines(path, how):
            if line is None:
                yield TOO_LONG
            elif line.strip():
                yield _value(line)

    return _objects(str(path), values(), how)


def _value(text: str) -> object:
    """What a row's JSON says, but a string for what is not to be used: why it is not."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "not JSON"
    return "not an object" if isinstance(value, str) else value


def _json(path: Path, name: str, how: Reading) -> Table:
    """A .json file is an array of objects, or JSON Lines under another name.

    It is an array if its first line begins one and does not end it, or is its only one: a row may be an array too.
    """
    lines = (line for line in _lines(path, how) if line.strip())
    opening, more = next(lines, ""), next(lines, None)
    if not opening.lstrip().startswith("[") or (more is not None and _value(opening) != "not JSON"):
        return _json_lines(path, name, how)
    content = "".join(_lines(path, how))
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        if not how.lenient:
            raise DataError(f"{path} is not JSON: {error}.") from error
        if more is not None and _value(more) != "not JSON":  # in an array a comma follows it, or the array's end
            return _json_lines(path, name, how)
        return _objects(str(path), map(_value, _elements(content)), how)
    return _objects(str(path), ("not an object" if isinstance(value, str) else value for value in values), how)


def _elements(array: str) -> Iterator[str]:
    """The elements of a JSON array as they stand there, told apart by commas, brackets and strings alone."""
    start, depth = array.index("[") + 1, 0
    for found in _JSON_MARK.finditer(array, start):
        mark = found.group()[0]
        if mark in "[{":
            depth += 1
        elif mark in "]}":
            depth -= 1
        if depth < 0:
            break
        if mark == "," and depth == 0:
            yield array[start : found.start()]
            start = found.end()
    rest = array[start : found.start()] if depth < 0 else array[start:]
    if rest.strip():
        yield rest


def _parquet(path: Path, name: str, how: Reading) -> Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        names = tuple(file.schema_arrow.names)
    except (pa.ArrowException, UnicodeDecodeError) as error:  # the second for a column's name
        raise DataError(f"{path} is not a Parquet file: {first_line(error)}.") from error

    def rows() -> Iterator[Row | str]:
        with closing(file):
            try:
                for batch in file.iter_batches(batch_size=256):
                    for index in range(batch.num_rows):
                        try:
                            yield {column: batch.column(column)[index].as_py() for column in batch.schema.names}
                        except UnicodeDecodeError:
                            yield NOT_UTF8
                        except (ValueError, OverflowError):  # a time that Python has no value for
                            if not how.lenient:
                                raise
                            yield "with a cell that is no value"
            except (OSError, pa.ArrowException) as error:
                raise DataError(f"{path} cannot be read to its end: {first_line(error)}.") from error

    return Table(str(path), names, rows())


def _xlsx(path: Path, name: str, how: Reading) -> Table:
    return spreadsheet.table_of(path, how.sheet, lenient=how.lenient)
