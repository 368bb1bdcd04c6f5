"""Whether a party's shard can be read, up to its first usable record, and what its columns of codes hold."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from aggregation.errors import ConclaveError
from learning.errors import DataError
from learning.text.codes import MOST_CELLS
from learning.text.source import Source
from party.shard.units import source_of
from party.shard_table import ShardTable
from protos.console.checklist import Line, ok, to_do, warning

CODED_RECORDS: Final = 10_000
SHOWN_VALUES: Final = 8
"""Records whose control codes are looked at; values of a column that are shown, the most frequent ones."""


def readable(shard: ShardTable, home: Path) -> Line:
    """Check that the shard has a usable record: reads up to the first one, and does not look at its text."""
    from learning.text.reading import stated
    from learning.text.source import keys_offered, read

    with _cached(shard, home) as (source, cache):
        try:
            next(read(source, cache))
        except (ConclaveError, OSError) as error:
            return to_do("shard", str(error))
    said = f"{shard.source} can be read; columns {', '.join(source_of(shard).mapped)}"
    with suppress(DataError):
        offered = {key: value for key, value in keys_offered(shard.source).items() if key not in shard.model_fields_set}
        if offered:
            return warning(
                "shard", f"{said}; but it looks like {stated(offered)}: set that in [shard], or rows are lost"
            )
    return ok("shard", said)


def codes(shard: ShardTable, home: Path) -> Iterator[Line]:
    """Say what the first records hold in each column of control codes: for the administrator, who opened them."""
    from learning.text.source import records

    if not shard.codes:
        return
    found: dict[str, Counter[str]] = {name: Counter() for name in shard.codes}
    with _cached(shard, home) as (source, cache):
        source = replace(source, columns=(*source.columns, *shard.codes.values()))
        try:
            for document in islice(records(source, cache), CODED_RECORDS):
                for name, column in shard.codes.items():
                    found[name][document.fields.get(column, "").strip() if document is not None else ""] += 1
        except (ConclaveError, OSError) as error:
            yield to_do("codes", str(error))
            return
    said, many = [], False
    for name, values in found.items():
        rows, without = values.total(), values.pop("", 0)
        shown = ", ".join(f"{value[:20]!r} {count:,}" for value, count in values.most_common(SHOWN_VALUES))
        more = f" and {len(values) - SHOWN_VALUES:,} more" if len(values) > SHOWN_VALUES else ""
        said.append(f'{name} = "{shard.codes[name]}": {shown}{more}; none in {without:,} of the first {rows:,} records')
        many = many or len(values) > MOST_CELLS or without == rows
    line = "; ".join(said) + ". Plans may read these, and name the values that count"
    yield warning("codes", f"{line}; such a column makes no codes") if many else ok("codes", line)


@contextmanager
def _cached(shard: ShardTable, home: Path) -> Iterator[tuple[Source, Path]]:
    """The shard's source and cache. If nothing is cached yet, a download from the hub is begun but not completed."""
    with TemporaryDirectory(prefix="conclave-check-") as folder:
        cache, looked = home / "cache", shard
        if not cache.is_dir():
            cache, looked = Path(folder), shard.model_copy(update={"stream": True})
        yield source_of(looked), cache
