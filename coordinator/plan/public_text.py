"""The sources of a plan's public text."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field

from coordinator.plan.table import Table
from learning.text.reading import UTF_8, check_delimiter, check_encoding
from learning.text.source import Source

Encoding = Annotated[str, AfterValidator(check_encoding)]
Delimiter = Annotated[str, AfterValidator(check_delimiter)]
Sheet = Annotated[str, Field(min_length=1)]


class SourceTable(Table):
    """A source of text: a built-in source, a local file, pattern or folder, or a name on a data hub.

    source: `documentation` and its parts, which are built in; a file, pattern or folder, relative to the plan; or a
    name on a data hub. text, id, label: columns; without `id` a document is known by the digest of its text. split,
    stream: of a data hub alone: which split, and whether rows are streamed and not kept. like_parties: the plan's
    author knows it to be text of the kind that the parties hold. Nothing public can show this, so forecasts and runs
    warn where nobody says so. OF_THEIR_KIND: whether a table of this class needs such text; a corpus does not, because
    private-like texts are chosen from it. encoding, delimiter: of local files, by default UTF-8, and a comma in .csv.
    sheet: of an Excel workbook (.xlsx), where several have rows.
    """

    PLACES: ClassVar[tuple[str, ...]] = ("source",)
    FOR_PEOPLE: ClassVar[tuple[str, ...]] = ("like_parties",)
    LATER: ClassVar[tuple[str, ...]] = ("encoding", "delimiter", "sheet")
    OF_THEIR_KIND: ClassVar[bool] = True

    source: Annotated[str, Field(min_length=1)]
    text: str = "text"
    id: str | None = None
    label: str | None = None
    split: str = "train"
    stream: bool = False
    encoding: Encoding | None = None
    delimiter: Delimiter | None = None
    sheet: Sheet | None = None
    like_parties: bool = False


def source_of(table: SourceTable, base: Path) -> Source:
    """A plan's table as a source; paths are relative to the plan."""
    local = (base / table.source).exists() or any(sign in table.source for sign in "*?[")
    return Source(
        source=str(base / table.source) if local else table.source,
        text=table.text,
        id=table.id,
        label=table.label,
        split=table.split,
        stream=table.stream,
        encoding=table.encoding or UTF_8,
        delimiter=table.delimiter,
        sheet=table.sheet,
    )
