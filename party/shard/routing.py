"""One reading of a source for all simulated parties of a process that have a part of it.

Each party would otherwise read the whole source for its own part. Here the first that reads it divides it, and every
other takes its own part from there. Only parties of a simulation read so: their text is nobody's secret.
"""

import json
import tempfile
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from pathlib import Path
from typing import BinaryIO, Final

from learning.text.source import Document, Skipped, Source, records
from party.shard_table import ShardTable

PartsOf = Callable[[Document], Iterable[int]]
"""A function that returns every part that a document may have something in."""


class _Divided:
    """A source in one file that has no name, so that nothing of it is left when the process ends.

    Memory: eight bytes a document.
    """

    def __init__(self, documents: Iterator[Document | None], parts_of: PartsOf, cache: Path) -> None:
        self._places: dict[int, array[int]] = defaultdict(lambda: array("q"))
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._file: BinaryIO = tempfile.TemporaryFile(dir=cache)  # noqa: SIM115
        for document in documents:
            if document is None:
                continue
            place = self._file.tell()
            self._file.write(json.dumps([document.id, document.text, dict(document.fields)]).encode() + b"\n")
            for part in set(parts_of(document)):
                self._places[part].append(place)

    def part(self, number: int) -> Iterator[Document]:
        """The documents that may have something in a part, in the source's order."""
        for place in self._places.get(number, ()):
            self._file.seek(place)
            name, text, fields = json.loads(self._file.readline())
            yield Document(name, text, fields)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()


class Routes:
    """The source that was read last, divided among its parts.

    most: of its rows that are read; None reads all. rows: how many were read. whole: whether these are all.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.rows, self.whole = 0, True
        self._of = ""
        self._divided: _Divided | None = None
        self._skipped = Skipped()

    def documents(
        self, source: Source, shard: ShardTable, how: str, parts_of: PartsOf, cache: Path, skipped: Skipped
    ) -> Iterator[Document]:
        """The documents of the shard's part, and perhaps others, in the source's order; unusable rows are left out.

        how: names the rule of `parts_of`. skipped: is given the rows that cannot be used, of the whole source. Raises
        `learning.errors.DataError` as `learning.text.source.records` does.
        """
        assert shard.part is not None
        of = repr((asdict(source), shard.part.model_copy(update={"part": 0}).model_dump_json(), how))
        if self._divided is None or self._of != of:
            if self._divided is not None:
                self._divided.close()
            self._divided, self._skipped = None, Skipped()
            self.rows, self.whole = 0, True
            self._divided = _Divided(self._counted(records(source, cache, self._skipped)), parts_of, cache)
            self._of = of
        skipped.reasons.update(self._skipped.reasons)
        return self._divided.part(shard.part.part)

    def _counted(self, documents: Iterator[Document | None]) -> Iterator[Document | None]:
        for document in documents:
            if self.rows == self._most:
                self.whole = False
                return
            self.rows += 1
            yield document


_ROUTES: Final[ContextVar[Routes | None]] = ContextVar("routes", default=None)


def current() -> Routes | None:
    """How parties of this process share the reading of a source; None where each reads it for itself."""
    return _ROUTES.get()


@contextmanager
def shared(routes: Routes) -> Iterator[None]:
    """Within it, parties of a simulation read sources through these."""
    token = _ROUTES.set(routes)
    try:
        yield
    finally:
        _ROUTES.reset(token)
