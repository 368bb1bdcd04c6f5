"""A party's text as pair counts, unit by unit, in chunks of bounded size."""

from collections.abc import Iterator
from itertools import chain
from typing import Final

from scipy import sparse

from learning.embeddings.cooccurrence import Passage, pair_counts, unit_counts
from learning.text.words import Vocabulary, tokenize
from party.shard.memory import Memory
from party.shard.reading import Reading
from party.shard.units import Unit

MOST_PAIRS: Final = 1 << 23
"""The most pairs of one unit that are counted; of a longer unit, the first words count. A pair costs some 32 bytes
while it is counted, and the plan sets the window.
"""

_CHUNK_UNITS: Final = 512
_CHUNK_PAIRS: Final = 5 << 19


def counted_units(
    reading: Reading, vocabulary: Vocabulary, window: int, memory: Memory | None = None
) -> Iterator[tuple[list[str], sparse.csr_array]]:
    """Chunks of units: their ids, and their pair counts [units, words * words].

    Where every pair is a unit, rows are pairs, and the ids are those of the documents they come from, one per row. A
    unit that cannot be read has no pairs: an empty row, or no row where pairs are units. Only as many of a unit's words
    are counted as make `MOST_PAIRS` pairs. Without any unit there is no chunk. window: context words on each side.
    memory: keeps all chunks for the next task that counts the same. The census is on disk when the last chunk was
    taken. Raises `ConclaveError` when the shard cannot be used.
    """
    if memory is None:
        yield from _counted(reading, vocabulary, window)
        return
    of = (reading.whose, vocabulary.sha256, window)
    yield from memory.once("counts", of, lambda: list(_counted(reading, vocabulary, window)))


def _counted(reading: Reading, vocabulary: Vocabulary, window: int) -> Iterator[tuple[list[str], sparse.csr_array]]:
    size = len(vocabulary)
    for chunk in _chunks(_units(reading), window):
        passages = [_encoded(unit, vocabulary, most=MOST_PAIRS // (2 * window)) for unit in chunk]
        if reading.pairs:
            counts = [pair_counts(each, size, window) for each in passages]
            ids = list(chain.from_iterable([unit.id] * rows.shape[0] for unit, rows in zip(chunk, counts, strict=True)))
            counted = sparse.vstack(counts, format="csr")
        else:
            ids = [unit.id for unit in chunk]
            counted = unit_counts(passages, size, window)
        yield ids, sparse.csr_array(counted)


def take_census(reading: Reading) -> None:
    """Read the shard only for its census. Raises `ConclaveError` when it cannot be used."""
    for _ in _units(reading):
        pass


def _units(reading: Reading) -> Iterator[Unit]:
    """The units that are read; all their documents are in the census when the last unit was taken."""
    with reading.counted() as census:
        yield from reading.units(noted=None if census is None else census.note)


def _encoded(unit: Unit, vocabulary: Vocabulary, *, most: int) -> list[Passage]:
    """A unit's passages, at most `most` words in total."""
    passages = []
    for passage in unit.passages:
        words = tokenize(passage)[:most]
        most -= len(words)
        passages.append(vocabulary.encode(words))
    return passages


def _chunks(found: Iterator[Unit], window: int) -> Iterator[list[Unit]]:
    """Units in groups of bounded number and, as far as their lengths tell, bounded pairs."""
    chunk: list[Unit] = []
    pairs = 0
    for unit in found:
        chunk.append(unit)
        pairs += window * sum(map(len, unit.passages))  # a word and the separator after it are two characters or more
        if len(chunk) >= _CHUNK_UNITS or pairs >= _CHUNK_PAIRS:
            yield chunk
            chunk, pairs = [], 0
    if chunk:
        yield chunk
