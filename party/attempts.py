"""Attempts at secure sums in the ledger: which are charged, which revealed shares, which are over and cost nothing.

The functions that write run inside a transaction, and the order of their rows is the order in which things were
promised: an attempt that was disclaimed reveals nothing for ever after, one that revealed is never disclaimed.
"""

import sqlite3
import time

from protos.refusal import Reason, Refusal


def reservation(sql: sqlite3.Connection, run: str, release: str, attempt: int) -> tuple[int, bytes | None] | None:
    """Id and noise key of what was charged for an attempt, taken back or not; the key is None once it is erased."""
    row = sql.execute(
        "SELECT id, noise_key FROM reservations WHERE run = ? AND release = ? AND attempt = ?", (run, release, attempt)
    ).fetchone()
    return None if row is None else (row[0], row[1])


def attempted(sql: sqlite3.Connection, run: str, release: str) -> tuple[int, ...]:
    """The attempts at a release that are charged, in order; without those whose charge was taken back."""
    rows = sql.execute(
        "SELECT attempt FROM reservations WHERE run = ? AND release = ? AND refunded_at IS NULL ORDER BY attempt",
        (run, release),
    )
    return tuple(attempt for (attempt,) in rows)


def used(sql: sqlite3.Connection, run: str, release: str, attempt: int) -> bool:
    """Whether an attempt may never begin again: it was charged at some time, or disclaimed."""
    return reservation(sql, run, release, attempt) is not None or _disclaimed(sql, run, release, attempt)


def check_going(sql: sqlite3.Connection, run: str, release: str, attempt: int) -> None:
    """Raises `Refusal` (SECURE_SUM) for an attempt that was disclaimed: nothing more of it is made or revealed."""
    if _disclaimed(sql, run, release, attempt):
        raise Refusal(
            Reason.SECURE_SUM,
            f"attempt {attempt} at {release} is over: this party signed that it will never reveal a share of it. Begin "
            "a new attempt.",
        )


def reveal(sql: sqlite3.Connection, run: str, release: str, attempt: int, survivors: bytes) -> None:
    """Note to which list of survivors an attempt's shares go. Raises `Refusal` as `Ledger.reveal` does."""
    check_going(sql, run, release, attempt)
    row = reservation(sql, run, release, attempt)
    if row is None or row[1] is None:
        raise Refusal(Reason.NOT_JOINED, f"attempt {attempt} at {release} of run {run} is not going on here.")
    sql.execute("INSERT OR IGNORE INTO revealed VALUES (?, ?, ?)", (row[0], survivors, time.time()))
    kept = sql.execute("SELECT survivors FROM revealed WHERE reservation = ?", (row[0],)).fetchone()
    if bytes(kept[0]) != survivors:
        raise Refusal(
            Reason.CONFLICT,
            f"shares of attempt {attempt} at {release} were revealed to another list of survivors already; "
            "what both lists open together is one party's own. Start a new attempt.",
        )


def disclaim(sql: sqlite3.Connection, run: str, release: str, attempt: int) -> None:
    """Note that no share of an attempt is ever revealed. Idempotent. Raises `Refusal` as `Ledger.disclaim` does."""
    row = reservation(sql, run, release, attempt)
    if row is not None:
        _check_unrevealed(sql, row[0], release, attempt)
    sql.execute("INSERT OR IGNORE INTO disclaimed VALUES (?, ?, ?, ?)", (run, release, attempt, time.time()))


def refund(sql: sqlite3.Connection, run: str, release: str, attempt: int, disclaims: bool = False) -> bool:
    """Take back an attempt's charge; whether there was one. Raises `Refusal` as `Ledger.refund` does.

    disclaims: whether it is disclaimed with that, in the same transaction. The row stays, so that the attempt's number
    is never used again; its noise key goes.
    """
    if disclaims:
        disclaim(sql, run, release, attempt)
    row = sql.execute(
        "SELECT id, masked, refunded_at FROM reservations WHERE run = ? AND release = ? AND attempt = ?",
        (run, release, attempt),
    ).fetchone()
    if row is None or row[2] is not None:
        return False
    _check_unrevealed(sql, row[0], release, attempt)
    if not _disclaimed(sql, run, release, attempt):
        raise Refusal(
            Reason.SECURE_SUM,
            f"attempt {attempt} at {release} stays charged: this party has not disclaimed it, and may reveal shares.",
        )
    if not row[1]:
        raise Refusal(
            Reason.SECURE_SUM,
            f"attempt {attempt} at {release} stays charged: it was not, or not surely, for a masked vector alone.",
        )
    sql.execute("UPDATE reservations SET refunded_at = ?, noise_key = NULL WHERE id = ?", (time.time(), row[0]))
    return True


def _disclaimed(sql: sqlite3.Connection, run: str, release: str, attempt: int) -> bool:
    row = sql.execute(
        "SELECT EXISTS (SELECT 1 FROM disclaimed WHERE run = ? AND release = ? AND attempt = ?)",
        (run, release, attempt),
    ).fetchone()
    return bool(row[0])


def _check_unrevealed(sql: sqlite3.Connection, reserved: int, release: str, attempt: int) -> None:
    """Raises `Refusal` (SECURE_SUM) where shares of the attempt were revealed here."""
    if sql.execute("SELECT EXISTS (SELECT 1 FROM revealed WHERE reservation = ?)", (reserved,)).fetchone()[0]:
        raise Refusal(
            Reason.SECURE_SUM,
            f"attempt {attempt} at {release} stays charged: this party revealed shares of it, which stays so.",
        )
