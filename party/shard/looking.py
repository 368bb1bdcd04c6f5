"""What a shard holds, for the eyes of whoever owns the text: counts of what would be used, and of what would not."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from learning.text.labelled import LabelMap, ScoreRange, TextColumns, examples, usable
from learning.text.source import Document, Skipped
from learning.text.words import tokenize
from party.errors import EmptyShard
from party.shard.coded import NO_CODE, RowCodes
from party.shard.units import Kind, units
from party.shard_table import ShardTable


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a plan reads of a shard: labelled text, texts with codes, or texts alone, and the words that it counts.

    record, by_user: as `party.shard.units.units` takes them. columns, targets: of labelled text; without targets its
    labels are counted as they are stored. codes: of control codes. words: of the vocabulary, None where no words are
    looked up. by: the column that divides the source. each_word: whether every word is counted.
    """

    record: Kind
    by_user: bool
    columns: TextColumns | None = None
    targets: LabelMap | ScoreRange | None = None
    codes: RowCodes | None = None
    words: frozenset[str] | None = None
    by: str | None = None
    each_word: bool = False


@dataclass(slots=True)
class Look:
    """What a plan would use of a shard. Private, all of it.

    units: of the guarantee. passages: records, or sentences where these are. labels: how many examples each label or
    code has; a regression's scores are one. left_out: rows that can be read and make no example, by reason. unreadable:
    rows that cannot be read, by reason; of a source that several divide, those of the whole source. words, covered: of
    all passages, and those in the vocabulary. frequencies: of each word, where every word is counted. values: of the
    column that the source is divided by, and their rows.
    """

    units: int = 0
    passages: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    words: int = 0
    covered: int = 0
    frequencies: Counter[str] = field(default_factory=Counter)
    values: Counter[str] = field(default_factory=Counter)


def look(shard: ShardTable, wanted: Wanted, cache: Path, *, some: bool = False) -> Look:
    """Look at a shard, or at one's part of a source. An empty one is a look at nothing.

    some: whether there has to be some text. Memory: one unit, what dividing the source takes, and each word that is
    counted once. Raises `ShardError` for settings that cannot give such units, `EmptyShard` where there has to be text
    and is none, `learning.errors.DataError` for a source that cannot be read.
    """
    found, unreadable = Look(), Skipped()
    by = wanted.by

    def noted(document: Document) -> None:
        if by is not None:
            found.values[document.fields.get(by, document.text if by == shard.text else "")] += 1

    also = () if wanted.codes is None else wanted.codes.also
    reading = units(
        shard,
        wanted.record,
        by_user=wanted.by_user,
        cache=cache,
        frank=True,
        skipped=unreadable,
        columns=wanted.columns,
        also=also,
        noted=noted,
    )
    left_out = Skipped()
    try:
        for unit in reading:
            found.units += 1
            found.passages += len(unit.passages)
            if wanted.columns is not None:
                found.labels.update(_labels(unit.rows, wanted.columns, wanted.targets, left_out))
            if wanted.codes is not None:
                for row in unit.rows:
                    cell = wanted.codes.cell(row)
                    if cell is None:
                        left_out.reasons[NO_CODE] += 1
                    else:
                        found.labels[wanted.codes.texts[cell]] += 1
            for passage in unit.passages if wanted.words is not None or wanted.each_word else ():
                words = tokenize(passage)
                found.words += len(words)
                found.covered += sum(word in wanted.words for word in words) if wanted.words is not None else 0
                if wanted.each_word:
                    found.frequencies.update(words)
    except EmptyShard:
        if some:
            raise
        found = Look()
    found.left_out.update(left_out.reasons)
    found.unreadable.update(unreadable.reasons)
    return found


def stored(shard: ShardTable) -> Wanted:
    """What a shard's own table names, whatever a plan makes of it: records, labels as stored, and every word."""
    columns = None
    if shard.label is not None:
        columns = TextColumns("single" if shard.second is None else "pair", shard.text, shard.second, shard.label)
    return Wanted("document", by_user=False, columns=columns, each_word=True)


def _labels(
    rows: Iterable[Document], columns: TextColumns, targets: LabelMap | ScoreRange | None, left_out: Skipped
) -> Iterator[str]:
    if targets is None:
        yield from (label.strip() for _, _, label in usable(rows, columns, left_out))
        return
    for example in examples(rows, columns, targets, left_out, lenient=True):
        yield _named(example.target, targets)


def _named(target: float, targets: LabelMap | ScoreRange) -> str:
    return targets.names[int(target)] if isinstance(targets, LabelMap) else f"{targets.low:g} to {targets.high:g}"
