"""What this party has spent: an account of events in SQLite, one writer thread, on disk before anything leaves.

An account belongs to a lineage that the administrator names, not to a file: adding records or renaming resets nothing.
Its cap is enforced by a filter at one Renyi order, fixed when the account is opened, because what is asked later may
depend on what was answered before; so the guarantee over the account's life is the cap, not the sum of what ran.
"""

import asyncio
import contextlib
import fcntl
import json
import math
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self, TypeVar

from dp_accounting import DpEvent, get_epsilon_gaussian

from aggregation import events
from aggregation.accounting import LifetimeFilter
from party.errors import PartyError
from party.storage import is_full
from protos.refusal import Reason, Refusal

NOISE_KEY_BYTES: Final = 32

_SCHEMA: Final = """
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
) STRICT;
"""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Reservation:
    """One event that an account was charged. Times are seconds since 1970; `answered_at` is None until a byte left."""

    run: str
    release: str
    attempt: int
    event: DpEvent
    reserved_at: float
    answered_at: float | None


@dataclass(frozen=True, slots=True)
class Account:
    """An account as it stands. `id` is random: it is all of the ledger that may leave the party."""

    id: str
    lineage: str
    epsilon: float
    delta: float
    simulation: bool
    opened_at: float
    reservations: tuple[Reservation, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to noise one block: made once, on disk already. `noise_key` belongs to the release, 32 bytes."""

    noise_key: bytes
    fresh: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """An account in figures. cap: its epsilon. runs: how many are open.

    spent, left: epsilon at the cap's delta of one Gaussian release that is worth all that was charged, and of the
    largest one that is still admitted; they do not add up to the cap.
    """

    cap: float
    spent: float
    left: float
    runs: int


@dataclass(frozen=True, slots=True)
class JoinedRun:
    """A run that was joined; `left_at` is None while it is open. Times are seconds since 1970."""

    id: str
    joined_at: float
    left_at: float | None


class Ledger:
    """The one writer of a party's ledger. Every method returns when what it wrote is on disk."""

    def __init__(self, path: Path, writer: ThreadPoolExecutor, connection: sqlite3.Connection, lock: int) -> None:
        self._path = path
        self._writer = writer
        self._connection = connection
        self._lock = lock
        self._account = ""
        self._filter: LifetimeFilter

    @classmethod
    async def open(cls, folder: Path, lineage: str, *, epsilon: float, delta: float, simulation: bool) -> Self:
        """Open `folder`/ledger.sqlite, made with mode 0600, and the lineage's account, opened when it is new.

        Raises `PartyError` when another node holds the folder, when the file is no ledger, or when the account was
        opened under another cap: a cap holds for the life of the data.
        """
        lock = _lock(folder)
        writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        try:
            loop = asyncio.get_running_loop()
            path = folder / "ledger.sqlite"
            connection = await loop.run_in_executor(writer, _connect, path)
            ledger = cls(path, writer, connection, lock)
            try:
                await ledger._write(lambda: ledger._open_account(lineage, epsilon, delta, simulation))
            except BaseException:
                await ledger._write(connection.close)
                raise
        except BaseException:
            writer.shutdown()
            os.close(lock)
            raise
        return ledger

    @property
    def account(self) -> str:
        """The account's random id."""
        return self._account

    async def join(self, run: str, plan_hash: bytes, wanted: Sequence[tuple[str, DpEvent]]) -> None:
        """Bind a run id to a plan, provided the account can pay for all its releases. Spends nothing. Idempotent.

        Raises `Refusal`: CONFLICT for another plan under this id, NOT_JOINED for a run that ended, BUDGET.
        """
        await self._write(lambda: self._join(run, plan_hash, wanted))

    async def leave(self, run: str) -> None:
        """End a run: its noise keys are erased, its charges stay. Idempotent; an unknown run is not an error."""
        await self._write(lambda: self._leave(run))

    async def joined(self, run: str) -> bytes | None:
        """The plan hash of a run that joined and has not left, else None."""
        return await self._write(lambda: self._joined(run))

    async def reserve(self, run: str, release: str, event: DpEvent, *, attempt: int = 0) -> bytes:
        """Charge the account with one release's event; on disk when this returns. Idempotent per run, release, attempt.

        Returns the release's noise key. Raises `Refusal` (BUDGET) naming what is left.
        """
        return await self._write(lambda: self._reserve(run, release, event, attempt))

    async def claim(
        self, run: str, release: str, event: DpEvent, batch: int, digest: bytes, rows: tuple[int, int]
    ) -> Claim:
        """Reserve the release if it is not yet, and take rows [start, stop) of it for one batch, in one transaction.

        A row is noised once: asking twice under different batches would let an average take the noise off.
        Raises `Refusal`: CONFLICT for a batch number that stands for another digest, or for rows already taken; BUDGET.
        """
        return await self._write(lambda: self._claim(run, release, event, batch, digest, rows))

    async def reserved(self, run: str, release: str) -> bool:
        """Whether a release of a run was charged already."""
        return await self._write(lambda: self._reservation(run, release, 0) is not None)

    async def answered(self, run: str, release: str) -> None:
        """Note the first time that bytes of a release left."""
        await self._write(lambda: self._answered(run, release))

    async def runs(self) -> tuple[JoinedRun, ...]:
        """All runs that were ever joined."""
        return await self._write(lambda: _runs(self._connection))

    async def budget(self) -> Budget:
        """What is spent and what is left."""
        return await self._write(self._budget)

    async def close(self) -> None:
        """Finish what was asked for and let go of the folder. Idempotent."""
        if self._lock < 0:
            return
        await self._write(self._connection.close)
        self._writer.shutdown()
        os.close(self._lock)
        self._lock = -1

    async def _write(self, act: Callable[[], Value]) -> Value:
        """Run `act` on the writer thread. Shielded: a caller that goes away does not tear a transaction."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._writer, act))

    def _open_account(self, lineage: str, epsilon: float, delta: float, simulation: bool) -> None:
        with _transaction(self._connection) as sql:
            row = sql.execute(
                "SELECT id, epsilon, delta, simulation FROM accounts WHERE lineage = ?", (lineage,)
            ).fetchone()
            if row is None:
                self._account = secrets.token_hex(16)
                sql.execute(
                    "INSERT INTO accounts VALUES (?, ?, ?, ?, ?, ?)",
                    (self._account, lineage, epsilon, delta, int(simulation), time.time()),
                )
            elif (row[1], row[2]) != (epsilon, delta):
                raise PartyError(
                    f"{self._path}: the account {lineage} was opened with epsilon = {row[1]:g} and delta = {row[2]:g}, "
                    f"the policy now says {epsilon:g} and {delta:g}. A cap holds for the life of the data: restore it."
                )
            elif bool(row[3]) != simulation:
                was = "a simulation" if row[3] else "private text"
                raise PartyError(
                    f"{self._path}: the account {lineage} was opened for {was}; [policy] simulation says otherwise. "
                    "Restore it, or name another account."
                )
            else:
                self._account = row[0]
        self._filter = LifetimeFilter(epsilon, delta)

    def _join(self, run: str, plan_hash: bytes, wanted: Sequence[tuple[str, DpEvent]]) -> None:
        with _transaction(self._connection) as sql:
            row = sql.execute("SELECT plan_hash, left_at FROM runs WHERE id = ?", (run,)).fetchone()
            if row is not None and row[1] is not None:
                raise Refusal(Reason.NOT_JOINED, f"run {run} has ended here; start a new run.")
            if row is not None and bytes(row[0]) != plan_hash:
                raise Refusal(Reason.CONFLICT, f"run {run} is bound to another plan here; start a new run.")
            spent = self._events()
            for release, event in wanted:
                if self._reservation(run, release, 0) is None:
                    self._admit(spent, event, release)
                    spent.append(event)
            if row is None:
                sql.execute("INSERT INTO runs VALUES (?, ?, ?, NULL)", (run, plan_hash, time.time()))

    def _leave(self, run: str) -> None:
        _end(self._connection, run)

    def _budget(self) -> Budget:
        charged, runs = self._events(), _runs(self._connection)
        own = self._filter
        divergence = own.spent(charged) if charged else 0.0
        spent = math.inf if divergence else 0.0
        if 0 < divergence < math.inf:
            spent = float(get_epsilon_gaussian(math.sqrt(own.order / (2 * divergence)), own.delta))
        return Budget(own.epsilon, spent, own.left(charged), sum(1 for run in runs if run.left_at is None))

    def _joined(self, run: str) -> bytes | None:
        row = self._connection.execute("SELECT plan_hash FROM runs WHERE id = ? AND left_at IS NULL", (run,)).fetchone()
        return None if row is None else bytes(row[0])

    def _reserve(self, run: str, release: str, event: DpEvent, attempt: int) -> bytes:
        with _transaction(self._connection):
            return self._reserve_within(run, release, event, attempt)[1]

    def _reserve_within(self, run: str, release: str, event: DpEvent, attempt: int) -> tuple[int, bytes]:
        """Id and noise key of the reservation, made if it is not there. Inside a transaction."""
        row = self._reservation(run, release, attempt)
        if row is not None:
            if row[1] is None:
                raise Refusal(Reason.NOT_JOINED, f"run {run} has ended here; start a new run.")
            return row[0], row[1]
        if self._joined(run) is None:
            raise Refusal(Reason.NOT_JOINED, f"run {run} is not joined here.")
        self._admit(self._events(), event, release)
        key = secrets.token_bytes(NOISE_KEY_BYTES)
        cursor = self._connection.execute(
            "INSERT INTO reservations (account, run, release, attempt, event, noise_key, reserved_at) "
            "VALUES (?, ?, ?, ?, ?, ?, ?)",
            (self._account, run, release, attempt, json.dumps(events.to_json(event)), key, time.time()),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid, key

    def _claim(self, run: str, release: str, event: DpEvent, batch: int, digest: bytes, rows: tuple[int, int]) -> Claim:
        start, stop = rows
        with _transaction(self._connection) as sql:
            reservation, key = self._reserve_within(run, release, event, 0)
            row = sql.execute(
                "SELECT digest FROM blocks WHERE reservation = ? AND batch = ?", (reservation, batch)
            ).fetchone()
            if row is not None:
                if bytes(row[0]) != digest:
                    raise Refusal(Reason.CONFLICT, f"batch {batch} of {release} stands for another request already.")
                return Claim(key, fresh=False)
            taken = sql.execute(
                "SELECT batch, start, stop FROM blocks WHERE reservation = ? AND start < ? AND stop > ? LIMIT 1",
                (reservation, stop, start),
            ).fetchone()
            if taken is not None:
                raise Refusal(
                    Reason.CONFLICT,
                    f"rows {start} to {stop} of {release} overlap rows {taken[1]} to {taken[2]} of batch {taken[0]}; "
                    "a row is noised once. Ask for that batch again instead.",
                )
            sql.execute("INSERT INTO blocks VALUES (?, ?, ?, ?, ?)", (reservation, batch, digest, start, stop))
            return Claim(key, fresh=True)

    def _answered(self, run: str, release: str) -> None:
        with _transaction(self._connection) as sql:
            sql.execute(
                "UPDATE reservations SET answered_at = ? WHERE run = ? AND release = ? AND answered_at IS NULL",
                (time.time(), run, release),
            )

    def _reservation(self, run: str, release: str, attempt: int) -> tuple[int, bytes | None] | None:
        row = self._connection.execute(
            "SELECT id, noise_key FROM reservations WHERE run = ? AND release = ? AND attempt = ?",
            (run, release, attempt),
        ).fetchone()
        return None if row is None else (row[0], row[1])

    def _events(self) -> list[DpEvent]:
        rows = self._connection.execute("SELECT event FROM reservations WHERE account = ?", (self._account,))
        return [events.from_json(json.loads(event)) for (event,) in rows]

    def _admit(self, spent: Sequence[DpEvent], event: DpEvent, release: str) -> None:
        if not self._filter.admits(spent, event):
            raise Refusal(
                Reason.BUDGET,
                f"the ledger cannot pay for {release}: of the cap of {self._filter.epsilon:g}, a release of epsilon "
                f"{math.floor(self._filter.left(spent) * 1000) / 1000:g} at delta {self._filter.delta:g} is left. "
                "(A cap over all runs to come counts a release for somewhat more than one plan does for itself.)",
            )


def read_account(path: Path, lineage: str) -> Account | None:
    """The account of a lineage as the ledger file has it; safe beside a running node. Raises `PartyError`."""
    if not path.exists():
        return None
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as sql:
        try:
            row = sql.execute(
                "SELECT id, lineage, epsilon, delta, simulation, opened_at FROM accounts WHERE lineage = ?", (lineage,)
            ).fetchone()
            if row is None:
                return None
            charged = sql.execute(
                "SELECT run, release, attempt, event, reserved_at, answered_at FROM reservations "
                "WHERE account = ? ORDER BY id",
                (row[0],),
            ).fetchall()
        except sqlite3.DatabaseError as error:
            raise PartyError(f"{path} is not a ledger: {error}.") from None
    reservations = tuple(Reservation(r[0], r[1], r[2], events.from_json(json.loads(r[3])), r[4], r[5]) for r in charged)
    return Account(row[0], row[1], row[2], row[3], bool(row[4]), row[5], reservations)


def read_runs(path: Path) -> tuple[JoinedRun, ...]:
    """All runs that the ledger file knows; safe beside a running node. Raises `PartyError`."""
    if not path.exists():
        return ()
    with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as sql:
        try:
            return _runs(sql)
        except sqlite3.DatabaseError as error:
            raise PartyError(f"{path} is not a ledger: {error}.") from None


def end_run(folder: Path, run: str) -> None:
    """What `Ledger.leave` does, where no node runs: no account is opened. Raises `PartyError` while a node does."""
    lock = _lock(folder, "Stop that node first, then try again")
    path = folder / "ledger.sqlite"
    try:
        if path.exists():
            with contextlib.closing(_connect(path)) as connection:
                _end(connection, run)
    finally:
        os.close(lock)


def _end(connection: sqlite3.Connection, run: str) -> None:
    with _transaction(connection) as sql:
        sql.execute("UPDATE reservations SET noise_key = NULL WHERE run = ?", (run,))
        sql.execute("UPDATE runs SET left_at = ? WHERE id = ? AND left_at IS NULL", (time.time(), run))
    # Until the log is written back and cut, the erased keys can be read in it.
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _runs(connection: sqlite3.Connection) -> tuple[JoinedRun, ...]:
    rows = connection.execute("SELECT id, joined_at, left_at FROM runs ORDER BY joined_at, id")
    return tuple(JoinedRun(*row) for row in rows)


def _connect(path: Path) -> sqlite3.Connection:
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA secure_delete = ON")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.executescript(_SCHEMA)
    except sqlite3.DatabaseError as error:
        connection.close()
        if is_full(error):
            raise
        raise PartyError(f"{path} is not a ledger: {error}.") from None
    return connection


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or nothing, and on disk when it closes."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
        connection.execute("COMMIT")
    except BaseException:
        # A full disk is found at the commit, or has SQLite roll back by itself.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _lock(folder: Path, cure: str = "Stop that one, or give this party another folder") -> int:
    """Hold `folder` for this process until it ends, however it ends."""
    lock = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise PartyError(f"{folder} is in use by another node. {cure}.") from None
    return lock
