"""How the bytes of a text file are read: its encoding, what divides its columns, whether it is compressed.

`offered` looks at a file and says what its owner should state; nothing is guessed while private text is read.
"""

import codecs
import csv
import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, cast

from learning.errors import DataError

GZIP: Final = ".gz"
UTF_8: Final = "utf-8"
LOOKED_AT: Final = 1 << 20
"""Bytes of a file that `offered` looks at."""
BROKEN: Final = (EOFError, zlib.error, gzip.BadGzipFile)
"""What reading a broken gzip file raises."""

_DELIMITERS: Final = (",", ";", "\t", "|")
_ROWS: Final = 20
_WIDE: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class Reading:
    """How files are read. lenient: as for `learning.text.source.records`. encoding: of all but .parquet and .xlsx.
    delimiter: of .csv and .tsv, None for the usual one of each. sheet: of .xlsx, None for the only one with rows.
    """

    lenient: bool = False
    encoding: str = UTF_8
    delimiter: str | None = None
    sheet: str | None = None


def ending(path: Path) -> str:
    """What kind of file it is: its ending, without `.gz` after it."""
    return Path(path.stem).suffix if path.suffix == GZIP else path.suffix


def opened(path: Path) -> IO[bytes]:
    """Open a file of bytes, decompressed where its name ends in `.gz`. Raises OSError."""
    return cast(IO[bytes], gzip.open(path, "rb")) if path.suffix == GZIP else path.open("rb")


def check_encoding(name: str) -> str:
    """The name of an encoding in which lines end as in ASCII. Raises ValueError for any other."""
    try:
        usable = bytes(range(128)).decode(name) == bytes(range(128)).decode("ascii")
    except (LookupError, UnicodeError, ValueError):
        usable = False
    if not usable:
        raise ValueError(
            "this is no encoding that files are read in line by line. Common ones: utf-8, cp1252 (Windows), latin-1, "
            "cp1250, cp1251, shift_jis. Save UTF-16 as UTF-8."
        )
    return name


def check_delimiter(text: str) -> str:
    """What divides columns. Raises ValueError unless it is one character that can."""
    if len(text) != 1 or text in '"\r\n\0' or text.isalnum():
        raise ValueError('columns are divided by one character, such as ";", "|" or "\\t".')
    return text


def offered(path: Path) -> dict[str, str]:
    """The keys `encoding` and `delimiter` that a local file seems to need; empty where the usual ones will do.

    From its first bytes, for its owner. Raises `DataError` for a file that cannot be opened.
    """
    if ending(path) in (".parquet", ".xlsx"):
        return {}
    try:
        with opened(path) as file:
            content = file.read(LOOKED_AT)
    except (*BROKEN, OSError) as error:
        raise DataError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    if content.startswith(_WIDE):
        return {}
    if len(content) == LOOKED_AT:
        content = content[: content.rfind(b"\n") + 1] or content
    found = {}
    encoding = _encoding(content)
    if encoding != UTF_8:
        found["encoding"] = encoding
    if ending(path) == ".csv" and (delimiter := _delimiter(content.decode(encoding, errors="replace"))) != ",":
        found["delimiter"] = delimiter
    return found


def advice(path: Path) -> str:
    """A sentence on how a file that is not UTF-8 can be read."""
    try:
        with opened(path) as file:
            start = file.read(2)
        keys = offered(path)
    except (DataError, *BROKEN, OSError):
        return "Convert the file, then try again."
    if start.startswith(_WIDE):
        return "It is UTF-16: save it as UTF-8, then try again."
    said = stated({"encoding": keys.get("encoding", "cp1252")} | keys)
    return f"Set {said}, which the file looks like, beside its source, or convert the file."


def stated(keys: dict[str, str]) -> str:
    """Keys as a plan or a party's file states them."""
    return " and ".join(f'{key} = "{value}"'.replace("\t", "\\t") for key, value in keys.items())


def divided(columns: Sequence[str]) -> str:
    """A sentence where the only column of a table looks like several; empty where it does not."""
    if len(columns) != 1:
        return ""
    found = next((each for each in _DELIMITERS if each in columns[0]), None)
    return "" if found is None else f" They look as if they were several: set {stated({'delimiter': found})}."


def _encoding(content: bytes) -> str:
    for name in (UTF_8, "cp1252"):
        try:
            content.decode(name)
        except UnicodeDecodeError:
            continue
        return name
    return "latin-1"


def _delimiter(text: str) -> str:
    """What divides the first rows into the same number of columns, a comma if it does."""
    for each in _DELIMITERS:
        try:
            rows = [row for row in csv.reader(text.splitlines(keepends=True)[: 4 * _ROWS], delimiter=each) if row]
        except csv.Error:
            continue
        widths = {len(row) for row in rows[:_ROWS]}
        if len(widths) == 1 and widths.pop() > 1:
            return each
    header = next(iter(text.splitlines()), "")
    counts = {each: header.count(each) for each in _DELIMITERS}
    return max(counts, key=lambda each: counts[each]) if counts[","] == 0 and any(counts.values()) else ","
