"""The runs in a party's ledger: joined under an account, ended by erasing their noise keys."""

import contextlib
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from party.ledger.accounts import Opened
from party.ledger.database import FILE, connect, held, reading, transaction

_OWN: Final = "(account = ? OR (account IS NULL AND ?))"
"""Whether a run belongs to this account: its training was counted under it, so it cannot be charged to another."""


@dataclass(frozen=True, slots=True)
class JoinedRun:
    """A run that was joined; `left_at` is None while it is open. Times are seconds since 1970."""

    id: str
    joined_at: float
    left_at: float | None


def joined_runs(sql: sqlite3.Connection) -> tuple[JoinedRun, ...]:
    """All runs that were ever joined."""
    rows = sql.execute("SELECT id, joined_at, left_at FROM runs ORDER BY joined_at, id")
    return tuple(JoinedRun(*row) for row in rows)


def bound(sql: sqlite3.Connection, own: Opened, run: str) -> tuple[bytes, float | None, bool] | None:
    """A run's plan hash, when it was left (None while it is open) and whether it is this account's; None if unknown."""
    row = sql.execute(f"SELECT plan_hash, left_at, {_OWN} FROM runs WHERE id = ?", (*_ownership(own), run)).fetchone()
    return None if row is None else (bytes(row[0]), row[1], bool(row[2]))


def add(sql: sqlite3.Connection, own: Opened, run: str, plan_hash: bytes) -> None:
    """Join a run under an account, inside a transaction."""
    sql.execute(
        "INSERT INTO runs (id, plan_hash, joined_at, account) VALUES (?, ?, ?, ?)",
        (run, plan_hash, time.time(), own.number),
    )


def plan_of(sql: sqlite3.Connection, own: Opened, run: str) -> bytes | None:
    """The plan hash of a run that joined under this account and has not left, else None."""
    row = sql.execute(
        f"SELECT plan_hash FROM runs WHERE {_OWN} AND id = ? AND left_at IS NULL", (*_ownership(own), run)
    ).fetchone()
    return None if row is None else bytes(row[0])


def end_run(sql: sqlite3.Connection, run: str) -> None:
    """Erase a run's noise keys from every file; its charges stay."""
    with transaction(sql):
        sql.execute("UPDATE reservations SET noise_key = NULL WHERE run = ?", (run,))
        sql.execute("UPDATE runs SET left_at = ? WHERE id = ? AND left_at IS NULL", (time.time(), run))
    # Until the log is written back and cut, the erased keys can be read in it.
    sql.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def read_runs(path: Path) -> tuple[JoinedRun, ...]:
    """All runs that the ledger file knows; safe beside a running node. Raises `PartyError`."""
    if not path.exists():
        return ()
    with reading(path) as sql:
        return joined_runs(sql)


def purge_run(folder: Path, run: str) -> None:
    """As `Ledger.leave`, where no node runs and no account is opened. Raises `PartyError` while a node runs."""
    with held(folder):
        path = folder / FILE
        if path.exists():
            with contextlib.closing(connect(path)) as sql:
                end_run(sql, run)


def _ownership(own: Opened) -> tuple[int, bool]:
    """The parameters of `_OWN`."""
    return own.number, own.uncounted
