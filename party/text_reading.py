"""A party's text without labels as a model takes it, and the census of whatever a text model is trained on.

Whatever is counted here is private, as in `party.reading`.
"""

import logging
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from learning.batching import Encoded
from learning.text import Skipped
from party.census import Census, written
from party.job import Job
from party.labelling import columns_of
from party.reading import BEYOND, MOST_EXAMPLES, TokenRows, noting
from party.shard import Unit, units
from protos.conclave.v1 import plan_pb2

log = logging.getLogger("conclave.party")

_CHUNK_EXAMPLES: Final = 512
_CHUNK_CHARACTERS: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class PlainUnits:
    """Tokenised texts and, for every unit, where its own are; members: None where every text is a unit."""

    rows: TokenRows
    members: Sequence[range] | None

    def __len__(self) -> int:
        return len(self.rows) if self.members is None else len(self.members)


@contextmanager
def census_of(job: Job) -> Iterator[Census | None]:
    """The job's census, which is on disk when this ends; None where none is wanted."""
    with ExitStack() as opened:
        census = None
        if job.census:
            census = opened.enter_context(written(Path(job.census), bytes.fromhex(job.census_key), job.shard_table))
        yield census


def take_census(job: Job) -> None:
    """Read the shard for its census alone. Raises `ConclaveError` when it cannot be used."""
    assert job.text is not None
    shard, columns = job.shard_table, None
    if job.text.labelled:
        columns = columns_of(plan_pb2.LabelledText.FromString(bytes.fromhex(job.text.labelled)), shard)
    with census_of(job) as census:
        read = units(
            shard,
            job.record,
            by_user=job.by_user,
            cache=Path(job.cache),
            noted=noting(census, columns),
            columns=columns,
        )
        for _ in read:
            pass


def plain_units(
    job: Job, encode: Callable[[Sequence[str]], Encoded], *, longest: int, done: Callable[[int], None]
) -> PlainUnits:
    """Read this party's part of its shard without labels: a record an example, all of a user's one unit.

    encode: from texts to tokens, `longest` in an example at most. done: is given the number of units read so far.
    Memory: `TokenRows`, and one chunk of text. Raises `ShardError` like `party.shard.units`, `learning.text.DataError`.
    """
    skipped = Skipped()
    ids, stops, seconds, begins = array("i"), array("q", [0]), array("i"), array("q", [0])
    read, truncated = 0, 0
    with census_of(job) as census:
        found = units(
            job.shard_table,
            job.record,
            by_user=job.by_user,
            cache=Path(job.cache),
            skipped=skipped,
            noted=noting(census, None),
        )
        for chunk in _chunks(found):
            texts = [unit.passages[:MOST_EXAMPLES] for unit in chunk]
            skipped.reasons[BEYOND] += sum(max(0, len(unit.passages) - MOST_EXAMPLES) for unit in chunk)
            encoded = encode([text for own in texts for text in own])
            truncated += encoded.truncated
            for row in encoded.rows:
                ids.frombytes(row.ids.tobytes())
                stops.append(len(ids))
                seconds.append(row.second)
            begins.extend(np.cumsum([len(own) for own in texts]) + begins[-1])
            read += len(chunk)
            done(read)
    rows = TokenRows(*(np.frombuffer(each, each.typecode) for each in (ids, stops, seconds)))
    if truncated:
        log.warning(
            "%s of %s texts are longer than %s tokens and were cut.", f"{truncated:,}", f"{len(rows):,}", f"{longest:,}"
        )
    return PlainUnits(rows, [range(*ends) for ends in pairwise(begins)] if job.by_user else None)


def _chunks(found: Iterator[Unit]) -> Iterator[list[Unit]]:
    """Units in groups bounded in passages and in characters."""
    chunk: list[Unit] = []
    held, characters = 0, 0
    for unit in found:
        chunk.append(unit)
        held += len(unit.passages)
        characters += sum(map(len, unit.passages))
        if held >= _CHUNK_EXAMPLES or characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, held, characters = [], 0, 0
    if chunk:
        yield chunk
