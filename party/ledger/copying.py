"""Copies of a ledger: made while a node serves, and put back on record, with a charge for what they may lack.

A ledger that is older than what it paid for under-counts, and nobody outside can notice. So a copy is marked, and no
node opens it (`party.ledger.database`); `restore` takes the mark off, and charges what the administrator states.
"""

import contextlib
import json
import math
import os
import secrets
import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from party.errors import PartyError
from party.ledger.accounts import Opened, charges, every, note
from party.ledger.database import FILE, bring_up_to_date, check_version, copied_at, held, mark_copy, reading, version_of
from party.store.disk import is_full
from party.store.runs import private_folder, sync_folder

if TYPE_CHECKING:
    from aggregation.accounting.library import DpEvent

BESIDE: Final = ("", "-wal", "-shm")
"""What SQLite adds to a ledger's name for the files that belong to it."""
RELEASE: Final = "stated-at-restore"
"""The name in the ledger of a charge that stands for what a copy may lack."""
OVER: Final = 1e-6
"""By how much, relative, a stated charge is above what was stated, so that rounding makes none smaller."""


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy: where it lies, and how many charges and accounts it has."""

    path: Path
    accounts: int
    charges: int


@dataclass(frozen=True, slots=True)
class Restored:
    """A copy that is the ledger again. made_at: seconds since 1970; nothing that was charged later is in it.

    accounts: their names. ended: how many runs were open in it.
    """

    made_at: float
    accounts: tuple[str, ...]
    ended: int


def back_up(home: Path, to: Path) -> Copied:
    """Copy the ledger of `home`, as it is at one moment, into a new file of mode 0600; safe beside a running node.

    The copy has no noise keys, so nobody who finds it can take noise away. It has the secret by which the ledger
    recognises records. Raises `PartyError` where there is no ledger, `to` exists or cannot be written; then nothing new
    is there.
    """
    path = home / FILE
    if not path.exists():
        raise PartyError(
            f"There is no ledger in {home} yet. Open an account: party account open --config FILE", code="C604"
        )
    if to.exists() or to.is_symlink():
        raise PartyError(
            f"{to} is there already, and a copy takes no other's place. Give it another name.", code="C107"
        )
    with reading(path) as sql, _placed(to) as part:
        accounts = len(every(sql))
        charged = int(sql.execute("SELECT COUNT(*) FROM reservations").fetchone()[0])
        with _open(part) as copy:
            sql.backup(copy)
            _without_keys(copy)
            mark_copy(copy)
            copy.execute("VACUUM")
            _check_whole(copy, to)
    return Copied(to, accounts, charged)


def restore(home: Path, copy: Path, spent: float | None) -> Restored:
    """Make a copy the ledger of `home`, which has none. On record; all runs that were open in it end.

    spent: epsilon, at each account's delta, that its charges, those that the copy lacks included, are worth at most,
    as `party budget` counts them; None where the copy lacks none, infinity where nobody knows. What it is more than the
    copy's own is charged to every account that has a cap, at most up to the cap. Unless None, the accounts then count
    as sharing records with all others, also with those that are opened later: whose records were charged since the
    copy was made is not in it.

    Raises `PartyError` while a node holds the folder; where a ledger is there, or a file of one; where `copy` is none;
    and where `spent` is less than the copy's own. Then everything is as before.
    """
    private_folder(home)
    with held(home):
        there = [home / f"{FILE}{ending}" for ending in BESIDE if (home / f"{FILE}{ending}").exists()]
        if there:
            raise PartyError(
                f"{there[0]} is there, and a copy does not take a ledger's place: what that one was charged would be "
                "forgotten. If it cannot be read any more, move it out of the folder with what lies beside it "
                f"({FILE}-wal, {FILE}-shm), keep it, and try again.",
                code="C107",
            )
        if not copy.is_file():
            raise PartyError(f"{copy}: there is no such file.", code="C102")
        copy.open("rb").close()  # one that may not be read says so
        with _placed(home / FILE) as part, _open(part) as sql:
            with _reading_copy(copy) as stored:
                stored.backup(sql)
            _check_whole(sql, copy)
            made_at = _last_known(sql)
            sql.execute("BEGIN IMMEDIATE")
            sql.execute("DROP TABLE IF EXISTS copied")
            sql.execute("COMMIT")
            bring_up_to_date(sql, copy)
            ended = _end_runs(sql)
            names = _charged(sql, made_at, spent, copy)
            # Files of runs: the ledger does not know what left of them, and a sample must not be answered from twice.
            shutil.rmtree(home / "runs", ignore_errors=True)
    return Restored(made_at, names, ended)


def _charged(sql: sqlite3.Connection, made_at: float, spent: float | None, copy: Path) -> tuple[str, ...]:
    """Charge every account with what it may lack, and record it; returns their names."""
    now = time.time()
    accounts = every(sql)
    lacking = {each.id: _lacking(sql, each, spent, copy) for each in accounts}
    sql.execute("BEGIN IMMEDIATE")
    run = f"restored-{secrets.token_hex(4)}"
    for account in accounts:
        event = lacking[account.id]
        if event is not None:
            from aggregation.accounting import events

            sql.execute(
                "INSERT OR IGNORE INTO runs (id, plan_hash, joined_at, left_at, account) VALUES (?, x'', ?, ?, ?)",
                (f"{run}-{account.number}", now, now, account.number),
            )
            sql.execute(
                "INSERT INTO reservations (account, run, release, attempt, event, reserved_at, answered_at) "
                "VALUES (?, ?, ?, 0, ?, ?, ?)",
                (account.id, f"{run}-{account.number}", RELEASE, json.dumps(events.to_json(event)), now, now),
            )
        if spent is not None:
            sql.execute("UPDATE accounts SET uncounted = 1 WHERE id = ?", (account.id,))
        note(sql, account.lineage, f"restored from a copy of {_minute(made_at)}; {_stated(account, spent)}")
    sql.execute("COMMIT")
    return tuple(each.lineage for each in accounts)


def _stated(account: Opened, spent: float | None) -> str:
    if spent is None:
        return "stated: nothing was charged since"
    if not account.capped:
        return "what left since is not in it"
    if math.isinf(spent):
        return "what was charged since is not known, so nothing is left"
    return f"stated: no more than epsilon {spent:g} is spent in all"


def _lacking(sql: sqlite3.Connection, account: Opened, spent: float | None, copy: Path) -> "DpEvent | None":
    """The charge that raises what an account has spent to what is stated; None where there is none to make."""
    lifetime = account.filter
    if spent is None or lifetime is None or account.delta is None:
        return None
    from aggregation.accounting.library import GaussianDpEvent

    have = lifetime.spent(found) if (found := charges(sql, account.id)) else 0.0
    stated = min(_divergence(spent, account.delta, lifetime.order), lifetime.cap) * (1 + OVER)
    if stated < have <= lifetime.cap:
        from party.ledger.lineages import Group

        raise PartyError(
            f"{copy} alone says that {account.lineage} has spent epsilon {Group(account).spent(found):.4f}, and no "
            f"more than {spent:g} in all was stated. State what was spent when the ledger was lost, rounded up.",
            code="C605",
        )
    if stated <= have:
        return None
    return GaussianDpEvent(math.sqrt(lifetime.order / (2 * (stated - have))))


def _divergence(epsilon: float, delta: float, order: int) -> float:
    """The Renyi divergence at `order` of a Gaussian release that costs (epsilon, delta), found by bisection."""
    from aggregation.accounting.library import get_epsilon_gaussian

    if math.isinf(epsilon):
        return math.inf
    low, high = 1e-4, 1e6  # noise multipliers: the first costs more than epsilon, the second less
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if get_epsilon_gaussian(middle, delta) > epsilon else (low, middle)
    return order / (2 * low * low)


def _end_runs(sql: sqlite3.Connection) -> int:
    """End the runs that were open: what left of them, and to whom shares were revealed, is not known."""
    sql.execute("BEGIN IMMEDIATE")
    sql.execute("UPDATE reservations SET noise_key = NULL")
    ended = sql.execute("UPDATE runs SET left_at = ? WHERE left_at IS NULL", (time.time(),)).rowcount
    sql.execute("COMMIT")
    return ended


def _last_known(sql: sqlite3.Connection) -> float:
    """When a copy was made; of another file, the last time that it knows of."""
    marked = copied_at(sql)
    if marked is not None:
        return marked
    times = ["SELECT MAX(joined_at) FROM runs", "SELECT MAX(reserved_at) FROM reservations"]
    times.append("SELECT MAX(opened_at) FROM accounts")
    return max((float(found) for each in times if (found := sql.execute(each).fetchone()[0]) is not None), default=0.0)


def _without_keys(sql: sqlite3.Connection) -> None:
    sql.execute("PRAGMA journal_mode = DELETE")
    sql.execute("PRAGMA secure_delete = ON")
    sql.execute("UPDATE reservations SET noise_key = NULL")


def _check_whole(sql: sqlite3.Connection, path: Path) -> None:
    """Raises `PartyError` for a file that is damaged, or that is no ledger."""
    try:
        whole = sql.execute("PRAGMA integrity_check").fetchone()[0] == "ok" and every(sql)
    except sqlite3.DatabaseError as error:
        if is_full(error):
            raise
        whole = ()
    if not whole:
        raise PartyError(f"{path} is no copy of a ledger, or a damaged one. Take an earlier copy.", code="C605")


@contextlib.contextmanager
def _reading_copy(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as sql:
            check_version(version_of(sql), path)
            yield sql
    except sqlite3.OperationalError:
        raise  # what is written cannot be, or the machine fails; the copy need not be wrong
    except sqlite3.DatabaseError as error:
        raise PartyError(f"{path} is no copy of a ledger: {error}.", code="C605") from None


@contextlib.contextmanager
def _open(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as sql:
        sql.execute("PRAGMA synchronous = FULL")
        yield sql


@contextlib.contextmanager
def _placed(path: Path) -> Iterator[Path]:
    """A file to write, which gets its name `path` when the context ends well, on disk; else nothing is left of it.

    Raises `PartyError` where it cannot be written, or `path` has come to be there.
    """
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        yield part
        try:
            os.link(part, path)
        except FileExistsError:
            raise
        except OSError:  # a file system without second names
            if path.exists():
                raise FileExistsError from None
            part.replace(path)
        sync_folder(path.parent)
    except FileExistsError:
        raise PartyError(
            f"{path} is there already, and nothing takes its place. Give another name.", code="C107"
        ) from None
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PartyError(f"{path} cannot be written: {(why or str(error)).lower()}. Nothing was changed.") from None
    finally:
        for ending in BESIDE:
            part.with_name(f"{part.name}{ending}").unlink(missing_ok=True)


def _minute(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
