"""The index of all runs: where each run's folder is, and how a new run takes its folder."""

import re
import secrets
import sqlite3
import time
import unicodedata
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from coordinator.errors import RunError
from coordinator.reading import shown
from coordinator.store import output
from coordinator.store.faults import made_in, sound, written
from coordinator.store.private_files import home, private_file, private_folder
from coordinator.store.store import RunStore, check_unused, holds_run
from coordinator.store.versions import bring_up_to_date

_STEPS: Final = (
    """
CREATE TABLE IF NOT EXISTS runs (
  id TEXT PRIMARY KEY, name TEXT NOT NULL, folder TEXT NOT NULL, plan_hash TEXT NOT NULL, started REAL NOT NULL
)""",
)
VERSION: Final = len(_STEPS)
"""`PRAGMA user_version` of the index; one from before it was stored has 0, and the table of version 1."""


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One line of the index. `epsilon` is None before anything was released and where nothing is guaranteed.

    heuristic: whether no proof covers what the run releases.
    """

    id: str
    name: str
    folder: Path
    plan_hash: str
    started: float
    status: str
    epsilon: float | None
    heuristic: bool = False


def new_id(name: str) -> str:
    """A random id for a run of a plan of this name: small letters, digits and hyphens, at most 49 of them."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return "-".join([secrets.token_hex(4), re.sub(r"[^a-z0-9]+", "-", plain)[:40].strip("-") or "run"])


class RunIndex:
    """All runs that this user has started on this machine, wherever their folders are."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or home()
        self._path = self._folder / "runs.sqlite"

    def add(
        self, name: str, plan_hash: bytes, folder: Path | None, *, replace: bool = False, run_id: str | None = None
    ) -> RunStore:
        """Make a new run, whose id is from `new_id`. `folder` holds all of its files, by default below the index.

        replace: set aside the run that is in the folder; the fact `replaced` says where it is, with those that it had
        set aside, until the new run has begun. Raises `RunError`, with everything unchanged, when the folder holds a
        run already, holds anything else, or cannot be written.
        """
        run_id = run_id or new_id(name)
        if folder is None:
            with made_in(self._folder / "runs"):
                private_folder(self._folder / "runs")
                (self._folder / "runs").chmod(0o700)
        folder = (folder or self._folder / "runs" / run_id).absolute()
        check_unused(folder, replace=replace)
        replaced = self._set_aside(folder) if holds_run(folder) else []
        try:
            with self._open() as index, written(self._path), index:
                index.execute("DELETE FROM runs WHERE folder = ?", (str(folder),))
                index.execute(
                    "INSERT INTO runs VALUES (?, ?, ?, ?, ?)", (run_id, name, str(folder), plan_hash.hex(), time.time())
                )
            store = RunStore.create(folder, run_id, name, plan_hash)
            if replaced:
                store.note(replaced=replaced)
        except RunError:
            if replaced:
                self.put_back(Path(replaced[0]), folder)
            raise
        return store

    def _set_aside(self, folder: Path) -> list[str]:
        """Rename a run's folder out of the way and update the index; returns where it and those that it replaced
        are.
        """
        with closing(RunStore(folder)) as store:
            run_id, before = store.id, store.fact("replaced") or []
        aside = output.set_aside(folder, run_id)
        self._moved(run_id, aside)
        return [str(aside), *before]

    def put_back(self, aside: Path, folder: Path) -> None:
        """Put a run that was set aside back in its place, instead of one that never began. Raises `RunError`."""
        output.put_back(aside, folder)
        with closing(RunStore(folder)) as store:
            run_id = store.id
        self._moved(run_id, folder)

    def _moved(self, run_id: str, folder: Path) -> None:
        with self._open() as index, written(self._path), index:
            index.execute("UPDATE runs SET folder = ? WHERE id = ?", (str(folder), run_id))

    def entries(self) -> list[RunEntry]:
        """All runs whose folders still exist, newest first."""
        if not self._path.exists():
            return []
        with self._open() as index, sound(self._path):
            rows = index.execute("SELECT * FROM runs ORDER BY started DESC").fetchall()
            return [entry for row in rows if (entry := self._entry(row)) is not None]

    def find(self, run: str) -> RunStore:
        """The run with this id, with a unique prefix of it, in this folder, or of this id at its parties. Raises
        `RunError`.
        """
        if holds_run(Path(run)):
            return RunStore(Path(run).absolute())
        entries = self.entries()
        found = [entry for entry in entries if entry.id == run] or [e for e in entries if e.id.startswith(run)]
        found = found or [entry for entry in entries if _known_as(entry, run)]
        if len(found) == 1:
            return RunStore(found[0].folder)
        if found:
            ids = shown(" or ".join(entry.id for entry in found), 500)
            raise RunError(f'"{shown(run)}" can be {ids}. Write more of it.', code="C702")
        raise RunError(f'There is no run "{shown(run)}". `coordinator runs` lists those there are.', code="C702")

    def _entry(self, row: tuple[Any, ...]) -> RunEntry | None:
        folder = Path(row[2])
        if not holds_run(folder):
            return None
        with closing(RunStore(folder)) as store:
            if store.id != row[0]:
                return None
            epsilon, heuristic = store.fact("epsilon"), store.heuristic()
            digest = str(store.fact("plan_hash"))  # a mended plan's is not in the index
            return RunEntry(row[0], row[1], folder, digest, row[4], store.status(), epsilon, heuristic)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            private_folder(self._folder)
            private_file(self._path)
            connection = sqlite3.connect(self._path, timeout=30)
            bring_up_to_date(connection, self._path, _STEPS)
        except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
            raise RunError(
                f"The index of runs {self._path} cannot be opened: {shown(error)}. Set CONCLAVE_HOME."
            ) from None
        try:
            yield connection
        finally:
            connection.close()


def _known_as(entry: RunEntry, run: str) -> bool:
    with closing(RunStore(entry.folder)) as store:
        return store.joined_as == run
