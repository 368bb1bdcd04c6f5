"""Where a plan's public text comes from."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from learning.text import Source
from protos.settings import Settings


class SourceTable(Settings):
    """Where text comes from: a built-in source, a local file, pattern or folder, or a name on a data hub."""

    source: Annotated[str, Field(min_length=1)]
    text: str = "text"
    id: str | None = None
    label: str | None = None
    split: str = "train"
    stream: bool = False


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
