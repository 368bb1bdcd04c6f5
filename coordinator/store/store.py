"""One run in one folder: its facts, its stages, the blocks of its sums, and its driver.

The store keeps what was released and public artefacts, so that a leak of it reveals nothing private. Every file is
written under a temporary name and renamed; the SQLite row that names it is committed after that. So a kill at any point
leaves a store that opens and holds everything its rows name. Folders have mode 0700 and files 0600; a published student
is meant for others, so everybody may read its copy.
"""

import hashlib
import json
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from coordinator.errors import RunError
from coordinator.reading import shown
from coordinator.store import output
from coordinator.store.block_files import packed, unpacked
from coordinator.store.faults import broken, damaged, go_on, made_in, sound, written
from coordinator.store.machine import this_host
from coordinator.store.private_files import private_file, private_folder, write_whole
from coordinator.store.versions import bring_up_to_date
from protos.processes import lives

_RUN: Final = """
CREATE TABLE IF NOT EXISTS facts (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS stages (name TEXT PRIMARY KEY, started REAL NOT NULL, finished REAL, result TEXT);
CREATE TABLE IF NOT EXISTS blocks (
  release TEXT NOT NULL, batch INTEGER NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL,
  file TEXT NOT NULL, sha256 TEXT NOT NULL, stored REAL NOT NULL, PRIMARY KEY (release, batch)
);
CREATE TABLE IF NOT EXISTS sums (release TEXT PRIMARY KEY, parties TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS lease (
  one INTEGER PRIMARY KEY CHECK (one = 1), owner TEXT NOT NULL, host TEXT NOT NULL, process INTEGER NOT NULL,
  expires REAL NOT NULL
)"""
_STEPS: Final = (_RUN,)
VERSION: Final = len(_STEPS)
"""`PRAGMA user_version` of a run's database; one from before it was stored has 0, and the tables of version 1."""

_RUN_ID = re.compile(r"[a-z0-9-]{1,64}", re.ASCII)
RUNNING, RESUMABLE, FINISHED, FAILED, CANCELLED = "running", "resumable", "finished", "failed", "cancelled"


class RunStore:
    """One run's folder: `conclave-run.json`, `run.sqlite`, `blocks/`, `artefacts/`, and what the run publishes.

    `coordinator.store.output` lists every name in it: a file of another name is not the run's, and is never removed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.owner: str | None = None
        """Who drives the run in this process; the lease sets it. Writing then fails once another process has taken
        over.
        """
        # The loop's thread, a worker that stores blocks and the caller's thread take turns behind the lock.
        with written(folder):
            self._connection = sqlite3.connect(
                folder / "run.sqlite", timeout=30, check_same_thread=False, isolation_level=None
            )
            try:
                self._connection.execute("PRAGMA journal_mode = WAL")
                self._connection.execute("PRAGMA synchronous = FULL")
                bring_up_to_date(self._connection, folder / "run.sqlite", _STEPS)
            except OSError as error:
                self._connection.close()
                raise RunError(f"{folder} cannot be written: {error.strerror}. {go_on(None)}") from None
            except (sqlite3.Error, RunError):
                self._connection.close()
                raise
        self._lock = threading.RLock()

    @classmethod
    def create(cls, folder: Path, run_id: str, name: str, plan_hash: bytes) -> "RunStore":
        """Make the folder of a new run; it must be new, empty, or left by a run that was killed while it was made.

        Raises `RunError`.
        """
        check_unused(folder)
        with made_in(folder):
            private_folder(folder)
            with suppress(PermissionError):  # for an empty folder that somebody else made; its content is private
                folder.chmod(0o700)
            write_whole(folder / output.MARKER, output.marker_of(run_id))
            for left in folder.glob(f".{output.MARKER}.*.part"):  # from a run that was killed here
                left.unlink()
            private_file(folder / "run.sqlite")
        store = cls(folder)
        store.note(id=run_id, name=name, plan_hash=plan_hash.hex(), started=time.time(), status=RUNNING)
        return store

    @property
    def id(self) -> str:
        """The random run id. Raises `RunError` where the stored one is damaged."""
        found = self.fact("id")
        if not isinstance(found, str) or _RUN_ID.fullmatch(found) is None:
            raise damaged(self.folder, "it has no run id")
        return found

    @property
    def joined_as(self) -> str:
        """The id under which parties know the run: its own, or another once they joined a mended plan."""
        with sound(self.folder):
            found = self.fact("joined_as") or self.id
            if _RUN_ID.fullmatch(found) is None:
                raise ValueError("its parties know it under no run id")
            return str(found)

    @property
    def plan_hash(self) -> bytes:
        """The plan hash under which the run began. Raises `RunError` where the stored one is damaged."""
        with sound(self.folder):
            return bytes.fromhex(self.fact("plan_hash"))

    def note(self, **facts: Any) -> None:
        """Store facts of the run, as JSON, in one transaction."""
        with self.transaction() as transaction:
            transaction.executemany(
                "INSERT OR REPLACE INTO facts VALUES (?, ?)", [(key, json.dumps(value)) for key, value in facts.items()]
            )

    def fact(self, key: str) -> Any:
        """One fact, or None. Raises `RunError` where the database is damaged."""
        with self._lock, sound(self.folder):
            row = self._connection.execute("SELECT value FROM facts WHERE key = ?", (key,)).fetchone()
            return None if row is None else json.loads(row[0])

    def status(self) -> str:
        """The status: running, resumable (its driver is gone, or it stopped where it can go on), finished, failed or
        cancelled.
        """
        status = str(self.fact("status"))
        return RESUMABLE if status == RUNNING and self.driver() is None else status

    def why(self) -> str | None:
        """Why a run at rest is not finished, in a sentence; None of one that goes on or is finished."""
        status = self.status()
        if status in (RUNNING, FINISHED):
            return None
        killed = (
            f"its process ended without a word: it was killed, or its machine. Go on:  coordinator resume {self.id}"
        )
        return (
            str(self.fact("error") or {RESUMABLE: killed, CANCELLED: "cancelled by its user."}.get(status, "")) or None
        )

    def heuristic(self) -> bool:
        """Whether the run's plan says that nothing is guaranteed."""
        plan = self.fact("plan")
        privacy = plan.get("privacy") if isinstance(plan, dict) else None
        return isinstance(privacy, dict) and privacy.get("guarantee") is False

    def driver(self) -> str | None:
        """Which process drives the run now, in words; None where none does, or where its driver is gone."""
        with self._lock, sound(self.folder):
            row = self._connection.execute("SELECT host, process, expires FROM lease").fetchone()
            if row is None or row[2] < time.time() or (row[0] == this_host() and not lives(row[1])):
                return None
            return f"process {row[1]} on {shown(row[0].split(' ')[0])}"

    def take(self, owner: str, seconds: float) -> None:
        """Become the run's one driver; files that the last driver was writing when it was killed are removed.

        Raises `RunError` naming the current driver.
        """
        with self.transaction(driving=False) as transaction:
            driver = self.driver()
            if driver is not None:
                raise RunError(
                    f"run {self.id} is driven by {driver} already; two cannot drive one run. Watch it: coordinator "
                    f"watch {self.id}. Stop it: coordinator cancel {self.id}. If it died, wait {seconds:g} s.",
                    code="C704",
                )
            transaction.execute(
                "INSERT OR REPLACE INTO lease VALUES (1, ?, ?, ?, ?)",
                (owner, this_host(), os.getpid(), time.time() + seconds),
            )
        self.owner = owner
        for left in (*(self.folder / "artefacts").rglob(".*.part"), *(self.folder / "blocks").rglob(".*.part")):
            with suppress(OSError):
                left.unlink()

    def renew(self, seconds: float) -> bool:
        """Extend the lease to this many seconds from now; False when another driver has it."""
        with self.transaction(driving=False) as transaction:
            changed = transaction.execute(
                "UPDATE lease SET expires = ? WHERE owner = ?", (time.time() + seconds, self.owner)
            )
            return changed.rowcount == 1

    def let_go(self) -> None:
        """Give up the lease. Idempotent."""
        owner, self.owner = self.owner, None
        with self.transaction() as transaction:
            transaction.execute("DELETE FROM lease WHERE owner = ?", (owner,))

    @contextmanager
    def transaction(self, *, driving: bool = True) -> Iterator[sqlite3.Connection]:
        """One atomic transaction. Raises `RunError` when the disk fails, or another process drives the run."""
        with self._lock, written(self.folder, lambda: self.id):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                if driving and self.owner is not None:
                    row = self._connection.execute("SELECT owner FROM lease").fetchone()
                    if row is None or row[0] != self.owner:
                        raise RunError(
                            "another coordinator took this run over while this one did not move; it stopped here.",
                            code="C704",
                        )
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # A full disk shows at the commit, or makes SQLite roll back by itself.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def stage(self, name: str) -> Iterator[dict[str, Any]]:
        """Mark a stage as started, and on leaving the context as finished, with the dictionary's content as its result.

        A stage that raises stays unfinished.
        """
        result: dict[str, Any] = {}
        self._begin(name)
        yield result
        self._finish(name, result)

    def _begin(self, stage: str) -> None:
        with self.transaction() as transaction:
            transaction.execute("INSERT OR REPLACE INTO stages (name, started) VALUES (?, ?)", (stage, time.time()))

    def lasted(self, stages: Iterable[tuple[str, float, float]]) -> None:
        """Store stages that went on before the run was driven: for each, its name, when it started and finished."""
        with self.transaction() as transaction:
            transaction.executemany(
                "INSERT OR REPLACE INTO stages (name, started, finished, result) VALUES (?, ?, ?, 'null')", list(stages)
            )

    def finished(self, stage: str) -> bool:
        """Whether a stage is finished."""
        found = self.stages().get(stage)
        return found is not None and found[1] is not None

    def _finish(self, stage: str, result: Any) -> None:
        with self.transaction() as transaction:
            transaction.execute(
                "UPDATE stages SET finished = ?, result = ? WHERE name = ?", (time.time(), json.dumps(result), stage)
            )

    def stages(self) -> dict[str, tuple[float, float | None, Any]]:
        """For each stage, in order: when it started, when it finished, its result."""
        with self._lock, sound(self.folder):
            rows = self._connection.execute(
                "SELECT name, started, finished, result FROM stages ORDER BY rowid"
            ).fetchall()
            return {name: (start, end, json.loads(result) if result else None) for name, start, end, result in rows}

    def put_block(self, release: str, batch: int, start: int, stop: int, block: NDArray[np.int64]) -> None:
        """Store rows [start, stop) of a noisy sum. Storing a batch again replaces it."""
        content = packed(block)
        name = f"blocks/{release}/{batch:06}.npy"
        self.write(name, content)
        digest = hashlib.sha256(content).hexdigest()
        with self.transaction() as transaction:
            transaction.execute(
                "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?)",
                (release, batch, start, stop, name, digest, time.time()),
            )

    def begin_sum(self, release: str, parties: Sequence[str]) -> frozenset[int]:
        """Store whose sum a release is; returns the batches that are stored of a sum of exactly these parties.

        One sum covers one list of parties: blocks of another list are removed in the same transaction.
        """
        with self.transaction() as transaction, sound(self.folder):
            row = transaction.execute("SELECT parties FROM sums WHERE release = ?", (release,)).fetchone()
            if row is None or json.loads(row[0]) != sorted(parties):
                transaction.execute("DELETE FROM blocks WHERE release = ?", (release,))
                transaction.execute("INSERT OR REPLACE INTO sums VALUES (?, ?)", (release, json.dumps(sorted(parties))))
            kept = transaction.execute("SELECT batch FROM blocks WHERE release = ?", (release,)).fetchall()
        return frozenset(batch for (batch,) in kept)

    def drop_blocks(self, release: str) -> None:
        """Remove the blocks of a sum that nothing will ask for again; the list of its parties stays."""
        with self.transaction() as transaction:
            files = transaction.execute("SELECT file FROM blocks WHERE release = ?", (release,)).fetchall()
            transaction.execute("DELETE FROM blocks WHERE release = ?", (release,))
        for (name,) in files:
            with suppress(OSError, ValueError):
                (self.folder / name).unlink()

    def summed(self, release: str) -> tuple[str, ...]:
        """The parties whose sum a release is, as `begin_sum` stored them; none before."""
        with self._lock, sound(self.folder):
            row = self._connection.execute("SELECT parties FROM sums WHERE release = ?", (release,)).fetchone()
            return () if row is None else tuple(json.loads(row[0]))

    def released(self) -> frozenset[str]:
        """The names of all releases, and steps of releases, whose sum was begun by `begin_sum`."""
        with self._lock, sound(self.folder):
            return frozenset(str(name) for (name,) in self._connection.execute("SELECT release FROM sums").fetchall())

    def attempts(self) -> dict[str, int]:
        """How many attempts at a sum were lost, by the name of its release or step, where there were any."""
        with self._lock, sound(self.folder):
            found = self._connection.execute("SELECT key, value FROM facts WHERE key LIKE 'attempt %'").fetchall()
            return {key.removeprefix("attempt "): int(json.loads(value)) for key, value in found}

    def block_counts(self) -> dict[str, int]:
        """How many blocks of each release are stored."""
        with self._lock, sound(self.folder):
            found = self._connection.execute("SELECT release, COUNT(*) FROM blocks GROUP BY release").fetchall()
        return {str(release): count for release, count in found}

    def blocks(self, release: str) -> Iterator[tuple[int, int, NDArray[np.int64]]]:
        """All stored rows of a release as (start, stop, int64 [rows, columns]), with one block in memory at a time.

        Raises `RunError` for a file that is not the one that was stored.
        """
        with self._lock, sound(self.folder):
            rows = self._connection.execute(
                "SELECT start, stop, file, sha256 FROM blocks WHERE release = ? ORDER BY start", (release,)
            ).fetchall()
        for start, stop, name, digest in rows:
            with sound(self.folder):
                path, rows_in_it = self.folder / name, int(stop - start)
            try:
                content = path.read_bytes()
            except (OSError, ValueError) as error:  # the second for a name that no file can have
                raise broken(path, f"it cannot be read ({shown(error)})") from None
            if hashlib.sha256(content).hexdigest() != digest:
                raise broken(path, "its digest differs from the one in run.sqlite")
            yield start, stop, unpacked(content, rows_in_it, path)

    def write(self, name: str, content: bytes) -> Path:
        """Write a file of the run completely or not at all. Raises `RunError` when the disk fails."""
        try:
            return write_whole(self.folder / name, content)
        except RunError as error:
            with self.transaction():  # if another process took over, that is the cause: both write under one name
                raise RunError(f"{error} {go_on(lambda: self.id)}") from None

    def close(self) -> None:
        """Close the database."""
        self._connection.close()


def holds_run(folder: Path) -> bool:
    """Whether a folder holds a run: one whose first transaction was committed."""
    if not os.path.exists(folder / "run.sqlite"):  # no name is too long for this
        return False
    try:
        with closing(sqlite3.connect(f"{(folder / 'run.sqlite').absolute().as_uri()}?mode=ro", uri=True)) as found:
            return found.execute("SELECT 1 FROM facts WHERE key = 'id'").fetchone() is not None
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return False
        raise RunError(f"{folder / 'run.sqlite'} cannot be read: {shown(error)}.") from None
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        said = f"{folder / 'run.sqlite'} is no run's store, or it is damaged: {shown(error)}."
        raise RunError(said, code="C705") from None


def check_unused(folder: Path, *, replace: bool = False) -> None:
    """Raises `RunError` for a folder that holds a run or anything else.

    replace: the run will be replaced, so that it may be there if no process drives it.
    """
    if replace and holds_run(folder):
        with closing(RunStore(folder)) as store:
            if (driver := store.driver()) is not None:
                raise RunError(f"{folder} holds run {store.id}, which {driver} drives. Cancel it first.", code="C704")
            output.check_marker(folder, store.id)
    elif holds_run(folder):
        with closing(RunStore(folder)) as store:
            found = f"{folder} holds a run already ({store.id}). Go on with it by `coordinator resume {store.id}`"
        removed = "" if output.strangers(folder) else ", or remove that run with --replace if it is not needed"
        raise RunError(f"{found}, {'choose' if removed else 'or choose'} another --output{removed}.", code="C107")
    output.check_folder(folder)
