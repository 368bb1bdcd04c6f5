"""Follows a run from another process, from its preparation to its end."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

from coordinator.errors import RunError
from coordinator.store.index import RunIndex
from coordinator.store.preparing import Announced, announcement
from coordinator.store.store import RESUMABLE, RunStore
from coordinator.store.watching import View, look

BEGINS: Final = 10.0
"""Seconds from the end of a preparation until a run is driven, at the most."""


def watch(
    run: Path | str, *, every: float = 1.0, prepared: Callable[[Announced], None] | None = None
) -> Iterator[View]:
    """A run's state now, and again every so many seconds, until it ends or stops; the last state is at rest.

    run: its id, a beginning of it, or its folder. prepared: told once of a run that is still being prepared, which is
    waited for. Raises `RunError` for a run that is not there, or that ended while it was prepared.
    """
    with closing(_begun(str(run), every / 2, prepared)) as store:
        view = look(store)
        while not view.at_rest:
            yield view
            time.sleep(every)
            view = look(store)
        yield view


def _begun(run: str, every: float, prepared: Callable[[Announced], None] | None) -> RunStore:
    """The run's store, once it has one."""
    awaited = None
    while (found := announcement(run)) is not None:
        if awaited is None and prepared is not None:
            prepared(found)
        awaited = found
        time.sleep(every)
    try:
        store = RunIndex().find(run if awaited is None else awaited.run)
    except RunError:
        if awaited is None:
            raise
        raise RunError(
            f"run {awaited.run} ended while it was prepared: no party was asked, and nothing was spent. Whoever "
            "started it was told why."
        ) from None
    until = time.monotonic() + (0 if awaited is None else BEGINS)
    while store.status() == RESUMABLE and time.monotonic() < until:  # made, and not driven yet
        time.sleep(every)
    return store
