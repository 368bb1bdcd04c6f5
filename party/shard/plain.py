"""A party's unlabelled text in the form that a model takes, and the census of text that a model is trained on.

All counts made here are private, as in `party.shard.labelled`.
"""

import logging
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from learning.models.batching import Encoded
from learning.text.labelled import TextColumns
from learning.text.source import Skipped
from party.shard.coded import NO_CODE, RowCodes, tell_without_code
from party.shard.labelled import NOT_TOKENISED, Members, TokenRows, members_of, noting
from party.shard.reading import Reading
from party.shard.units import BEYOND_EXAMPLES, MOST_EXAMPLES, Unit

log = logging.getLogger("conclave.party")

_CHUNK_EXAMPLES: Final = 512
_CHUNK_CHARACTERS: Final = 1 << 19

NO_ANSWER: Final = "without an answer"

Said: TypeAlias = tuple[str, int | None, str]
"""A text, its control code by its place among the cells, where it has one, and the answer to it, where one is read."""


@dataclass(frozen=True, slots=True)
class PlainUnits:
    """Tokenised texts and, for every unit, the positions of its own.

    members: None where every text is a unit and every unit a text. A unit of records with two texts has two examples,
    so that one release pays for both. cells: the control code of each text, int32 [texts]; None without codes. slots:
    int32 [units], each unit's slot, None where no slots were asked.
    """

    rows: TokenRows
    members: Members | None
    cells: NDArray[np.int32] | None = None
    slots: NDArray[np.int32] | None = None

    def __len__(self) -> int:
        return len(self.rows) if self.members is None else len(self.members)


def take_census(reading: Reading, *, columns: TextColumns | None = None, second: str | None = None) -> None:
    """Read the shard only for its census. columns, second: the other columns that are read, as in
    `party.shard.units.units`.

    Raises `ConclaveError` when it cannot be used.
    """
    with reading.counted() as census:
        noted = noting(census, second if columns is None else columns.second)
        for _ in reading.units(noted=noted, columns=columns, also=() if second is None else (second,)):
            pass


def plain_units(
    reading: Reading,
    encode: Callable[..., Encoded],
    *,
    longest: int,
    second: str | None = None,
    answered: bool = False,
    codes: RowCodes | None = None,
    slot_of: Callable[[str], int] | None = None,
) -> PlainUnits:
    """Read this party's part of its shard without labels: a text is an example, a record or all of a user's one unit.

    second: the column of second texts, where it is read: a record then has two examples, each text by itself, or one
    where it has no second text. answered: whether the second is the answer to the first: both are one example, and a
    record that lacks either has none. codes: of the plan; a row without one is no example. encode: turns texts, with
    their codes or answers where these are read, into tokens, at most `longest` in an example; a text on which it fails
    is no example. Only the first `MOST_EXAMPLES` texts of a unit count. slot_of: gives the slot of every unit from its
    id, which is not stored. Memory: `TokenRows`, and one chunk of text. Raises `ShardError` as
    `party.shard.units.units` and `party.shard.coded.tell_without_code` do, `learning.errors.DataError`.
    """
    also = () if codes is None else codes.also
    skipped = Skipped()
    ids, stops, seconds, begins, cells = array("i"), array("q", [0]), array("i"), array("q", [0]), array("i")
    slots = array("i")
    shown = [] if codes is None else codes.texts
    truncated = 0
    with reading.counted() as census:
        also = also if second is None else (*also, second)
        found = reading.units(noted=noting(census, second), skipped=skipped, also=also)

        def said() -> Iterator[Sequence[Said]]:
            for unit in found:
                if slot_of is not None:
                    slots.append(slot_of(unit.id))
                yield _answered(unit, second or "", skipped) if answered else _said(unit, second, codes, skipped)

        for chunk in _chunks(said()):
            texts = [own[:MOST_EXAMPLES] for own in chunk]
            skipped.reasons[BEYOND_EXAMPLES] += sum(max(0, len(own) - MOST_EXAMPLES) for own in chunk)
            together = [said for own in texts for said in own]
            after: list[list[str | None]] = []
            if codes:
                after = [[None if cell is None else shown[cell] for _, cell, _ in together]]
            elif answered:
                after = [[answer for *_, answer in together]]
            encoded = encode([text for text, *_ in together], *after)
            truncated += encoded.truncated
            made = iter(encoded.rows)
            for own in texts:
                for (_, cell, _), row in zip(own, islice(made, len(own)), strict=True):
                    if not len(row):
                        skipped.reasons[NOT_TOKENISED] += 1
                        continue
                    ids.frombytes(row.ids.tobytes())
                    stops.append(len(ids))
                    seconds.append(row.second)
                    cells.append(-1 if cell is None else cell)
                begins.append(len(seconds))
    if codes is not None:
        tell_without_code(reading, codes, skipped.reasons[NO_CODE], len(seconds))
    rows = TokenRows(*(np.frombuffer(each, each.typecode) for each in (ids, stops, seconds)))
    if truncated:
        log.warning(
            "%s of %s texts are longer than %s tokens and were cut.", f"{truncated:,}", f"{len(rows):,}", f"{longest:,}"
        )
    members = members_of(begins, together=reading.by_user or (second is not None and not answered))
    return PlainUnits(
        rows,
        members,
        None if codes is None else np.frombuffer(cells, np.int32),
        None if slot_of is None else np.frombuffer(slots, np.int32),
    )


def _said(unit: Unit, second: str | None, codes: RowCodes | None, skipped: Skipped) -> Sequence[Said]:
    """A unit's texts with their codes, row by row: the first, and the second where it is read and present.

    skipped: is given the rows that have no code.
    """
    if second is None and codes is None:
        return [(text, None, "") for text in unit.passages]
    found: list[Said] = []
    for row in unit.rows:
        cell = None if codes is None else codes.cell(row)
        if codes is not None and cell is None:
            skipped.reasons[NO_CODE] += 1
            continue
        both = (row.text,) if second is None else (row.text, row.fields.get(second, ""))
        found += [(text, cell, "") for text in both if text.strip()]
    return found


def _answered(unit: Unit, second: str, skipped: Skipped) -> Sequence[Said]:
    """A unit's inputs with their answers, row by row. skipped: is given the rows that lack either."""
    found = [(row.text, None, row.fields.get(second, "")) for row in unit.rows]
    whole = [each for each in found if each[0].strip() and each[2].strip()]
    skipped.reasons[NO_ANSWER] += len(found) - len(whole)
    return whole


def _chunks(found: Iterable[Sequence[Said]]) -> Iterator[list[Sequence[Said]]]:
    """The texts of units in groups of bounded texts and characters; every unit is in one group."""
    chunk: list[Sequence[Said]] = []
    held, characters = 0, 0
    for texts in found:
        chunk.append(texts)
        held += max(1, len(texts))
        characters += sum(len(text) + len(answer) for text, _, answer in texts)
        if held >= _CHUNK_EXAMPLES or characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, held, characters = [], 0, 0
    if chunk:
        yield chunk
