"""Computes a vector for every row of a corpus that may exceed memory: in parts, each written as soon as it is done.

A streamer computes the parts in any order. `written` stores them in one `.npy` file and marks every finished part, so
that a crash loses only the parts in progress and no finished part is computed again.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import BinaryIO, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import IntegrityError
from coordinator.errors import PlanError, RunError
from learning.selection.text_rows import TextRows
from learning.text.corpus import Corpus

PART: Final = 1024
"""Rows that are computed, stored and marked together."""

FloatRows = NDArray[np.float32]
Part = tuple[int, int]
"""The number of a part's first row, and the number after its last row."""


class Streamer(Protocol):
    """Computes vectors for parts of a corpus."""

    def rows(self, corpus: Corpus, work: TextRows, parts: Sequence[Part]) -> Iterator[tuple[int, FloatRows]]:
        """Yield the number of a part's first row and its float32 [rows, width], once for every part, in any order.

        At most a few parts are in progress or waiting for the caller. A caller that stops early closes the iterator,
        which ends everything that was started for it. Raises `ConclaveError` saying what cannot be read or loaded.
        """
        ...


class LocalStreamer:
    """Computes the parts one after the other in this process. Memory: the model, and one part's texts and rows."""

    def rows(self, corpus: Corpus, work: TextRows, parts: Sequence[Part]) -> Iterator[tuple[int, FloatRows]]:
        """As `Streamer.rows`; parts come in the order given."""
        if parts:
            do = work.load()
            for first, end in parts:
                yield first, do(list(corpus.rows(range(first, end))))


def find_streamer(name: str) -> Streamer:
    """The streamer with that name: "local", or one installed under the entry-point group `conclave.streamers`.

    Raises `PlanError` naming the streamers there are.
    """
    if name == "local":
        return LocalStreamer()
    known = {point.name: point for point in entry_points(group="conclave.streamers")}
    if name not in known:
        names = ", ".join(f'"{each}"' for each in ["local", *sorted(known)])
        raise PlanError(f'The streamer "{name}" is not installed here. There is {names}.', code="C106")
    streamer: Streamer = known[name].load()()
    return streamer


@dataclass(frozen=True, slots=True)
class Rows:
    """A finished file of rows, float32 [count, width], which can be read block by block any number of times."""

    path: Path
    count: int
    width: int
    start: int
    block: int

    def __iter__(self) -> Iterator[FloatRows]:
        """All rows in order, with at most `block` of them in memory."""
        for first in range(0, self.count, self.block):
            yield self.read(first, min(first + self.block, self.count))

    def read(self, first: int, end: int) -> FloatRows:
        """The rows from `first` to `end`, [end - first, width]. Raises `IntegrityError` for a truncated file."""
        wanted = (end - first) * self.width
        found = np.fromfile(self.path, np.float32, wanted, offset=self.start + 4 * first * self.width)
        if found.size != wanted:
            raise IntegrityError(f"{self.path} ends before row {end:,}. Remove it; it is then made again.")
        return found.reshape(end - first, self.width)


def blocks(path: Path, rows: int = 4096) -> Rows:
    """A `.npy` file of float32 [count, width] in blocks of the given number of rows. Raises `IntegrityError` for
    another file.
    """
    try:
        with path.open("rb") as file:
            shape, start = _header(file)
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{path} is no file of rows ({error}). Remove it; it is then made again.") from error
    return Rows(path, shape[0], shape[1], start, rows)


def written(
    streamer: Streamer,
    corpus: Corpus,
    work: TextRows,
    folder: Path,
    *,
    part: int = PART,
    on_block: Callable[[int, int], None] | None = None,
) -> Path:
    """Compute rows for a whole corpus; returns the `.npy` file that holds them, float32 [rows, width], indexed by row
    number.

    folder: holds such files, each named by the digests of corpus and work. A finished file is returned as it is; an
    unfinished one is continued. part: rows in a part; with another number of rows a file is started again. on_block:
    told how many rows are done, and of how many, at the start and after every part. Memory: what the streamer holds,
    one part's rows, and 17 bytes per part. A part is marked only when it is on disk.

    Raises `ConclaveError` as the streamer does; `IntegrityError` for rows that are not finite or have a wrong shape;
    `RunError` when another process is writing the same file, or it cannot be written.
    """
    count = corpus.count()
    key = hashlib.sha256(json.dumps([1, corpus.digest, work.digest()]).encode()).hexdigest()[:32]
    done, begun, marks = folder / f"{key}.npy", folder / f"{key}.part", folder / f"{key}.marks"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not done.exists():
            with _opened(marks) as marked:
                _alone(marked, done)
                if not done.exists():  # another process may have finished it before this one had the lock
                    with _opened(begun) as file:
                        _fill(streamer, corpus, work, part, file, marked, on_block)
                    begun.rename(done)
                    _settle(folder)
                marks.unlink(missing_ok=True)
        elif on_block is not None:
            on_block(count, count)
    except OSError as error:
        raise RunError(f"{done} cannot be written: {error.strerror or error}. Make room, then try again.") from error
    return done


def _fill(
    streamer: Streamer,
    corpus: Corpus,
    work: TextRows,
    part: int,
    file: BinaryIO,
    marked: BinaryIO,
    on_block: Callable[[int, int], None] | None,
) -> None:
    count = corpus.count()
    parts = [(first, min(first + part, count)) for first in range(0, count, part)]
    marks, shape, start = _begun(file, marked, len(parts), part)
    if shape is None or shape[0] != count:
        marks, shape = bytearray(len(parts)), None
    missing = [each for each, mark in zip(parts, marks, strict=True) if not mark]
    ready = count - sum(end - first for first, end in missing)
    if on_block is not None:
        on_block(ready, count)
    expected = dict(missing)
    with closing(_closable(streamer.rows(corpus, work, missing))) as found:
        for first, rows in found:
            end = expected.pop(first, None)
            if end is None or rows.dtype != np.float32 or rows.ndim != 2 or len(rows) != end - first:
                raise IntegrityError(f"The streamer gave {rows.dtype} {rows.shape} for row {first:,}, asked otherwise.")
            if shape is None:
                shape, start = (count, rows.shape[1]), _begin(file, marked, (count, rows.shape[1]), len(parts), part)
            if rows.shape[1] != shape[1] or not np.isfinite(rows).all():
                raise IntegrityError(
                    f"{work.model} gives NaN, infinity or another width for rows {first:,} to {end - 1:,}. Use another "
                    "model."
                )
            _put(file, start + 4 * first * shape[1], np.ascontiguousarray(rows, "<f4").tobytes())
            os.fdatasync(file.fileno())
            _put(marked, _MARK_START + first // part, b"\x01")
            ready += end - first
            if on_block is not None:
                on_block(ready, count)
    if expected:
        raise IntegrityError(f"The streamer left out {len(expected):,} of {len(missing):,} parts. Try again.")


_MARK_START: Final = 8
"""Before the marks, one byte a part, is the number of rows in a part."""


def _begun(file: BinaryIO, marked: BinaryIO, parts: int, part: int) -> tuple[bytearray, tuple[int, int] | None, int]:
    """The marks, the shape and the offset of the rows in a file that was begun with such parts; no shape if it was
    not.
    """
    marked.seek(0)
    state = marked.read(_MARK_START + parts + 1)
    if len(state) != _MARK_START + parts or int.from_bytes(state[:_MARK_START], "big") != part:
        return bytearray(parts), None, 0
    try:
        file.seek(0)
        shape, start = _header(file)
    except ValueError:
        return bytearray(parts), None, 0
    return bytearray(state[_MARK_START:]), shape, start


def _begin(file: BinaryIO, marked: BinaryIO, shape: tuple[int, int], parts: int, part: int) -> int:
    """Make the file in its full size, then the marks, all unset; returns the offset of the rows."""
    marked.truncate(0)
    file.truncate(0)
    file.seek(0)
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    start = file.tell()
    file.truncate(start + 4 * shape[0] * shape[1])
    os.fsync(file.fileno())
    _put(marked, 0, part.to_bytes(_MARK_START, "big") + bytes(parts))
    os.fsync(marked.fileno())
    return start


def _header(file: BinaryIO) -> tuple[tuple[int, int], int]:
    """The shape in a `.npy` file and the offset of its rows. Raises `ValueError` unless the file's length fits the
    shape.
    """
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError("another version")
    shape, fortran, kind = np.lib.format.read_array_header_1_0(file)
    start = file.tell()
    if len(shape) != 2 or fortran or kind != np.dtype("<f4"):
        raise ValueError(f"{kind} {shape}")
    if os.fstat(file.fileno()).st_size != start + 4 * shape[0] * shape[1]:
        raise ValueError("another length than it says")
    return (int(shape[0]), int(shape[1])), start


def _opened(path: Path) -> BinaryIO:
    """Open a file for reading and writing at any offset; it is made if absent and otherwise left unchanged."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0)


def _put(file: BinaryIO, offset: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        wrote = os.pwrite(file.fileno(), left, offset)
        left, offset = left[wrote:], offset + wrote


def _alone(marked: BinaryIO, done: Path) -> None:
    try:
        fcntl.flock(marked, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise RunError(
            f"Another process is writing {done}. Wait until it has ended, then try again.", code="C704"
        ) from None


def _settle(folder: Path) -> None:
    """Flush the folder, so that the new name itself is on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _closable(found: Iterator[tuple[int, FloatRows]]) -> Generator[tuple[int, FloatRows], None, None]:
    """Make any iterator closable, so that a streamer's own clean-up runs."""
    yield from found
