"""The sources of a plan's public text."""

from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from coordinator.plan.table import Table
from learning.text.source import Source


class SourceTable(Table):
    """A source of text: a built-in source, a local file, pattern or folder, or a name on a data hub.

    like_parties: the plan's author knows it to be text of the kind that the parties hold. Nothing public can show this,
    so `coordinator.forecasting.kinship` warns where nobody says so. OF_THEIR_KIND: whether a table of this class needs
    such text; a corpus does not, because private-like texts are chosen from it.
    """

    PLACES: ClassVar[tuple[str, ...]] = ("source",)
    FOR_PEOPLE: ClassVar[tuple[str, ...]] = ("like_parties",)
    OF_THEIR_KIND: ClassVar[bool] = True

    source: Annotated[str, Field(min_length=1)]
    text: str = "text"
    id: str | None = None
    label: str | None = None
    split: str = "train"
    stream: bool = False
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
    )
