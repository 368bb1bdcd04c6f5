"""A public corpus that may be larger than memory: its rows read in place, by number, in any order. No torch.

One pass over the files writes an index: where each row that is used begins, 8 bytes a row, on disk. Later passes read
row by row. Memory holds one row, whatever the caller keeps, and pages of the index that the system may take back; while
the index is made, also one byte a row, and up to 64 MiB where repeats are dropped.
"""

import hashlib
import json
import shutil
import tempfile
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.errors import DataError
from learning.text.corpus_files import CorpusFile, CorpusSource, files_of, opened_again, row_at, rows_of

REPEATED: Final = "repeated"

_FLUSHED: Final = 2**16
_SORTED: Final = 2**20
_OFFSETS, _FACTS = "offsets.i64", "corpus.json"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Rows numbered from 0, each of one text, or two in a corpus of pairs; the same numbers in every pass.

    width: texts in a row, 1 or 2. digest: SHA-256, hex, over the used texts in order, each as its length in UTF-8 bytes
    (8 bytes, big endian) and those bytes. left_out: rows that were not used, by reason. index: its folder.
    It may be pickled, and used wherever index and files are under the same paths.
    """

    width: int
    digest: str
    left_out: Mapping[str, int]
    index: Path
    files: tuple[CorpusFile, ...]
    rows_used: int

    def count(self) -> int:
        """How many rows there are."""
        return self.rows_used

    def rows(self, numbers: Iterable[int]) -> Iterator[tuple[str, ...]]:
        """The texts of rows, in the order asked for, one row in memory at a time.

        Raises `DataError` for a file that is gone or was changed since it was indexed, `IndexError` for a number of no
        row.
        """
        offsets = np.memmap(self.index / _OFFSETS, dtype="<i8", mode="r") if self.rows_used else np.empty(0, np.int64)
        firsts = [each.first for each in self.files]
        held: tuple[int, IO[bytes]] | None = None
        try:
            for number in numbers:
                if not 0 <= number < self.rows_used:
                    raise IndexError(f"the corpus has rows 0 to {self.rows_used - 1:,}, and none {number:,}")
                place = bisect_right(firsts, number) - 1
                if held is None or held[0] != place:
                    if held is not None:
                        held[1].close()
                    held = place, opened_again(self.files[place])
                yield row_at(held[1], self.files[place], int(offsets[number]))
        finally:
            if held is not None:
                held[1].close()

    def texts(self, numbers: Iterable[int], *, column: int = 0) -> Iterator[str]:
        """One text of each of these rows, in the order asked for: the first, or with `column=1` a pair's second."""
        self._check(column)
        return (row[column] for row in self.rows(numbers))

    def blocks(self, rows_per_block: int, *, column: int = 0) -> Iterator[tuple[int, list[str]]]:
        """All rows in order: the number of a block's first row, and one text of each; the last block may be shorter."""
        self._check(column)
        rows = self.rows(range(self.rows_used))
        for first in range(0, self.rows_used, rows_per_block):
            yield first, [row[column] for row in islice(rows, rows_per_block)]

    def _check(self, column: int) -> None:
        if not 0 <= column < self.width:
            raise ValueError(f"a row of this corpus has {self.width} texts, and no column {column}")


def indexed(sources: Sequence[CorpusSource], folder: Path, *, distinct: bool = True) -> Corpus:
    """Index a corpus, or find the index that an earlier call made of the same files, as they are now.

    folder: for indexes; made if absent. distinct: leave out rows that repeat an earlier one, byte for byte, as told by
    a hash of 16 bytes; `Corpus.left_out` counts them under `REPEATED`.
    Raises `DataError`: a file that is missing, of another kind, not UTF-8 or with a broken line (file and line named);
    a column that is not there (those that are named); sources that differ in the number of texts; no text at all.
    """
    if not sources:
        raise DataError("A corpus needs a source. Name one.")
    if len({len(each.columns) for each in sources}) > 1:
        raise DataError(
            "A corpus is of single texts or of pairs, not of both. Give every source a second column, or none."
        )
    found = [(source, path) for source in sources for path in files_of(source)]
    try:
        stated = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for _, path in found]
        key = hashlib.sha256(json.dumps([1, [asdict(s) for s in sources], stated, distinct]).encode()).hexdigest()[:32]
        place = folder / key
        if not (place / _FACTS).exists():
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder, prefix=".making-") as beside:
                made = Path(beside) / key
                made.mkdir()
                _write(sources, found, made, distinct)
                shutil.rmtree(place, ignore_errors=True)
                with suppress(OSError):  # another run may have put the same there in the meantime
                    made.rename(place)
        return _corpus(place)
    except OSError as error:
        raise DataError(f"{error.filename or folder} cannot be used: {error.strerror or error}.") from error


def _corpus(place: Path) -> Corpus:
    facts: dict[str, Any] = json.loads((place / _FACTS).read_bytes())
    files = tuple(CorpusFile(**{**each, "columns": tuple(each["columns"])}) for each in facts.pop("files"))
    return Corpus(**facts, index=place, files=files)


def _write(
    sources: Sequence[CorpusSource], found: list[tuple[CorpusSource, Path]], place: Path, distinct: bool
) -> None:
    """Read all files once, and write offsets and facts."""
    left_out: Counter[str] = Counter()
    whole, files, offsets, hashes = hashlib.sha256(), [], array("q"), bytearray()
    count = 0
    with (place / _OFFSETS).open("wb") as file, (place / "hashes").open("wb") as hash_file:
        for source in sources:
            used = places = 0
            for path in (path for each, path in found if each is source):
                if used == source.limit:
                    break
                stat = path.stat()
                files.append(CorpusFile(str(path.absolute()), source.columns, count, stat.st_size, stat.st_mtime_ns))
                for offset, row in rows_of(path, source.columns):
                    places += 1
                    if source.take is not None and (places - 1) % source.take[0] != source.take[1]:
                        continue
                    if isinstance(row, str):
                        left_out[row] += 1
                        continue
                    framed = _framed(row)
                    whole.update(framed)
                    offsets.append(offset)
                    if distinct:
                        hashes += hashlib.blake2b(framed, digest_size=16).digest()
                    count, used = count + 1, used + 1
                    if len(offsets) == _FLUSHED:
                        offsets.tofile(file)
                        hash_file.write(hashes)
                        del offsets[:], hashes[:]
                    if used == source.limit:
                        break
        offsets.tofile(file)
        hash_file.write(hashes)
    if not count:
        why = ", ".join(f"{rows:,} rows: {reason}" for reason, rows in left_out.items()) or "its files are empty"
        raise DataError(
            f"The corpus {sources[0].source} has no text ({why}). Check files, columns and take.", code="C204"
        )
    digest = whole.hexdigest()
    facts = {"width": len(sources[0].columns), "digest": digest, "left_out": dict(left_out), "rows_used": count}
    repeats = 0
    if distinct:
        kept = _distinct(place / "hashes", count)
        repeats = count - int(kept.sum())
    (place / "hashes").unlink()
    if repeats:
        files = _without(place / _OFFSETS, kept, files)
        facts |= {"rows_used": count - repeats, "left_out": {**left_out, REPEATED: repeats}}
        fresh = Corpus(**facts, index=place, files=tuple(files))  # type: ignore[arg-type]
        again = hashlib.sha256()
        for texts in fresh.rows(range(count - repeats)):
            again.update(_framed(texts))
        facts["digest"] = again.hexdigest()
    (place / _FACTS).write_text(json.dumps({**facts, "files": [asdict(each) for each in files]}))


def _framed(row: tuple[str, ...]) -> bytes:
    encoded = [text.encode() for text in row]
    return b"".join(len(each).to_bytes(8, "big") + each for each in encoded)


def _distinct(path: Path, count: int) -> NDArray[np.bool_]:
    """Which rows do not repeat an earlier one. Hashes are sorted a share at a time, about a million in memory."""
    kept = np.ones(count, np.bool_)
    shares = np.uint64(-(-count // _SORTED))
    for share in range(int(shares)):
        some, rows = [], []
        for start in range(0, count, _SORTED):
            pairs = np.fromfile(path, "<u8", 2 * min(_SORTED, count - start), offset=16 * start).reshape(-1, 2)
            own = np.flatnonzero(pairs[:, 0] % shares == share)
            some.append(pairs[own])
            rows.append(own + start)
        both, numbers = np.concatenate(some), np.concatenate(rows)
        order = np.lexsort((both[:, 1], both[:, 0]))  # a stable sort: of equal rows the earliest comes first
        equal = (both[order[1:]] == both[order[:-1]]).all(axis=1)
        kept[numbers[order[1:][equal]]] = False
    return kept


def _without(path: Path, kept: NDArray[np.bool_], files: list[CorpusFile]) -> list[CorpusFile]:
    """Take rows out of the index, in place; the files with the numbers their first rows have then."""
    with path.open("r+b") as file:
        size = 0
        for start in range(0, len(kept), _FLUSHED):
            some = np.fromfile(path, "<i8", min(_FLUSHED, len(kept) - start), offset=8 * start)
            less = some[kept[start : start + _FLUSHED]].tobytes()
            file.seek(size)
            file.write(less)
            file.flush()
            size += len(less)
        file.truncate(size)
    ends = [each.first for each in files[1:]] + [len(kept)]
    counts = [int(kept[each.first : end].sum()) for each, end in zip(files, ends, strict=True)]
    firsts = np.cumsum([0, *counts])
    return [
        CorpusFile(each.path, each.columns, int(first), each.size, each.modified)
        for each, first, rows in zip(files, firsts[:-1], counts, strict=True)
        if rows
    ]
