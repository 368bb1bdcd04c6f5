"""Reading text: a built-in corpus, local files, or a dataset of the Hugging Face hub, as a stream of documents.

Nothing here needs torch: nodes that answer health checks import this module.
"""

import glob
import hashlib
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from learning.errors import DataError
from learning.text import documentation, files, hub, spreadsheet
from learning.text.reading import UTF_8, Reading, offered
from learning.text.table import MAXIMUM_CELL, NOT_UTF8, TOO_LONG, Row, Table

NOTHING = "(nothing)"
"""The built-in source without documents, for a party that must go on without its text."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where text comes from, and which columns mean what.

    source: one of `documentation.NAMES`, such as `documentation` (see `learning.text.documentation`); a local file,
        glob or folder (.csv .tsv .jsonl .json .parquet .xlsx: a row is a document; .txt: a file is a document, with
        the columns `text` and `file`; all but .parquet and .xlsx also as .gz); otherwise a name on the hub.
    text, id, user, label: columns. Without `id` a document is known by the SHA-256 of its text.
    columns: further columns to keep.
    split, stream, config: for the hub only: which split, whether to stream it rather than cache it, which
    configuration.
    encoding, delimiter: of local files; what divides the columns of .csv and .tsv, by default a comma and a tab.
    sheet: of an Excel workbook, by default the only one that has rows.
    """

    source: str
    text: str = "text"
    id: str | None = None
    user: str | None = None
    label: str | None = None
    columns: tuple[str, ...] = ()
    split: str = "train"
    stream: bool = False
    config: str | None = None
    encoding: str = UTF_8
    delimiter: str | None = None
    sheet: str | None = None

    @property
    def mapped(self) -> tuple[str, ...]:
        """Every column that must exist, the text first, none twice."""
        named = (self.text, self.id, self.user, self.label, *self.columns)
        return tuple(dict.fromkeys(name for name in named if name is not None))


@dataclass(frozen=True, slots=True)
class Document:
    """One record: its id, its text, and the mapped columns other than the text, as strings, under their own names."""

    id: str
    text: str
    fields: Mapping[str, str]


@dataclass(slots=True)
class Skipped:
    """How many rows were left out, by reason. It counts; it never holds text."""

    reasons: Counter[str] = field(default_factory=Counter)

    @property
    def total(self) -> int:
        """How many rows were left out in all."""
        return self.reasons.total()


def read(source: Source, cache: Path, skipped: Skipped | None = None) -> Iterator[Document]:
    """Yield the documents of a PUBLIC source, or of one that its owner looks at, in its own order, one row in memory at
    a time (.txt and .json arrays: one file). Private text that anything is made of is read by `records`.

    cache: folder for what the hub sends; made with mode 0700. Local text is not written anywhere.
    skipped: gets the rows that cannot be used: no text, text that is not a string, no id, user or label, broken rows.
    Raises `DataError`, at the first document asked for: a file that is missing or not UTF-8, a column that is not there
    (naming those that are), a hub that does not give the dataset, a source of which no row is usable.
    """
    left_out = Skipped() if skipped is None else skipped
    before, found = left_out.reasons.copy(), False
    for document in _documents(source, cache, left_out, lenient=False):
        if document is not None:
            found = True
            yield document
    if not found:
        lost = left_out.reasons - before
        if not lost:
            raise DataError(f"{source.source} is empty: it has no document.", code="C204")
        why = ", ".join(f"{count:,} {'row' if count == 1 else 'rows'} {reason}" for reason, count in lost.most_common())
        raise DataError(
            f"{source.source} has no row that can be used ({why}). Check which column is the text.", code="C204"
        )


def records(source: Source, cache: Path, skipped: Skipped | None = None) -> Iterator[Document | None]:
    """Yield the documents of PRIVATE text, row by row as `read` does, and None in place of a row that cannot be used.

    The outcome of a row depends on that row alone, and no row ends the reading. Besides the rows that `read` leaves
    out, these cannot be used: lines that are not UTF-8 or longer than `MAXIMUM_CELL`, invalid CSV rows, JSON
    values that cannot be read or lack a mapped column, Parquet cells without a valid value, rows of a workbook that are
    not XML. No row at all is no error. Where a row ends is clear in JSON Lines and Parquet, whatever rows hold, but not
    in two kinds of file. An invalid
    CSV record costs its first line, and the next line begins a record; if a later row closes its quote after all, both
    are one. A .json array that is not valid JSON is divided at the commas between its brackets. Raises
    `DataError` for errors that no row decides: a file that is missing, a header that lacks a column, a broken Parquet
    file, a hub that does not give the dataset.
    """
    yield from _documents(source, cache, Skipped() if skipped is None else skipped, lenient=True)


def _documents(source: Source, cache: Path, left_out: Skipped, *, lenient: bool) -> Iterator[Document | None]:
    """The documents, None for a row that is left out and counted. lenient: as `records`, else as `read`."""
    for table in _tables(source, cache, lenient=lenient):
        table.require(source.mapped)
        for row in table.rows:
            document = row if isinstance(row, str) else _document(row, source)
            if isinstance(document, str):
                left_out.reasons[document] += 1
                yield None
            else:
                yield document


def columns(source: Source, cache: Path) -> list[str]:
    """Name the columns of a source's first file that is not empty. Raises `DataError` like `read`."""
    for table in _tables(source, cache, lenient=False):
        if table.columns:
            return list(table.columns)
    raise DataError(f"{source.source} is empty: it has no columns.", code="C204")


def tables(source: Source, cache: Path) -> Iterator[Table]:
    """The tables of a source that its owner looks at, whatever columns they have. Raises `DataError` like `read`."""
    return _tables(source, cache, lenient=False)


def first_file(source: str) -> Path | None:
    """The first local file of a source, None for a source that is none."""
    if source in documentation.NAMES:
        return None
    path = Path(source)
    inside = path.rglob("*") if path.is_dir() else map(Path, glob.glob(source, recursive=True))
    found = (each for each in sorted(inside) if each.is_file() and not each.name.startswith((".", "~$")))
    return path if path.is_file() else next(found, None)


def keys_offered(source: str) -> dict[str, str]:
    """`learning.text.reading.offered` of a source's first file. Raises `DataError`."""
    path = first_file(source)
    return {} if path is None else offered(path)


def sheets_of(source: str) -> list[str]:
    """The sheets with rows of a source's first file, where that is an Excel workbook. Raises `DataError`."""
    path = first_file(source)
    return [] if path is None or path.suffix != spreadsheet.XLSX else spreadsheet.sheets(path)


def _document(row: Row, source: Source) -> Document | str:
    text = row.get(source.text)
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError:
            return NOT_UTF8
    if text is None:
        return "no text"
    if not isinstance(text, str):
        return "not text"
    if not text.strip():
        return "no text"
    if len(text) > MAXIMUM_CELL:
        return TOO_LONG
    fields = {}
    for name in source.mapped[1:]:
        value = row.get(name)
        try:
            fields[name] = "" if value is None else str(value)
        except (ValueError, RecursionError):  # a number of many digits, lists within lists
            return f"with a {name} that is no text"
    for role, column in (("id", source.id), ("user", source.user), ("label", source.label)):
        if column is not None and not (text if column == source.text else fields[column]).strip():
            return f"no {role}"
    try:
        digest = hashlib.sha256(text.encode()).hexdigest()
        "".join(fields.values()).encode()
    except UnicodeEncodeError:  # a JSON file can spell half a surrogate pair
        return NOT_UTF8
    return Document(
        digest if source.id is None else (text if source.id == source.text else fields[source.id]), text, fields
    )


def _tables(source: Source, cache: Path, *, lenient: bool) -> Iterator[Table]:
    if source.source == NOTHING:
        return iter(())
    if source.source in documentation.NAMES:
        return _built_in(source.source)
    try:
        path = Path(source.source).expanduser()
    except RuntimeError:
        raise DataError(
            f"{source.source} does not exist: nobody here has that home. Give a file.", code="C201"
        ) from None
    how = Reading(lenient, source.encoding, source.delimiter, source.sheet)
    if path.is_dir():
        return files.tables_in(path, how)
    if path.exists():
        return iter([files.table_of(path, path.name, how)])
    if glob.has_magic(str(path)):
        return files.tables_matching(str(path), how)
    if not hub.is_hub_name(source.source):
        raise DataError(
            f"{source.source} does not exist. Give a file, a folder, a glob, or a dataset's name on the hub.",
            code="C201",
        )
    return hub.dataset(
        source.source, source.config, source.split, source.mapped, cache, stream=source.stream, lenient=lenient
    )


def _built_in(name: str) -> Iterator[Table]:
    rows = documentation.rows(name)
    try:
        first = next(rows)
    except FileNotFoundError as error:
        raise DataError(
            f"{name} cannot be read: {error}. Use a full Python installation, or another source."
        ) from error
    yield Table(name, documentation.COLUMNS, itertools.chain([first], rows))
