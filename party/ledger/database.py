"""The ledger's file: its tables, the migration of older files, its transactions, and the folder's lock."""

import contextlib
import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from party.errors import PartyError
from party.store.disk import is_full

FILE: Final = "ledger.sqlite"
CENSUS_KEY_BYTES: Final = 32

_STEPS: Final = (
    """
    CREATE TABLE IF NOT EXISTS accounts (
      id TEXT PRIMARY KEY, lineage TEXT UNIQUE NOT NULL, epsilon REAL NOT NULL, delta REAL NOT NULL,
      simulation INTEGER NOT NULL, opened_at REAL NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS runs (
      id TEXT PRIMARY KEY, plan_hash BLOB NOT NULL, joined_at REAL NOT NULL, left_at REAL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS reservations (
      id INTEGER PRIMARY KEY, account TEXT NOT NULL REFERENCES accounts(id), run TEXT NOT NULL REFERENCES runs(id),
      release TEXT NOT NULL, attempt INTEGER NOT NULL, event TEXT NOT NULL, noise_key BLOB,
      reserved_at REAL NOT NULL, answered_at REAL, UNIQUE (run, release, attempt)
    ) STRICT;
    CREATE TABLE IF NOT EXISTS blocks (
      reservation INTEGER NOT NULL REFERENCES reservations(id), batch INTEGER NOT NULL, digest BLOB NOT NULL,
      start INTEGER NOT NULL, stop INTEGER NOT NULL, PRIMARY KEY (reservation, batch)
    ) STRICT
    """,
    # An account that was charged, or may be, without a count of its units may share any: `uncounted`. A run belongs to
    # the account that joined it; one from before belongs to any of those.
    """
    ALTER TABLE accounts ADD COLUMN number INTEGER;
    ALTER TABLE accounts ADD COLUMN uncounted INTEGER NOT NULL DEFAULT 0;
    UPDATE accounts SET number = rowid, uncounted =
      EXISTS (SELECT 1 FROM reservations WHERE account = accounts.id)
      OR EXISTS (SELECT 1 FROM runs WHERE left_at IS NULL);
    ALTER TABLE runs ADD COLUMN account INTEGER;
    CREATE UNIQUE INDEX account_numbers ON accounts (number);
    CREATE TABLE units (
      hash BLOB NOT NULL, account INTEGER NOT NULL, kind INTEGER NOT NULL, PRIMARY KEY (hash, account)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE links (
      one INTEGER NOT NULL, other INTEGER NOT NULL, PRIMARY KEY (one, other)
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE log (at REAL NOT NULL, account TEXT NOT NULL, what TEXT NOT NULL, by TEXT NOT NULL) STRICT;
    CREATE TABLE secret (census_key BLOB NOT NULL) STRICT
    """,
    """
    CREATE TABLE revealed (
      reservation INTEGER PRIMARY KEY REFERENCES reservations(id), survivors BLOB NOT NULL, at REAL NOT NULL
    ) STRICT
    """,
    # `masked`: charged for a masked vector and nothing else; what was charged before is not known to be, and stays.
    """
    ALTER TABLE reservations ADD COLUMN masked INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE reservations ADD COLUMN refunded_at REAL;
    CREATE TABLE disclaimed (
      run TEXT NOT NULL REFERENCES runs(id), release TEXT NOT NULL, attempt INTEGER NOT NULL, at REAL NOT NULL,
      PRIMARY KEY (run, release, attempt)
    ) STRICT, WITHOUT ROWID
    """,
    # `unsent`: charged before a training, and nothing of that release has left since; what was charged before may have.
    """
    ALTER TABLE reservations ADD COLUMN unsent INTEGER NOT NULL DEFAULT 0
    """,
    # What an account's cap is about; NULL for one from before that was kept. `blank`: answered without text. `request`:
    # what the text was opened for, the digest of a training's request; NULL where nothing was trained for the charge.
    """
    ALTER TABLE accounts ADD COLUMN unit TEXT;
    ALTER TABLE accounts ADD COLUMN relation TEXT;
    ALTER TABLE runs ADD COLUMN blank INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE reservations ADD COLUMN blank INTEGER NOT NULL DEFAULT 0;
    ALTER TABLE reservations ADD COLUMN request BLOB
    """,
    # An account without a cap has no epsilon and no delta, and says so: NULL in neither place means 0.
    """
    CREATE TABLE accounts_anew (
      id TEXT PRIMARY KEY, lineage TEXT UNIQUE NOT NULL, epsilon REAL, delta REAL, simulation INTEGER NOT NULL,
      opened_at REAL NOT NULL, number INTEGER, uncounted INTEGER NOT NULL DEFAULT 0, unit TEXT, relation TEXT,
      CHECK ((epsilon IS NULL) = (delta IS NULL))
    ) STRICT;
    INSERT INTO accounts_anew
      SELECT id, lineage, epsilon, delta, simulation, opened_at, number, uncounted, unit, relation FROM accounts;
    DROP TABLE accounts;
    ALTER TABLE accounts_anew RENAME TO accounts;
    CREATE UNIQUE INDEX account_numbers ON accounts (number)
    """,
)
VERSION: Final = len(_STEPS)
"""`PRAGMA user_version` of a ledger that is up to date."""

COUNTING_UNITS: Final = 2
REFUNDING: Final = 4
PROTECTING: Final = 6
"""The versions from which a ledger counts units, can take a charge back, and says what its accounts protect. An older
ledger lacks these.
"""


def connect(path: Path) -> sqlite3.Connection:
    """Open a ledger for writing; made with mode 0600, or migrated in one transaction, where need be. A copy of one
    that is migrated stays beside it (`backup_of`).

    Raises `PartyError` for a file that is not a ledger, that a newer version wrote, or that is a copy.
    """
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        _check_original(connection, path)
        _back_up(connection, path)
        bring_up_to_date(connection, path)
        connection.execute("PRAGMA foreign_keys = ON")
    except sqlite3.DatabaseError as error:
        connection.close()
        if is_full(error):
            raise
        raise PartyError(f"{path} is not a ledger: {error}.", code="C605") from None
    except BaseException:
        connection.close()
        raise
    return connection


def backup_of(path: Path, version: int) -> Path:
    """Where the copy lies that was made of a ledger of this version before it was migrated. It has no noise keys: runs
    that went on then cannot go on with it, and nobody who finds it can take any noise away.
    """
    return path.with_name(f"{path.stem}-version-{version}{path.suffix}")


def mark_copy(sql: sqlite3.Connection) -> None:
    """Mark a file as a copy, made now, which no node opens (`party.ledger.copying`)."""
    sql.execute("CREATE TABLE copied (at REAL NOT NULL) STRICT")
    sql.execute("INSERT INTO copied VALUES (?)", (time.time(),))


def copied_at(sql: sqlite3.Connection) -> float | None:
    """When a file was made as a copy, in seconds since 1970; None for a ledger."""
    if not sql.execute("SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'copied')").fetchone()[0]:
        return None
    return float(sql.execute("SELECT at FROM copied").fetchone()[0])


def version_of(sql: sqlite3.Connection) -> int:
    """How many of the migrations a ledger has had."""
    return int(sql.execute("PRAGMA user_version").fetchone()[0])


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A consistent read-only view of a ledger, beside a running node. Raises `PartyError` for a file that is not
    one.
    """
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as sql:
        sql.isolation_level = None
        try:
            sql.execute("BEGIN")
            check_version(version_of(sql), path)
            _check_original(sql, path)
            yield sql
        except sqlite3.DatabaseError as error:
            raise PartyError(f"{path} is not a ledger: {error}.", code="C605") from None


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """An atomic transaction, on disk when the context closes."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        # A full disk shows at the commit, or makes SQLite roll back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def lock_folder(folder: Path, cure: str = "Stop that one, or give this party another folder") -> int:
    """Lock `folder` for this process until it ends, however it ends. Raises `PartyError` where another node holds
    it.
    """
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise PartyError(f"{folder} is in use by another node. {cure}.", code="C704") from None
    return lock


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Lock `folder` inside the context. Raises `PartyError` while a node holds it."""
    lock = lock_folder(folder, "Stop that node first, then try again")
    try:
        yield
    finally:
        os.close(lock)


def _back_up(connection: sqlite3.Connection, path: Path) -> None:
    """Copy a ledger that is about to be migrated, whole or not at all."""
    have = version_of(connection)
    if not 0 < have < VERSION or (kept := backup_of(path, have)).exists():
        return
    part = kept.with_name(f".{kept.name}.part")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with contextlib.closing(sqlite3.connect(part, isolation_level=None)) as copy:
        connection.backup(copy)
        copy.execute("PRAGMA journal_mode = DELETE")
        copy.execute("PRAGMA secure_delete = ON")
        copy.execute("UPDATE reservations SET noise_key = NULL")
        copy.execute("VACUUM")
    part.replace(kept)


def bring_up_to_date(connection: sqlite3.Connection, path: Path) -> None:
    """Migrate a ledger in one transaction. Raises `PartyError` where a newer version wrote it. path: as
    the message names it.
    """
    if version_of(connection) == VERSION:
        return
    connection.execute("PRAGMA foreign_keys = OFF")  # a migration makes a table anew that others refer to
    with transaction(connection) as sql:
        have = version_of(sql)
        check_version(have, path)
        for step in _STEPS[have:]:
            for statement in step.split(";"):
                sql.execute(statement)
        if not sql.execute("SELECT EXISTS (SELECT 1 FROM secret)").fetchone()[0]:
            sql.execute("INSERT INTO secret VALUES (?)", (secrets.token_bytes(CENSUS_KEY_BYTES),))
        sql.execute(f"PRAGMA user_version = {VERSION}")


def check_version(have: int, path: Path) -> None:
    """Raises `PartyError` for a ledger of a newer version."""
    if have > VERSION:
        raise PartyError(f"{path} was written by a newer version of Conclave. Install that one here.", code="C504")


def _check_original(sql: sqlite3.Connection, path: Path) -> None:
    """Raises `PartyError` for a copy: it would forget what was charged since it was made."""
    made = copied_at(sql)
    if made is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(made))
        raise PartyError(
            f"{path} is a copy of a ledger, made {when}: what was charged since then is not in it. Move it out of this "
            "folder, and put it back on record: party account restore COPY",
            code="C605",
        )
