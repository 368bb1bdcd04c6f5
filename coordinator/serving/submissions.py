"""The submissions of a coordinator that stays up, on disk: every change is there before anybody is told of it.

A submission is queued, running, stopped (it can go on), finished, failed or cancelled. Its plan lies in the row, so
that a submission is there whole or not at all.
"""

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.errors import RunError
from coordinator.serving.admitting import Admitted
from coordinator.store.faults import sound, written
from coordinator.store.index import new_id
from coordinator.store.private_files import private_file

VERSION: Final = 1
QUEUED, RUNNING, STOPPED = "queued", "running", "stopped"
FINISHED, FAILED, CANCELLED = "finished", "failed", "cancelled"
OPEN: Final = (QUEUED, RUNNING, STOPPED)
KEPT_FAILURES: Final = 100
"""How many submissions that failed before they had a run are kept; older ones are forgotten."""
LONGEST_WHY: Final = 1500

_TABLES = """
CREATE TABLE IF NOT EXISTS submissions (
  number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, digest TEXT NOT NULL, name TEXT NOT NULL,
  recipe TEXT NOT NULL, asks TEXT NOT NULL, plan TEXT NOT NULL, submitters TEXT NOT NULL, state TEXT NOT NULL,
  why TEXT NOT NULL DEFAULT '', submitted REAL NOT NULL, began REAL, ended REAL, cancelling INTEGER NOT NULL DEFAULT 0,
  tries INTEGER NOT NULL DEFAULT 0, reached INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS digests ON submissions (digest);
CREATE INDEX IF NOT EXISTS states ON submissions (state)"""


@dataclass(frozen=True, slots=True)
class Submission:
    """One submission. asks: the parties that no other run may ask meanwhile. submitters: the first is whose it is.

    submitted, began, ended: seconds since 1970. cancelling: its submitter ended it, and its run is not ended yet.
    tries: how often its process ended on its own since it last got further. reached: how far its run had got by then.
    """

    number: int
    id: str
    digest: str
    name: str
    recipe: str
    asks: tuple[str, ...]
    plan: str
    submitters: tuple[str, ...]
    state: str
    why: str
    submitted: float
    began: float | None
    ended: float | None
    cancelling: bool
    tries: int
    reached: int

    @property
    def open(self) -> bool:
        """Whether it has not ended."""
        return self.state in OPEN


class Submissions:
    """All submissions, in one database of a private folder. Its methods may be called from any thread."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "submissions.sqlite"
        private_file(self._path)
        with written(folder):
            self._connection = sqlite3.connect(self._path, timeout=30, check_same_thread=False, isolation_level=None)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            have = int(self._connection.execute("PRAGMA user_version").fetchone()[0])
            if have > VERSION:
                raise RunError(
                    f"{self._path} was written by a newer version of Conclave ({have}, here {VERSION}). Install that "
                    "one here.",
                    code="C504",
                )
            self._connection.executescript(_TABLES)
            self._connection.execute(f"PRAGMA user_version = {VERSION}")
        self._lock = threading.RLock()

    def add(self, plan: str, admitted: Admitted, submitter: str) -> Submission:
        """Put a plan at the end of the queue."""
        made = new_id(admitted.name)
        with self._transaction() as transaction:
            transaction.execute(
                "INSERT INTO submissions (id, digest, name, recipe, asks, plan, submitters, state, submitted) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    made,
                    admitted.digest,
                    admitted.name,
                    admitted.recipe,
                    json.dumps(admitted.asks),
                    plan,
                    json.dumps([submitter]),
                    QUEUED,
                    time.time(),
                ),
            )
        return self.get(made)

    def join(self, found: Submission, submitter: str) -> Submission:
        """Let somebody else who submitted the same plan follow and fetch it, too."""
        if submitter in found.submitters:
            return found
        return self.change(found.id, submitters=json.dumps([*found.submitters, submitter]))

    def change(self, made: str, **columns: Any) -> Submission:
        """Change columns of a submission in one transaction."""
        if "why" in columns:
            columns["why"] = columns["why"][:LONGEST_WHY]
        names = ", ".join(f"{name} = ?" for name in columns)
        with self._transaction() as transaction:
            transaction.execute(f"UPDATE submissions SET {names} WHERE id = ?", (*columns.values(), made))
        return self.get(made)

    def get(self, made: str) -> Submission:
        """The submission with this id."""
        (found,) = self._rows("WHERE id = ?", (made,))
        return found

    def of_digest(self, digest: str) -> list[Submission]:
        """All submissions of a plan, newest first."""
        return self._rows("WHERE digest = ? ORDER BY number DESC", (digest,))

    def in_states(self, *states: str) -> list[Submission]:
        """All submissions in one of these states, in the order in which they came."""
        return self._rows(f"WHERE state IN ({', '.join('?' * len(states))}) ORDER BY number", states)

    def latest(self, count: int) -> list[Submission]:
        """The last submissions, newest first, open ones before those that ended."""
        order = f"ORDER BY state IN ({', '.join('?' * len(OPEN))}) DESC, number DESC LIMIT ?"
        return self._rows(order, (*OPEN, count))

    def of_submitter(self, submitter: str, count: int) -> list[Submission]:
        """The last submissions of somebody, newest first."""
        own = "EXISTS (SELECT 1 FROM json_each(submitters) WHERE value = ?)"
        return self._rows(f"WHERE {own} ORDER BY number DESC LIMIT ?", (submitter, count))

    def counts(self) -> dict[str, int]:
        """How many submissions are in each state."""
        with self._lock, sound(self._path):
            return dict(self._connection.execute("SELECT state, COUNT(*) FROM submissions GROUP BY state").fetchall())

    def forget(self, begun: Sequence[str]) -> list[str]:
        """Remove all but the last `KEPT_FAILURES` submissions that failed and are not among those that had a run;
        returns their ids.
        """
        gone = [each.id for each in self.in_states(FAILED) if each.id not in set(begun)][:-KEPT_FAILURES]
        with self._transaction() as transaction:
            transaction.executemany("DELETE FROM submissions WHERE id = ?", [(each,) for each in gone])
        return gone

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def _rows(self, rest: str, values: Sequence[Any]) -> list[Submission]:
        with self._lock, sound(self._path):
            found = self._connection.execute(f"SELECT * FROM submissions {rest}", tuple(values)).fetchall()
            return [_submission(row) for row in found]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, written(self._path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


def _submission(row: Sequence[Any]) -> Submission:
    number, made, digest, name, recipe, asks, plan, submitters, state, why, *rest = row
    submitted, began, ended, cancelling, tries, reached = rest
    return Submission(
        number,
        made,
        digest,
        name,
        recipe,
        tuple(json.loads(asks)),
        plan,
        tuple(json.loads(submitters)),
        state,
        why,
        submitted,
        began,
        ended,
        bool(cancelling),
        tries,
        reached,
    )
