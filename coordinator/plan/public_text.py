"""Where a plan's public text comes from."""

from pathlib import Path, PurePath
from typing import Annotated

from pydantic import Field

from learning.text.hub import is_hub_name
from learning.text.source import Source
from protos.console.settings import Settings


class SourceTable(Settings):
    """Where text comes from: a built-in source, a local file, pattern or folder, or a name on a data hub.

    like_parties: that whoever wrote the plan knows it to be text of the kind that the parties hold, which nothing that
    is public can tell: `coordinator.forecasting.kinship` warns where nobody says so.
    """

    source: Annotated[str, Field(min_length=1)]
    text: str = "text"
    id: str | None = None
    label: str | None = None
    split: str = "train"
    stream: bool = False
    like_parties: bool = False


def named(source: str) -> str:
    """A source's or a model's name without the place where it lies: the last part of a path, and a hub's name whole.

    It goes by the name alone, never by what is there, so that a plan whose files moved has the same hash. A folder that
    is named as a hub's data is, by two words and a slash, keeps both.
    """
    if is_hub_name(source):
        return source
    return PurePath(source).name or "."


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
