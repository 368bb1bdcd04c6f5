"""The files of a public corpus, read in place: JSON lines, each of which is a row, and plain texts. No torch."""

import codecs
import glob
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from learning.errors import DataError
from learning.text.files import LOOK_AHEAD
from learning.text.table import LONGEST

LONGEST_ROW: Final = 16 * 2**20
"""Bytes that one line of JSON, or one plain text file, may have."""
NO_TEXT: Final = "no text"

_LINES, _PLAIN = (".jsonl", ".ndjson"), (".txt",)


@dataclass(frozen=True, slots=True)
class CorpusSource:
    """One part of a corpus, and which of its rows are used.

    source: a file, a glob or a folder: .jsonl or .ndjson, where a line is a row; .txt, where a file is a row with the
        column `text`, as in `learning.text.source`.
    text, second: the columns of a row's text, and of its second text in a corpus of pairs.
    take: (n, r) uses the rows whose place in this source, from 0, leaves r when divided by n. Lines without a usable
        text have a place too, blank lines have none, so (2, 0) and (2, 1) are two halves without a row in common.
    limit: of rows used, those that repeat an earlier one counted among them.
    Raises `DataError` for a `take` or a `limit` that leaves nothing.
    """

    source: str
    text: str = "text"
    second: str | None = None
    take: tuple[int, int] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.take is not None and not 0 <= self.take[1] < self.take[0]:
            raise DataError(f"{self.source}: take = {list(self.take)} must be [n, r] with r from 0 to n - 1.")
        if self.limit is not None and self.limit < 1:
            raise DataError(f"{self.source}: limit = {self.limit} leaves no row. Give 1 or more.")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read: one, or two of a corpus of pairs."""
        return (self.text,) if self.second is None else (self.text, self.second)


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file of the corpus as it was when the index was made: its columns, and the number of its first row."""

    path: str
    columns: tuple[str, ...]
    first: int
    size: int
    modified: int


def rows_of(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, tuple[str, ...] | str]]:
    """The rows of a file: the byte where each begins, and its texts or the reason why it has none.

    Raises `DataError` naming the file and the line.
    """
    if path.suffix in _PLAIN:
        if columns != ("text",):
            raise DataError(
                f"{path} has no column {next(c for c in columns if c != 'text')!r}. Its columns are: text.", code="C203"
            )
        with path.open("rb") as file:
            yield 0, _plain(file, path)
        return
    seen: dict[str, None] = {}
    number = rows = offset = 0
    with path.open("rb") as file:
        while line := file.readline(LONGEST_ROW + 1):
            number, start, offset = number + 1, offset, offset + len(line)
            if not line.strip():
                continue
            row = _object(line, start, f"{path}, line {number}")
            rows += 1
            if rows <= LOOK_AHEAD:
                seen |= dict.fromkeys(row)
            if rows == LOOK_AHEAD:
                _require(path, columns, seen)
            yield start, _texts(row, columns, f"{path}, line {number}")
    if 0 < rows < LOOK_AHEAD:
        _require(path, columns, seen)


def _require(path: Path, columns: tuple[str, ...], seen: Iterable[str]) -> None:
    for column in columns:
        if column not in seen:
            listed = "".join(each if each.isprintable() else "?" for each in ", ".join(seen)[:LONGEST])
            raise DataError(f"{path} has no column {column!r}. Its columns are: {listed}.", code="C203")


def _object(line: bytes, offset: int, where: str) -> dict[str, object]:
    if len(line) > LONGEST_ROW:
        raise DataError(f"{where}: longer than {LONGEST_ROW // 2**20} MiB. Cut its text into passages.")
    try:
        value = json.loads((line if offset else line.removeprefix(codecs.BOM_UTF8)).decode())
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8. Convert the file, then try again.") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON. Repair or remove the line.") from error
    if not isinstance(value, dict):
        raise DataError(f'{where}: not an object. A line is like {{"text": "..."}}.')
    return value


def _texts(row: Mapping[str, object], columns: tuple[str, ...], where: str) -> tuple[str, ...] | str:
    texts: list[str] = []
    for column in columns:
        text = row.get(column)
        if text is None or (isinstance(text, str) and not text.strip()):
            return NO_TEXT if not texts else "no second text"
        if not isinstance(text, str):
            raise DataError(f"{where}: {column!r} is no text. Name the column that holds it.", code="C203")
        try:
            text.encode()
        except UnicodeEncodeError:  # JSON can spell half a surrogate pair
            return "not UTF-8"
        texts.append(text)
    return tuple(texts)


def _plain(file: IO[bytes], path: Path) -> tuple[str, ...] | str:
    content = file.read(LONGEST_ROW + 1)
    if len(content) > LONGEST_ROW:
        raise DataError(
            f"{path} is longer than {LONGEST_ROW // 2**20} MiB. Cut it into passages, as lines of a .jsonl."
        )
    try:
        text = content.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8. Convert the file, then try again.") from error
    return (text,) if text.strip() else NO_TEXT


def opened_again(file: CorpusFile) -> IO[bytes]:
    """Open a file that is the same as when it was indexed. Raises `DataError` if it is gone or was changed."""
    path = Path(file.path)
    try:
        stat = path.stat()
        if (stat.st_size, stat.st_mtime_ns) == (file.size, file.modified):
            return path.open("rb")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error
    raise DataError(f"{path} was changed after the corpus was indexed. Start again from the files as they are.")


def row_at(opened: IO[bytes], file: CorpusFile, offset: int) -> tuple[str, ...]:
    """The texts of the row that begins at a byte of an open file. Raises `DataError` where no row is there any more."""
    path = Path(file.path)
    opened.seek(offset)
    if path.suffix in _PLAIN:
        row = _plain(opened, path)
    else:
        row = _texts(_object(opened.readline(LONGEST_ROW + 1), offset, str(path)), file.columns, str(path))
    if isinstance(row, str):
        raise DataError(f"{path} was changed after the corpus was indexed. Start again from the files as they are.")
    return row


def files_of(source: CorpusSource) -> list[Path]:
    """A source's files, sorted. Raises `DataError` for no file, one that cannot be read in place, or two kinds."""
    path = Path(source.source)
    if path.is_dir():
        inside = [each for each in path.rglob("*") if each.is_file() and not each.name.startswith(".")]
        found = sorted(each for each in inside if each.suffix in (*_LINES, *_PLAIN))
        if not found:
            raise DataError(f"{path} holds no file that ends in {' '.join((*_LINES, *_PLAIN))}.", code="C201")
    elif path.exists():
        found = [path]
    elif glob.has_magic(source.source):
        found = sorted(Path(name) for name in glob.glob(source.source, recursive=True) if Path(name).is_file())
        if not found:
            raise DataError(f"{source.source} matches no file.", code="C201")
    else:
        raise DataError(f"{source.source} does not exist. Give a file, a folder or a glob.", code="C201")
    for each in found:
        if each.suffix not in (*_LINES, *_PLAIN):
            raise DataError(f"{each} is of no kind that a corpus can be read from in place. Give .jsonl or .txt files.")
    if len({each.suffix in _PLAIN for each in found}) > 1:
        raise DataError(
            f"{source.source} holds both .txt (a file is a row) and .jsonl (a line is a row). Give a glob of one kind."
        )
    return found
