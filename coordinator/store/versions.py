"""The versions of a coordinator's databases: one of an earlier version is copied, then migrated in one transaction."""

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from coordinator.errors import RunError
from coordinator.reading import shown


def backup_of(path: Path, version: int) -> Path:
    """Where the copy of a database of this version lies, made before it was migrated."""
    return path.with_name(f"{path.stem}-version-{version}{path.suffix}")


def bring_up_to_date(connection: sqlite3.Connection, path: Path, steps: Sequence[str]) -> None:
    """Migrate the database at `path`, unless it is of the version that is the number of steps.

    connection: to it, with no transaction open. steps: the statements that lead from each version to the next; the
    first makes a new one, or one from before versions were stored. A copy stays beside one that held anything
    (`backup_of`). Raises `RunError` for one of a newer version, which is left as it is, sqlite3.Error and OSError.
    """
    if _checked(connection, path, len(steps)) == len(steps):
        return
    _back_up(connection, path)
    connection.execute("BEGIN IMMEDIATE")
    try:
        have = _checked(connection, path, len(steps))  # another process may have been first
        for step in steps[have:]:
            for statement in step.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(steps)}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _back_up(connection: sqlite3.Connection, path: Path) -> None:
    """Copy a database that holds anything, whole or not at all."""
    if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None:
        return
    kept = backup_of(path, _version(connection))
    if kept.exists():
        return
    part = kept.with_name(f".{kept.name}.part")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(part, isolation_level=None)) as copy:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
    part.replace(kept)


def _checked(connection: sqlite3.Connection, path: Path, newest: int) -> int:
    if (have := _version(connection)) > newest:
        raise RunError(
            f"{shown(path, 300)} was written by a newer version of Conclave (store {have}, here {newest}). Install "
            "that one here.",
            code="C504",
        )
    return have


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])
