"""`[shard]` of a party's own file: where its text is, and which columns are used."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, model_validator

from learning.text.labelled import LabelMap, LabelMapError
from learning.text.reading import UTF_8, check_delimiter, check_encoding
from protos.console.mistakes import SettingsError, printable
from protos.console.settings import Settings

_LOCAL_ENDINGS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".xlsx", ".txt", ".gz")

MOST_CLASSES = 1000
LONGEST_CLASS = 200
"""The most classes of a label map, and the most characters of a class or value, in any file or message."""


class PartTable(Settings):
    """`part`: which part of a source this party reads, where several parties on one machine divide it.

    by: "hash", "dirichlet", or the name of a column; all rows with one value of the column are in one part. parts: how
    many there are. part: from 0 to parts - 1. alpha, label: for "dirichlet", how uneven the parts are and over which
    column. seed: public.
    """

    by: Annotated[str, Field(min_length=1)] = "hash"
    parts: Annotated[int, Field(ge=1, le=1000)]
    part: Annotated[int, Field(ge=0)]
    alpha: Annotated[float, Field(gt=0)] | None = None
    label: str | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    @model_validator(mode="after")
    def _whole(self) -> "PartTable":
        if self.part >= self.parts:
            raise ValueError(f"[shard] part: part = {self.part} is not one of 0 to {self.parts - 1}.")
        if self.by == "dirichlet" and (self.alpha is None or self.label is None):
            raise ValueError('[shard] part: by = "dirichlet" needs a label column and an alpha such as 0.5.')
        if self.by != "dirichlet" and (self.alpha is not None or self.label is not None):
            raise ValueError('[shard] part: alpha and label belong to by = "dirichlet".')
        return self


def label_map(names: Sequence[str], values: Sequence[str] = ()) -> LabelMap:
    """The label map that a plan or a party file states. Raises `LabelMapError` for one that is not allowed here.

    That includes more than `MOST_CLASSES` classes, and names or values that are too long or not printable.
    """
    if len(names) > MOST_CLASSES:
        raise LabelMapError(f"The label map has {len(names):,} classes. Name {MOST_CLASSES:,} at most.")
    for each in (*names, *values):
        if len(each) > LONGEST_CLASS:
            raise LabelMapError(
                f"The label map has a class or value of {len(each):,} characters. Use {LONGEST_CLASS} at most."
            )
        if not each.isprintable():
            raise LabelMapError(f"The label map has {each[:40]!r}, which has characters that cannot be shown.")
    return LabelMap(tuple(names), tuple(values))


class ShardTable(Settings):
    """`[shard]`: where this party's text is, and which columns are used.

    source: a file, pattern or folder, relative to the party file; a name on a data hub; or "documentation". text, id,
    user, label: columns; without `id` a record is known by the digest of its text. split, stream: of a data hub alone:
    which split, and whether rows are streamed and not kept. part: of a source that several parties on one machine
    divide. second: the second text of a pair. labels, values: the classes that the label column means, in order, and
    the values it contains for each, by default their names; a plan with other classes is refused. Without `labels` the
    plan says what the column contains. codes: by the name that plans give it, each column that may be read for control
    codes; a plan that reads another is refused. encoding, delimiter: of local files, by default UTF-8, and a comma in
    .csv. sheet: of an Excel workbook (.xlsx), where several have rows.
    """

    source: Annotated[str, Field(min_length=1)]
    text: str = "text"
    second: str | None = None
    id: str | None = None
    user: str | None = None
    label: str | None = None
    labels: list[str] | None = None
    values: list[str] | None = None
    codes: dict[str, Annotated[str, Field(min_length=1)]] | None = None
    split: str = "train"
    stream: bool = False
    encoding: Annotated[str, AfterValidator(check_encoding)] = UTF_8
    delimiter: Annotated[str, AfterValidator(check_delimiter)] | None = None
    sheet: Annotated[str, Field(min_length=1)] | None = None
    part: PartTable | None = None

    @model_validator(mode="after")
    def _one_role_each(self) -> "ShardTable":
        if self.second is not None and self.second in (self.text, self.label):
            raise ValueError(
                f'[shard] second = "{self.second}" is the text or the label already. Name the column of second texts.'
            )
        return self

    @model_validator(mode="after")
    def _codes_are_no_text(self) -> "ShardTable":
        for name, column in (self.codes or {}).items():
            if not name.isidentifier():
                raise ValueError(f"[shard] codes: {name[:40]!r} is no name that a plan's template can have.")
            if column in (self.text, self.second):
                raise ValueError(
                    f'[shard] codes: {name} = "{column}" is a column of texts, and codes are values that everybody '
                    "may know. Name another column."
                )
        return self

    @model_validator(mode="after")
    def _map_of_a_column(self) -> "ShardTable":
        if self.labels is None:
            if self.values is not None:
                raise ValueError("[shard] values says what a column holds for each of labels. Add labels.")
            return self
        if self.label is None:
            raise ValueError("[shard] labels says what a label column means. Name that column: label.")
        try:
            label_map(self.labels, self.values or ())
        except LabelMapError as error:
            raise ValueError(f"[shard] labels: {error}") from None
        return self


def located(shard: ShardTable, base: Path) -> ShardTable:
    """The shard with a local source made absolute from `base`, the folder of the party file.

    Raises `SettingsError` when the source is plainly a local path and nothing is there.
    """
    source = shard.source
    pattern = any(sign in source for sign in "*?[")
    local = pattern or source.startswith(("/", "./", "../", "~")) or source.lower().endswith(_LOCAL_ENDINGS)
    path = _at_home(source) if source.startswith("~") else base / source
    there = bool(glob.glob(str(path), recursive=True)) if pattern else os.path.exists(path)  # False for too long a name
    if local and not there:
        what = "no file matches it" if pattern else "there is no such file or folder"
        raise SettingsError(printable(f'[shard] source = "{source}": {what} ({path.absolute()}).'), code="C201")
    return shard.model_copy(update={"source": str(path.absolute())}) if there else shard


def _at_home(source: str) -> Path:
    """A path that begins with `~`, expanded; unchanged where no such home exists."""
    try:
        return Path(source).expanduser()
    except RuntimeError:
        return Path(source)
