"""A party's unlabelled text in the form that a model takes, and the census of text that a model is trained on.

All counts made here are private, as in `party.shard.labelled`.
"""

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import numpy as np

from learning.models.batching import Encoded
from learning.text.labelled import TextColumns
from learning.text.source import Skipped
from party.shard.labelled import BEYOND, MOST_EXAMPLES, NOT_TOKENISED, Members, TokenRows, members_of, noting
from party.shard.reading import Reading
from party.shard.units import Unit

log = logging.getLogger("conclave.party")

_CHUNK_EXAMPLES: Final = 512
_CHUNK_CHARACTERS: Final = 1 << 19


@dataclass(frozen=True, slots=True)
class PlainUnits:
    """Tokenised texts and, for every unit, the positions of its own.

    members: None where every text is a unit and every unit a text. A unit of records with two texts has two examples,
    so that one release pays for both.
    """

    rows: TokenRows
    members: Members | None

    def __len__(self) -> int:
        return len(self.rows) if self.members is None else len(self.members)


def take_census(reading: Reading, *, columns: TextColumns | None = None, second: str | None = None) -> None:
    """Read the shard only for its census. columns, second: the other columns that are read, as in
    `party.shard.units.units`.

    Raises `ConclaveError` when it cannot be used.
    """
    with reading.counted() as census:
        noted = noting(census, second if columns is None else columns.second)
        for _ in reading.units(noted=noted, columns=columns, second=second):
            pass


def plain_units(
    reading: Reading, encode: Callable[[Sequence[str]], Encoded], *, longest: int, second: str | None = None
) -> PlainUnits:
    """Read this party's part of its shard without labels: a text is an example, a record or all of a user's one unit.

    second: the column of second texts, where it is read: a record then has two examples, each text by itself, or one
    where it has no second text. encode: turns texts into tokens, at most `longest` in an example; a text on which it
    fails is no example. Only the first `MOST_EXAMPLES` texts of a unit count. Memory: `TokenRows`, and one chunk of
    text. Raises `ShardError` as `party.shard.units.units` does, `learning.errors.DataError`.
    """
    skipped = Skipped()
    ids, stops, seconds, begins = array("i"), array("q", [0]), array("i"), array("q", [0])
    truncated = 0
    with reading.counted() as census:
        found = reading.units(noted=noting(census, second), skipped=skipped, second=second)
        for chunk in _chunks(_texts(unit, second) for unit in found):
            texts = [own[:MOST_EXAMPLES] for own in chunk]
            skipped.reasons[BEYOND] += sum(max(0, len(own) - MOST_EXAMPLES) for own in chunk)
            encoded = encode([text for own in texts for text in own])
            truncated += encoded.truncated
            made = iter(encoded.rows)
            for own in texts:
                for row in islice(made, len(own)):
                    if not len(row):
                        skipped.reasons[NOT_TOKENISED] += 1
                        continue
                    ids.frombytes(row.ids.tobytes())
                    stops.append(len(ids))
                    seconds.append(row.second)
                begins.append(len(seconds))
    rows = TokenRows(*(np.frombuffer(each, each.typecode) for each in (ids, stops, seconds)))
    if truncated:
        log.warning(
            "%s of %s texts are longer than %s tokens and were cut.", f"{truncated:,}", f"{len(rows):,}", f"{longest:,}"
        )
    return PlainUnits(rows, members_of(begins, together=reading.by_user or second is not None))


def _texts(unit: Unit, second: str | None) -> Sequence[str]:
    """A unit's texts, row by row: the first, and the second where it is read and present."""
    if second is None:
        return unit.passages
    both = ((row.text, row.fields.get(second, "")) for row in unit.rows)
    return [text for own in both for text in own if text.strip()]


def _chunks(found: Iterable[Sequence[str]]) -> Iterator[list[Sequence[str]]]:
    """The texts of units in groups of bounded texts and characters; every unit is in one group."""
    chunk: list[Sequence[str]] = []
    held, characters = 0, 0
    for texts in found:
        chunk.append(texts)
        held += max(1, len(texts))
        characters += sum(map(len, texts))
        if held >= _CHUNK_EXAMPLES or characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, held, characters = [], 0, 0
    if chunk:
        yield chunk
