"""Reading text: a built-in corpus, local files, or a dataset of the Hugging Face hub, as a stream of documents.

Local files are read in place, row by row; nothing of them is copied. Only what comes from the hub is cached, in a
folder that nobody else may enter. Nothing here needs torch: nodes that answer health checks import this module.
"""

import codecs
import csv
import glob
import hashlib
import itertools
import json
import logging
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from aggregation.errors import ConclaveError
from learning.text import documentation

Row = Mapping[str, object]

HUB_TIMEOUT = 10.0
"""Seconds to wait for the hub's first answer before only the cache is tried."""
LOOK_AHEAD = 100
"""Rows of a JSON file that are looked at to know its columns."""
LONGEST = 300
"""Characters of what a file says, in a message about it."""
MAXIMUM_CELL = 16 * 1024 * 1024
"""Characters that one text, one CSV cell, and of private text one line or one .txt file, may have."""

NOTHING = "(nothing)"
"""The built-in source of no document: what a party reads that must go on without its text."""

_TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
_PLAIN = (".txt",)
_JSON_MARK = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)
_TOO_LONG = f"with more than {MAXIMUM_CELL:,} characters"
_NOT_UTF8 = "not UTF-8"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


class DataError(ConclaveError):
    """Text that cannot be read as the plan or the party's file describes it. The message names the file."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where text comes from, and which columns mean what.

    source: `documentation`, `documentation-heldout` or `documentation-topics` (see `learning.text.documentation`); a
    local
        file, glob or folder (.csv .tsv .jsonl .json .parquet: a row is a document; .txt: a file is a document, with the
        columns `text` and `file`); otherwise a name on the hub.
    text, id, user, label: columns. Without `id` a document is known by the SHA-256 of its text.
    columns: further columns to keep.
    split, stream, config: for the hub only: which split, whether to stream it rather than cache it, which
    configuration.
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
        return self.reasons.total()


def read(source: Source, cache: Path, skipped: Skipped | None = None) -> Iterator[Document]:
    """Yield the documents of a PUBLIC source, or of one that its owner looks at, in its own order, one row in memory at
    a time (.txt and .json arrays: one file). Private text that anything is made of is read by `records`.

    cache: folder for what the hub sends; made with mode 0700. Local and built-in text is not written anywhere.
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
            raise DataError(f"{source.source} is empty: it has no document.")
        why = ", ".join(f"{count:,} {'row' if count == 1 else 'rows'} {reason}" for reason, count in lost.most_common())
        raise DataError(f"{source.source} has no row that can be used ({why}). Check which column is the text.")


def records(source: Source, cache: Path, skipped: Skipped | None = None) -> Iterator[Document | None]:
    """Yield what PRIVATE text has, row by row as `read` does, and None in the place of a row that cannot be used.

    What becomes of a row depends on that row alone, and no row ends the reading. Beside what `read` leaves out, these
    are rows that cannot be used: lines that are not UTF-8 or longer than `MAXIMUM_CELL`, what is no CSV row, JSON
    values that cannot be read or lack a mapped column, Parquet cells that are no value. No row at all is no error.
    Two kinds of file have no such rows by themselves. A CSV record that is none costs its first line, and the next line
    begins a record; where its quote is closed by a later row after all, both are one. A .json array that is not JSON is
    divided at the commas between its brackets. JSON Lines and Parquet divide rows whatever these hold.
    Raises `DataError` for what no row decides: a file that is missing, a header that lacks a column, a broken Parquet
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
    raise DataError(f"{source.source} is empty: it has no columns.")


@dataclass(frozen=True, slots=True)
class _Table:
    """One file's columns, and its rows: a string in place of a row is the reason why that row is no use.

    columns: none where its rows alone could tell them and are not to: then every row answers for itself.
    """

    name: str
    columns: tuple[str, ...]
    rows: Iterator[Row | str]

    def require(self, needed: Iterable[str]) -> None:
        absent = [name for name in needed if name not in self.columns]
        if absent and self.columns:
            raise DataError(
                f"{self.name} has no column {absent[0]!r}. Its columns are: {_shown(', '.join(self.columns))}."
            )


def _document(row: Row, source: Source) -> Document | str:
    text = row.get(source.text)
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError:
            return _NOT_UTF8
    if text is None:
        return "no text"
    if not isinstance(text, str):
        return "not text"
    if not text.strip():
        return "no text"
    if len(text) > MAXIMUM_CELL:
        return _TOO_LONG
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
        return _NOT_UTF8
    return Document(
        digest if source.id is None else (text if source.id == source.text else fields[source.id]), text, fields
    )


def _tables(source: Source, cache: Path, *, lenient: bool) -> Iterator[_Table]:
    if source.source == NOTHING:
        return iter(())
    if source.source in documentation.NAMES:
        return _built_in(source.source)
    try:
        path = Path(source.source).expanduser()
    except RuntimeError:
        raise DataError(f"{source.source} does not exist: nobody here has that home. Give a file.") from None
    if path.is_dir():
        return _folder(path, lenient)
    if path.exists():
        return iter([_file(path, path.name, lenient)])
    if glob.has_magic(str(path)):
        return _matching(str(path), lenient)
    if not is_hub_name(source.source):
        raise DataError(
            f"{source.source} does not exist. Give a file, a folder, a glob, or a dataset's name on the hub."
        )
    return _hub(source, cache, lenient)


def is_hub_name(name: str) -> bool:
    """Whether a name could be that of a dataset, or of a model, on the hub: no path, and no file's ending."""
    return Path(name).suffix not in (*_TABLES, *_PLAIN) and _HUB_NAME.fullmatch(name) is not None


def _built_in(name: str) -> Iterator[_Table]:
    rows = documentation.rows(name)
    try:
        first = next(rows)
    except FileNotFoundError as error:
        raise DataError(
            f"{name} cannot be read: {error}. Use a full Python installation, or another source."
        ) from error
    yield _Table(name, documentation.COLUMNS, itertools.chain([first], rows))


def _matching(pattern: str, lenient: bool) -> Iterator[_Table]:
    paths = sorted(Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
    if not paths:
        raise DataError(f"{pattern} matches no file.")
    return (_file(path, path.name, lenient) for path in paths)


def _folder(folder: Path, lenient: bool) -> Iterator[_Table]:
    inside = sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))
    tables = [path for path in inside if path.suffix in _TABLES]
    plain = [path for path in inside if path.suffix in _PLAIN]
    if tables and plain:
        raise DataError(
            f"{folder} holds both {tables[0].name} (a row is a document) and {plain[0].name} (a file is a document). "
            "Give a glob that names one kind."
        )
    if not tables and not plain:
        raise DataError(f"{folder} holds no file that ends in {' '.join((*_TABLES, *_PLAIN))}.")
    return (_file(path, path.relative_to(folder).as_posix(), lenient) for path in tables or plain)


def _file(path: Path, name: str, lenient: bool) -> _Table:
    readers = {".csv": _csv, ".tsv": _csv, ".jsonl": _json_lines, ".json": _json, ".parquet": _parquet, ".txt": _plain}
    if path.suffix not in readers:
        raise DataError(f"{path} is of no kind that can be read. Known endings: {' '.join(readers)}.")
    try:
        return readers[path.suffix](path, name, lenient)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or _first_line(error)}.") from error


def _lines(path: Path, lenient: bool = False) -> Iterator[str]:
    """Lines with their ends, decoded one by one so that the message can name the line.

    lenient: a byte that is none of UTF-8 becomes half a surrogate pair, by which `_document` knows the row it is in.
    """
    errors = "surrogateescape" if lenient else "strict"
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield (line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).decode(errors=errors)
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}, line {number}: not UTF-8. Convert the file, then try again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _bounded_lines(path: Path) -> Iterator[str | None]:
    """Lines as of a lenient `_lines`, None for one that is longer than `MAXIMUM_CELL` bytes: it is never held whole."""
    try:
        with path.open("rb") as file:
            line = file.readline(MAXIMUM_CELL).removeprefix(codecs.BOM_UTF8)
            while line:
                whole = len(line) < MAXIMUM_CELL or line.endswith(b"\n")
                yield line.decode(errors="surrogateescape") if whole else None
                while not whole:
                    rest = file.readline(MAXIMUM_CELL)
                    whole = not rest or rest.endswith(b"\n")
                line = file.readline(MAXIMUM_CELL)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _plain(path: Path, name: str, lenient: bool) -> _Table:
    def rows() -> Iterator[Row | str]:
        if lenient and path.stat().st_size > MAXIMUM_CELL:
            yield _TOO_LONG
        else:
            yield {"text": "".join(_lines(path, lenient)), "file": name}

    return _Table(str(path), ("text", "file"), rows())


def _csv(path: Path, name: str, lenient: bool) -> _Table:
    csv.field_size_limit(MAXIMUM_CELL)
    delimiter = "\t" if path.suffix == ".tsv" else ","
    found = _lenient_csv(path, delimiter) if lenient else _strict_csv(path, delimiter)
    cells = (row for row in found if row)
    header = next(cells, [])
    if isinstance(header, str):
        raise DataError(f"{path} has a first line that is {header}. Name its columns there.")
    twice = [column for column, times in Counter(header).items() if times > 1]
    if twice:
        raise DataError(f"{path} has two columns named {_shown(twice[0])!r}. Rename one.")

    def rows() -> Iterator[Row | str]:
        for row in cells:
            if isinstance(row, str):
                yield row
            else:
                yield (
                    dict(zip(header, row, strict=True)) if len(row) == len(header) else "with another number of columns"
                )

    return _Table(str(path), tuple(header), rows())


def _strict_csv(path: Path, delimiter: str) -> Iterator[list[str]]:
    reader = csv.reader(_lines(path), delimiter=delimiter, strict=True)
    try:
        yield from reader
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not a CSV row ({_first_line(error)}).") from error


def _lenient_csv(path: Path, delimiter: str) -> Iterator[list[str] | str]:
    """Records, a string in place of what is none: it costs its first line, and the lines that it took for its own are
    read again.
    """
    feed = _Feed(_bounded_lines(path))
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
            raise csv.Error(_TOO_LONG)
        return line

    def back(self) -> None:
        """Give back all but the first."""
        self._waiting.extendleft(reversed(self.taken[1:]))


def _objects(name: str, values: Iterator[object], lenient: bool) -> _Table:
    """A table of JSON values: its columns are the keys of the first rows that are objects; lenient: none.

    A string among the values is why a row cannot be read.
    """
    ahead = [] if lenient else list(itertools.islice(values, LOOK_AHEAD))
    columns = dict.fromkeys(key for value in ahead if isinstance(value, dict) for key in value)
    rows = (value if isinstance(value, dict | str) else "not an object" for value in itertools.chain(ahead, values))
    return _Table(name, tuple(columns), rows)


def _json_lines(path: Path, name: str, lenient: bool) -> _Table:
    def values() -> Iterator[object]:
        for line in _bounded_lines(path) if lenient else _lines(path):
            if line is None:
                yield _TOO_LONG
            elif line.strip():
                yield _value(line)

    return _objects(str(path), values(), lenient)


def _value(text: str) -> object:
    """What a row's JSON says, but a string for what is not to be used: why it is not."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return "not JSON"
    return "not an object" if isinstance(value, str) else value


def _json(path: Path, name: str, lenient: bool) -> _Table:
    """A .json file is an array of objects, or JSON Lines under another name.

    It is an array if its first line begins one and does not end it, or is its only one: a row may be an array too.
    """
    lines = (line for line in _lines(path, lenient) if line.strip())
    opening, more = next(lines, ""), next(lines, None)
    if not opening.lstrip().startswith("[") or (more is not None and _value(opening) != "not JSON"):
        return _json_lines(path, name, lenient)
    content = "".join(_lines(path, lenient))
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:
        if not lenient:
            raise DataError(f"{path} is not JSON: {error}.") from error
        if more is not None and _value(more) != "not JSON":  # in an array a comma follows it, or the array's end
            return _json_lines(path, name, lenient)
        return _objects(str(path), map(_value, _elements(content)), lenient)
    return _objects(str(path), ("not an object" if isinstance(value, str) else value for value in values), lenient)


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


def _parquet(path: Path, name: str, lenient: bool) -> _Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
        names = tuple(file.schema_arrow.names)
    except (pa.ArrowException, UnicodeDecodeError) as error:  # the second for a column's name
        raise DataError(f"{path} is not a Parquet file: {_first_line(error)}.") from error

    def rows() -> Iterator[Row | str]:
        with closing(file):
            try:
                for batch in file.iter_batches(batch_size=256):
                    for index in range(batch.num_rows):
                        try:
                            yield {column: batch.column(column)[index].as_py() for column in batch.schema.names}
                        except UnicodeDecodeError:
                            yield _NOT_UTF8
                        except (ValueError, OverflowError):  # a time that Python has no value for
                            if not lenient:
                                raise
                            yield "with a cell that is no value"
            except (OSError, pa.ArrowException) as error:
                raise DataError(f"{path} cannot be read to its end: {_first_line(error)}.") from error

    return _Table(str(path), names, rows())


def _hub(source: Source, cache: Path, lenient: bool) -> Iterator[_Table]:
    import datasets
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    folder = private_folder(cache)
    # The bases of the hub's error are those of the HTTP library it uses, which differs between its versions.
    problems = (
        OSError,
        ValueError,
        KeyError,
        RuntimeError,
        datasets.exceptions.DatasetsError,
        *HfHubHTTPError.__bases__,
    )
    reason = silence_of(constants.ENDPOINT) if not constants.HF_HUB_OFFLINE else "HF_HUB_OFFLINE is set"
    with (
        held(constants, "HF_HUB_CACHE", str(folder / "hub")),
        held(constants, "HF_HUB_OFFLINE", reason is not None),
        held(datasets.config, "HF_HUB_OFFLINE", reason is not None),
        _quiet(datasets),
    ):
        try:
            found = datasets.load_dataset(
                source.source, source.config, split=source.split, streaming=source.stream, cache_dir=str(folder)
            )
            columns = tuple(found.column_names or (() if lenient else next(iter(found.take(1)), {})))
            chosen = found.select_columns([c for c in source.mapped if c in columns]) if columns else found
            rows = _wrapped(chosen, source.source, problems)
        except problems as error:
            why = reason or _first_line(error)
            raise DataError(
                f"{source.source} is no file here, and the hub gave no such dataset: {why}. "
                "Give an existing path, or check the name, split and configuration."
            ) from error
    yield _Table(source.source, columns, rows)


def _wrapped(rows: Iterable[Row], name: str, problems: tuple[type[Exception], ...]) -> Iterator[Row]:
    try:
        yield from rows
    except problems as error:
        raise DataError(f"{name} broke off while it was read: {_first_line(error)}.") from error


def silence_of(endpoint: str) -> str | None:
    """Why the hub gives no answer, or None if it gives any. Asked once: `load_dataset` retries for half a minute."""
    try:
        with urlopen(Request(endpoint, method="HEAD"), timeout=HUB_TIMEOUT):
            return None
    except HTTPError:
        return None
    except (OSError, ValueError) as error:
        return f"{endpoint} cannot be reached ({getattr(error, 'reason', None) or error}), and no copy is cached"


@contextmanager
def held(module: Any, name: str, value: object) -> Iterator[None]:
    """A setting that the libraries know only as a module's variable, for as long as this lasts. Not for threads."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Without the library's progress bars and warnings: what matters becomes a `DataError`."""
    shown, level = not datasets.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        datasets.logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()


def private_folder(cache: Path) -> Path:
    """Make the folder for cached text under `cache`, entered by its owner alone (mode 0700); return it."""
    folder = cache / "text"
    try:
        for path in (cache, folder):
            if not path.exists():
                path.mkdir(mode=0o700, parents=True)
        folder.chmod(0o700)
    except OSError as error:
        raise DataError(f"{folder} cannot be made a private folder: {error.strerror or error}.") from error
    return folder


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return _shown((lines[0] if lines else type(error).__name__).rstrip("."))


def _shown(text: str) -> str:
    """What a file says of itself, as a terminal may see it: printable, and never long."""
    return "".join(each if each.isprintable() else "?" for each in text[:LONGEST])
