"""Whether a plan's labels or control codes are any that a source has, for a simulation before it joins.

Only text that is nobody's secret is looked at, and nothing of it is used. A real party joins whatever its rows hold.
"""

from dataclasses import dataclass
from pathlib import Path

from learning.text import documentation
from learning.text.labelled import LabelMap, ScoreRange, TextColumns, examples
from learning.text.source import Skipped, first_file
from party.errors import ShardError
from party.shard.coded import RowCodes, no_code
from party.shard.units import units
from party.shard_table import ShardTable


@dataclass(frozen=True, slots=True)
class Fitting:
    """What a plan reads beside texts. columns, targets: of labelled text. codes: of control codes."""

    columns: TextColumns | None = None
    targets: LabelMap | ScoreRange | None = None
    codes: RowCodes | None = None


def check_fits(shard: ShardTable, wanted: Fitting, cache: Path) -> None:
    """Return at the first row of the whole source, whosever part it is in, with such a label and such a code.

    A hub's data set is not fetched for it. Raises `ShardError` where no row has one, `learning.errors.DataError` for a
    source that cannot be read.
    """
    if shard.source not in documentation.NAMES and first_file(shard.source) is None:
        return
    whole, left_out = shard.model_copy(update={"part": None}), Skipped()
    if wanted.columns is not None and wanted.targets is not None:
        found = units(
            whole, "document", by_user=False, cache=cache, frank=True, skipped=left_out, columns=wanted.columns
        )
        rows = (row for unit in found for row in unit.rows)
        if next(examples(rows, wanted.columns, wanted.targets, left_out, lenient=True), None) is None:
            raise ShardError(no_example(shard, left_out))
    if (codes := wanted.codes) is not None:
        found = units(whole, "document", by_user=False, cache=cache, frank=True, also=codes.also)
        if all(codes.cell(row) is None for unit in found for row in unit.rows):
            raise ShardError(no_code(shard, codes))


def no_example(shard: ShardTable, left_out: Skipped) -> str:
    """The sentence that no row of a shard is an example, and why."""
    return (
        f'the shard has no example: in source "{shard.source}" every row was left out ({reasons(left_out)}). Name '
        "the columns that hold texts and labels."
    )


def reasons(left_out: Skipped) -> str:
    """How many rows were left out, by reason."""
    return ", ".join(f"{count:,} {reason}" for reason, count in left_out.reasons.most_common())
