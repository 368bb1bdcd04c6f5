"""The control codes of a party's rows: which cell of the public codes each row is in, and the counts of each unit's.

What a row's columns hold is private, and so are all counts made here.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from learning.text.codes import Codes
from learning.text.source import Document
from party.errors import ShardError
from party.shard.reading import Reading
from party.shard.units import MOST_EXAMPLES
from party.shard_table import ShardTable

log = logging.getLogger("conclave.party")

Cells: TypeAlias = NDArray[np.int64]
"""The cells that one unit has, each as often as it has it, int64 [counts]."""
NO_CODE: Final = "whose columns of codes hold none of the plan's values"

_CHUNK_UNITS: Final = 4096


@dataclass(frozen=True, slots=True)
class RowCodes:
    """Public codes, and which column of the shard is which of their columns.

    columns: the shard's column for each of the codes' columns. texts: every code in words, in the order of the cells.
    """

    codes: Codes
    columns: Mapping[str, str]
    texts: tuple[str, ...]

    @property
    def also(self) -> tuple[str, ...]:
        """The shard's columns that are read beside the text, none twice."""
        return tuple(dict.fromkeys(self.columns.values()))

    def cell(self, row: Document) -> int | None:
        """The code of a row, by its place among the cells; None where it has none. It depends on that row alone."""
        return self.codes.cell({name: row.fields.get(column, "") for name, column in self.columns.items()})


def coded_units(reading: Reading, codes: RowCodes) -> Iterator[sparse.csr_array]:
    """Chunks of units: how many rows of each have each code, int64 [units, cells].

    A row without a code counts nothing, and of a user's rows the first `MOST_EXAMPLES` with one count. Without any unit
    there is no chunk. Memory: one chunk. The census is on disk when the last chunk was taken. Raises `ShardError` as
    `party.shard.units.units` and `tell_without_code` do, `learning.errors.DataError`.
    """
    without = coded = 0
    chunk: list[Cells] = []
    with reading.counted() as census:
        for unit in reading.units(noted=None if census is None else census.note, also=codes.also):
            own = [cell for row in unit.rows if (cell := codes.cell(row)) is not None]
            coded, without = coded + len(own), without + len(unit.rows) - len(own)
            chunk.append(np.array(own[:MOST_EXAMPLES], np.int64))
            if len(chunk) == _CHUNK_UNITS:
                yield counted(chunk, codes.codes.cells)
                chunk = []
        if chunk:
            yield counted(chunk, codes.codes.cells)
    tell_without_code(reading, codes, without, coded)


def counted(units: Sequence[Cells], cells: int) -> sparse.csr_array:
    """How often each unit has each cell, int64 [units, cells]. units: the cells of each, as often as it has them."""
    places = np.concatenate([np.empty(0, np.int64), *units])
    rows = np.repeat(np.arange(len(units)), [len(own) for own in units])
    return sparse.csr_array((np.ones(len(places), np.int64), (rows, places)), shape=(len(units), cells))


def tell_without_code(reading: Reading, codes: RowCodes, without: int, coded: int) -> None:
    """Say, in the party's own log only, how many rows have no code.

    coded: how many have one. Nothing is refused for it, or the coordinator would learn what rows hold. Raises
    `ShardError` where `reading.frank` and no row has one.
    """
    if without and not coded and reading.frank:
        raise ShardError(no_code(reading.shard, codes))
    if without:
        log.warning("%s rows were left out: their columns of codes hold none of the plan's values.", f"{without:,}")


def no_code(shard: ShardTable, codes: RowCodes) -> str:
    """The sentence that no row of a shard has a control code."""
    columns = ", ".join(f'"{column}"' for column in codes.also)
    return (
        f'the shard has no control code: in source "{shard.source}" no row holds values of the plan in {columns}. '
        "Name the values as the rows hold them, or other columns."
    )
