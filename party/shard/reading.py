"""How a job reads its shard: by which units, who may be told of problems, and where the census goes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from learning.text.labelled import TextColumns
from learning.text.source import Document, Skipped
from party.ledger.census import Census, written
from party.shard.units import Kind, Unit, units
from party.shard_table import ShardTable


@dataclass(frozen=True, slots=True)
class Reading:
    """shard: the party's table. record, by_user, cache, frank: as `party.shard.units.units` takes them.

    declared_size: the public statement of how many records the shard has; None where the party's file makes none.
    census: where hashes of what is read go, made with `census_key`; None where none are made.
    """

    shard: ShardTable
    record: Kind
    by_user: bool
    cache: Path
    frank: bool
    declared_size: int | None = None
    census: Path | None = None
    census_key: bytes = b""

    @property
    def pairs(self) -> bool:
        """Whether every pair is a unit of its own."""
        return self.record == "pair" and not self.by_user

    @property
    def whose(self) -> tuple[str, str, bool]:
        """Which text is read, and by which unit: what makes two readings the same."""
        return self.shard.model_dump_json(), self.record, self.by_user

    @contextmanager
    def counted(self) -> Iterator[Census | None]:
        """The census, on disk when the context ends; None where none is wanted."""
        with ExitStack() as opened:
            census = None
            if self.census is not None:
                census = opened.enter_context(
                    written(self.census, self.census_key, self.shard, self.record, by_user=self.by_user)
                )
            yield census

    def units(
        self,
        *,
        noted: Callable[[Document], None] | None = None,
        skipped: Skipped | None = None,
        columns: TextColumns | None = None,
        also: tuple[str, ...] = (),
    ) -> Iterator[Unit]:
        """The units of this party's part of its source, as `party.shard.units.units` gives them; raises what it
        raises.
        """
        return units(
            self.shard,
            self.record,
            by_user=self.by_user,
            cache=self.cache,
            frank=self.frank,
            skipped=skipped,
            noted=noted,
            columns=columns,
            also=also,
        )
