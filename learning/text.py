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
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from aggregation.errors import ConclaveError
from learning import documentation

Row = Mapping[str, object]

HUB_TIMEOUT = 10.0
"""Seconds to wait for the hub's first answer before only the cache is tried."""
LOOK_AHEAD = 100
"""Rows of a JSON file that are looked at to know its columns."""
LONGEST = 300
"""Characters of what a file says, in a message about it."""
MAXIMUM_CELL = 16 * 1024 * 1024
"""Characters that one CSV cell may have."""

NOTHING = "(nothing)"
"""The built-in source of no document: what a party reads that must go on without its text."""

_TABLES = (".csv", ".tsv", ".jsonl", ".json", ".parquet")
_PLAIN = (".txt",)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)


class DataError(ConclaveError):
    """Text that cannot be read as the plan or the party's file describes it. The message names the file."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where text comes from, and which columns mean what.

    source: `documentation`, `documentation-heldout` or `documentation-topics` (see `learning.documentation`); a local
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
    """Yield the documents of a source in its own order, one row in memory at a time (.txt and .json arrays: one file).

    cache: folder for what the hub sends; made with mode 0700. Local and built-in text is not written anywhere.
    skipped: gets the rows that cannot be used: no text, text that is not a string, no id, user or label, broken rows.
    Raises `DataError`, at the first document asked for: a file that is missing or not UTF-8, a column that is not there
    (naming those that are), a hub that does not give the dataset, a source of which no row is usable.
    """
    left_out = Skipped() if skipped is None else skipped
    before, found = left_out.reasons.copy(), False
    for table in _tables(source, cache):
        table.require(source.mapped)
        for row in table.rows:
            document = row if isinstance(row, str) else _document(row, source)
            if isinstance(document, str):
                left_out.reasons[document] += 1
            else:
                found = True
                yield document
    if not found:
        lost = left_out.reasons - before
        if not lost:
            raise DataError(f"{source.source} is empty: it has no document.")
        why = ", ".join(f"{count:,} {'row' if count == 1 else 'rows'} {reason}" for reason, count in lost.most_common())
        raise DataError(f"{source.source} has no row that can be used ({why}). Check which column is the text.")


def columns(source: Source, cache: Path) -> list[str]:
    """Name the columns of a source's first file that is not empty. Raises `DataError` like `read`."""
    for table in _tables(source, cache):
        if table.columns:
            return list(table.columns)
    raise DataError(f"{source.source} is empty: it has no columns.")


@dataclass(frozen=True, slots=True)
class _Table:
    """One file's columns, and its rows: a string in place of a row is the reason why that row is no use."""

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
            return "not UTF-8"
    if text is None:
        return "no text"
    if not isinstance(text, str):
        return "not text"
    if not text.strip():
        return "no text"
    fields = {}
    for name in source.mapped[1:]:
        value = row.get(name)
        fields[name] = "" if value is None else str(value)
    for role, column in (("id", source.id), ("user", source.user), ("label", source.label)):
        if column is not None and not (text if column == source.text else fields[column]).strip():
            return f"no {role}"
    try:
        digest = hashlib.sha256(text.encode()).hexdigest()
        "".join(fields.values()).encode()
    except UnicodeEncodeError:  # a JSON file can spell half a surrogate pair
        return "not UTF-8"
    return Document(
        digest if source.id is None else (text if source.id == source.text else fields[source.id]), text, fields
    )


def _tables(source: Source, cache: Path) -> Iterator[_Table]:
    if source.source == NOTHING:
        return iter(())
    if source.source in documentation.NAMES:
        return _built_in(source.source)
    try:
        path = Path(source.source).expanduser()
    except RuntimeError:
        raise DataError(f"{source.source} does not exist: nobody here has that home. Give a file.") from None
    if path.is_dir():
        return _folder(path)
    if path.exists():
        return iter([_file(path, path.name)])
    if glob.has_magic(str(path)):
        return _matching(str(path))
    if not is_hub_name(source.source):
        raise DataError(
            f"{source.source} does not exist. Give a file, a folder, a glob, or a dataset's name on the hub."
        )
    return _hub(source, cache)


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


def _matching(pattern: str) -> Iterator[_Table]:
    paths = sorted(Path(name) for name in glob.glob(pattern, recursive=True) if Path(name).is_file())
    if not paths:
        raise DataError(f"{pattern} matches no file.")
    return (_file(path, path.name) for path in paths)


def _folder(folder: Path) -> Iterator[_Table]:
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
    return (_file(path, path.relative_to(folder).as_posix()) for path in tables or plain)


def _file(path: Path, name: str) -> _Table:
    readers = {".csv": _csv, ".tsv": _csv, ".jsonl": _json_lines, ".json": _json, ".parquet": _parquet, ".txt": _plain}
    if path.suffix not in readers:
        raise DataError(f"{path} is of no kind that can be read. Known endings: {' '.join(readers)}.")
    try:
        return readers[path.suffix](path, name)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or _first_line(error)}.") from error


def _lines(path: Path) -> Iterator[str]:
    """Lines with their ends, decoded one by one so that the message can name the line."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                try:
                    yield line.removeprefix(codecs.BOM_UTF8).decode() if number == 1 else line.decode()
                except UnicodeDecodeError as error:
                    raise DataError(f"{path}, line {number}: not UTF-8. Convert the file, then try again.") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _plain(path: Path, name: str) -> _Table:
    def rows() -> Iterator[Row]:
        yield {"text": "".join(_lines(path)), "file": name}

    return _Table(str(path), ("text", "file"), rows())


def _csv(path: Path, name: str) -> _Table:
    csv.field_size_limit(MAXIMUM_CELL)
    reader = csv.reader(_lines(path), delimiter="\t" if path.suffix == ".tsv" else ",", strict=True)

    def records() -> Iterator[list[str]]:
        try:
            yield from reader
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: not a CSV row ({_first_line(error)}).") from error

    cells = (row for row in records() if row)
    header = next(cells, [])
    twice = [column for column, times in Counter(header).items() if times > 1]
    if twice:
        raise DataError(f"{path} has two columns named {_shown(twice[0])!r}. Rename one.")

    def rows() -> Iterator[Row | str]:
        for row in cells:
            yield dict(zip(header, row, strict=True)) if len(row) == len(header) else "with another number of columns"

    return _Table(str(path), tuple(header), rows())


def _objects(name: str, values: Iterator[object]) -> _Table:
    """A table of JSON values: its columns are the keys of the first rows that are objects."""
    ahead = list(itertools.islice(values, LOOK_AHEAD))
    columns = dict.fromkeys(key for value in ahead if isinstance(value, dict) for key in value)
    rows = (value if isinstance(value, dict | str) else "not an object" for value in itertools.chain(ahead, values))
    return _Table(name, tuple(columns), rows)


def _json_lines(path: Path, name: str) -> _Table:
    def values() -> Iterator[object]:
        for line in _lines(path):
            if line.strip():
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError):
                    yield "not JSON"
                else:
                    yield "not an object" if isinstance(value, str) else value

    return _objects(str(path), values())


def _json(path: Path, name: str) -> _Table:
    """A .json file is an array of objects, or JSON Lines under another name."""
    opening = next((line.lstrip() for line in _lines(path) if line.strip()), "")
    if not opening.startswith("["):
        return _json_lines(path, name)
    try:
        values = json.loads("".join(_lines(path)))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}.") from error
    return _objects(str(path), ("not an object" if isinstance(value, str) else value for value in values))


def _parquet(path: Path, name: str) -> _Table:
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
                            yield "not UTF-8"
            except (OSError, pa.ArrowException) as error:
                raise DataError(f"{path} cannot be read to its end: {_first_line(error)}.") from error

    return _Table(str(path), names, rows())


def _hub(source: Source, cache: Path) -> Iterator[_Table]:
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
            columns = tuple(found.column_names or next(iter(found.take(1)), {}))
            rows = _wrapped(found.select_columns([c for c in source.mapped if c in columns]), source.source, problems)
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
