"""What a shard holds, for the eyes of whoever owns the text: counts of what would be used, and of what would not."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from learning.text.labelled import LabelMap, ScoreRange, TextColumns, examples
from learning.text.source import Document, Skipped
from learning.text.words import tokenize
from party.config import ShardTable
from party.errors import EmptyShard
from party.shard.coded import NO_CODE, RowCodes
from party.shard.units import Kind, units


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a plan reads of a shard: labelled text, texts with codes, or texts alone, and the words that it counts.

    record, by_user: as `party.shard.units.units` takes them. columns, targets: of labelled text. codes: of control
    codes. words: of the vocabulary, None where no words are counted. by: the column that divides the source.
    """

    record: Kind
    by_user: bool
    columns: TextColumns | None = None
    targets: LabelMap | ScoreRange | None = None
    codes: RowCodes | None = None
    words: frozenset[str] | None = None
    by: str | None = None


@dataclass(slots=True)
class Look:
    """What a plan would use of a shard. Private, all of it.

    units: of the guarantee. passages: records, or sentences where these are. labels: how many examples each label or
    code has; a regression's scores are one. left_out: rows that can be read and make no example, by reason. unreadable:
    rows that cannot be read, by reason; of a source that several divide, those of the whole source. words, covered: of
    all passages, and those in the vocabulary. values: of the column that the source is divided by, and their rows.
    """

    units: int = 0
    passages: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    unreadable: Counter[str] = field(default_factory=Counter)
    words: int = 0
    covered: int = 0
    values: Counter[str] = field(default_factory=Counter)


def look(shard: ShardTable, wanted: Wanted, cache: Path) -> Look:
    """Look at a shard, or at one's part of a source. An empty one is a look at nothing.

    Memory: one unit, and what dividing the source takes. Raises `ShardError` for settings that cannot give such units,
    `learning.errors.DataError` for a source that cannot be read.
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
            if wanted.columns is not None and wanted.targets is not None:
                for example in examples(unit.rows, wanted.columns, wanted.targets, left_out, lenient=True):
                    found.labels[_named(example.target, wanted.targets)] += 1
            if wanted.codes is not None:
                for row in unit.rows:
                    cell = wanted.codes.cell(row)
                    if cell is None:
                        left_out.reasons[NO_CODE] += 1
                    else:
                        found.labels[wanted.codes.texts[cell]] += 1
            if wanted.words is not None:
                for passage in unit.passages:
                    words = tokenize(passage)
                    found.words += len(words)
                    found.covered += sum(word in wanted.words for word in words)
    except EmptyShard:
        found = Look()
    found.left_out.update(left_out.reasons)
    found.unreadable.update(unreadable.reasons)
    return found


def _named(target: float, targets: LabelMap | ScoreRange) -> str:
    return targets.names[int(target)] if isinstance(targets, LabelMap) else f"{targets.low:g} to {targets.high:g}"
