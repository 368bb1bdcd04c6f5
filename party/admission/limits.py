"""Limits on one caller: concurrent calls, calls per second, queries per second, runs, memory.

A coordinator is admitted by its certificate but not trusted with the machine: excessive requests wait or are refused
with a sentence, and cost the node nothing that grows with them.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Final

from party.config import LimitsTable
from protos.refusal import Reason, Refusal

LINES_A_SECOND: Final = 10.0


class Pace:
    """A rate limit: so many a second on average, and at most one second's worth at once (token bucket)."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._free = max(1.0, rate)
        self._at = clock()

    def take(self, amount: float = 1.0) -> bool:
        """Take this many tokens if they are there; otherwise take none and return False."""
        self._fill()
        if amount > self._free:
            return False
        self._free -= amount
        return True

    def borrow(self, amount: float) -> float:
        """Take this many tokens in any case; returns the seconds until they would have been there."""
        self._fill()
        self._free -= amount
        return max(0.0, -self._free / self._rate)

    def _fill(self) -> None:
        now = self._clock()
        self._free = min(max(1.0, self._rate), self._free + (now - self._at) * self._rate)
        self._at = now


class Limits:
    """The current limits of a node."""

    def __init__(self, party: str, table: LimitsTable) -> None:
        self._party = party
        self._table = table
        self._calls = 0
        self._pace = Pace(table.calls_per_second)
        self._queries = None if table.queries_per_second is None else Pace(table.queries_per_second)

    @contextlib.contextmanager
    def call(self) -> Iterator[None]:
        """Count a call while it lasts. Raises `Refusal` (BUSY) when there are too many at a time or a second."""
        if self._calls >= self._table.calls or not self._pace.take():
            raise Refusal(
                Reason.BUSY,
                f"party {self._party} answers {self._table.calls} calls at a time and {self._table.calls_per_second:g} "
                "a second ([limits] in its party file). Ask again later.",
            )
        self._calls += 1
        try:
            yield
        finally:
            self._calls -= 1

    def check_runs(self, open_runs: int) -> None:
        """Raises `Refusal` (POLICY) where no more runs may be joined."""
        if open_runs >= self._table.runs:
            raise Refusal(
                Reason.POLICY,
                f"party {self._party} is in {open_runs} runs, and its party file allows [limits] runs = "
                f"{self._table.runs}. End one (coordinator cancel RUN), or have the party's administrator raise it.",
                "runs",
            )

    def check_block(self, rows: int, columns: int) -> None:
        """Raises `Refusal` (REQUEST) for more rows at once than a block may have, and for none.

        One row may always be asked for: what a run's rows take in memory, `check_memory` bounds.
        """
        most = max(1, self._table.block_mib * 2**20 // (4 * columns))
        if not 1 <= rows <= most:
            raise Refusal(
                Reason.REQUEST,
                f"{rows} rows at once are none or over the limit of {self._table.block_mib} MiB ([limits] block_mib of "
                f"party {self._party}); ask for 1 to {most}.",
            )

    def check_memory(self, size: int) -> None:
        """Raises `Refusal` (MEMORY) where a run's sums would not fit in what a run may hold.

        size: bytes, of all their cells, so that it says nothing of how many of them are 0.
        """
        if size > self._table.memory_mib * 2**20:
            raise Refusal(
                Reason.MEMORY,
                f"the sums of this run take {size / 2**20:,.0f} MiB at party {self._party}, and its party file allows "
                f"[limits] memory_mib = {self._table.memory_mib:,}.",
            )

    async def pace(self, queries: int) -> None:
        """Wait until so many queries may be answered."""
        if self._queries is not None and (seconds := self._queries.borrow(queries)):
            await asyncio.sleep(seconds)


class Quieter:
    """Keeps a flood of refusals from becoming a flood of log lines."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace = Pace(LINES_A_SECOND, clock)
        self._unsaid = 0

    def line(self, text: str) -> str | None:
        """The line as it is to be written, saying how many were left out before it; None to leave this one out."""
        if not self._pace.take():
            self._unsaid += 1
            return None
        unsaid, self._unsaid = self._unsaid, 0
        return f"{text} ({unsaid:,} more refusals were not written)" if unsaid else text
