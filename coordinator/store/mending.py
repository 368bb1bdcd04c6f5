"""A run's store begins anew under a mended plan, where nothing was spent under the earlier one."""

import json
import shutil
from typing import Any, Final

from coordinator.store.output import WRITTEN
from coordinator.store.store import RunStore

_LASTING: Final = frozenset(
    {"id", "name", "started", "status", "resumed", "replaced", "together", "caps", "accounts", "former", "cancel"}
)
"""Facts of the run itself, and of the parties that were started for it; all others are of its plan."""
_STALE: Final = "stale"


def begin_anew(store: RunStore, **facts: Any) -> None:
    """Forget what is stored of the run's plan, of which nothing was charged, and store the facts of another plan.

    In one transaction; the files that the run wrote under the earlier plan are removed after it.
    """
    with store.transaction() as transaction:
        lasting = ", ".join("?" * len(_LASTING))
        transaction.execute(f"DELETE FROM facts WHERE key NOT IN ({lasting})", sorted(_LASTING))
        transaction.execute("DELETE FROM stages WHERE name NOT IN ('prepare', 'price', 'start')")
        transaction.execute("DELETE FROM blocks")
        transaction.execute("DELETE FROM sums")
        transaction.executemany(
            "INSERT OR REPLACE INTO facts VALUES (?, ?)",
            [(key, json.dumps(value)) for key, value in (facts | {_STALE: True}).items()],
        )
    remove_stale(store)


def remove_stale(store: RunStore) -> None:
    """Remove the files of an earlier plan, also where a driver was killed before it had done so. Idempotent."""
    if store.fact(_STALE):
        for name in WRITTEN:
            shutil.rmtree(store.folder / name, ignore_errors=True)
        store.note(**{_STALE: None})
