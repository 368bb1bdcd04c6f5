"""Attempts at secure sums in the ledger: which are charged, which revealed shares, which were disclaimed and cost
nothing.

The functions that write run inside a transaction, and the order of their rows is the order of the promises: a
disclaimed attempt never reveals anything afterwards, and one that revealed is never disclaimed.

A release is charged before private text is opened for it. Until something of it leaves, that charge is unsent. It
passes to the first attempt that sends something, so that opening the text once is charged once.
"""

import sqlite3
import time

from protos.refusal import Reason, Refusal


def reservation(sql: sqlite3.Connection, run: str, release: str, attempt: int) -> tuple[int, bytes | None] | None:
    """Id and noise key of an attempt's charge, taken back or not; the key is None once it is erased."""
    row = sql.execute(
        "SELECT id, noise_key FROM reservations WHERE run = ? AND release = ? AND attempt = ?", (run, release, attempt)
    ).fetchone()
    return None if row is None else (row[0], row[1])


def attempted(sql: sqlite3.Connection, run: str, release: str) -> tuple[int, ...]:
    """The attempts at a release that are charged, in order, without those whose charge was taken back."""
    rows = sql.execute(
        "SELECT attempt FROM reservations WHERE run = ? AND release = ? AND refunded_at IS NULL ORDER BY attempt",
        (run, release),
    )
    return tuple(attempt for (attempt,) in rows)


def used(sql: sqlite3.Connection, run: str, release: str, attempt: int) -> bool:
    """Whether an attempt may never begin again, because something of it may have left or it was disclaimed."""
    row = reservation(sql, run, release, attempt)
    return (row is not None and not is_unsent(sql, row[0])) or _disclaimed(sql, run, release, attempt)


def is_unsent(sql: sqlite3.Connection, reserved: int) -> bool:
    """Whether nothing has left under a reservation: no masked vector and no block of rows."""
    return bool(sql.execute("SELECT unsent FROM reservations WHERE id = ?", (reserved,)).fetchone()[0])


def sent(sql: sqlite3.Connection, run: str, release: str) -> bool:
    """Whether something of a release may have left; a charge that was taken back counts, an unsent one does not."""
    row = sql.execute(
        "SELECT EXISTS (SELECT 1 FROM reservations WHERE run = ? AND release = ? AND NOT unsent)", (run, release)
    ).fetchone()
    return bool(row[0])


def all_blank(sql: sqlite3.Connection, run: str, release: str) -> bool:
    """Whether a release was charged before, each time for something made without text."""
    row = sql.execute(
        "SELECT COUNT(*) > 0 AND MIN(blank) FROM reservations WHERE run = ? AND release = ?", (run, release)
    ).fetchone()
    return bool(row[0])


def send(sql: sqlite3.Connection, reserved: int) -> None:
    """Record that something other than a masked vector leaves under a reservation from now on. Idempotent."""
    sql.execute("UPDATE reservations SET unsent = 0 WHERE id = ? AND unsent", (reserved,))


def take_over(sql: sqlite3.Connection, run: str, release: str, attempt: int) -> None:
    """Let this attempt's masked vector take over an unsent charge of the release, if there is one.

    The attempt's own comes first, then the earliest; where the attempt was charged and has sent, none is taken over.
    """
    own = reservation(sql, run, release, attempt)
    if own is not None and not is_unsent(sql, own[0]):
        return
    row = sql.execute(
        "SELECT id FROM reservations WHERE run = ? AND release = ? AND unsent "
        "ORDER BY attempt = ? DESC, attempt LIMIT 1",
        (run, release, attempt),
    ).fetchone()
    if row is not None:
        sql.execute("UPDATE reservations SET attempt = ?, masked = 1, unsent = 0 WHERE id = ?", (attempt, row[0]))


def move(sql: sqlite3.Connection, run: str, release: str, start: int, end: int) -> bool:
    """Move the unsent charge of one attempt to another; returns whether there was one. See `Ledger.move`."""
    row = reservation(sql, run, release, start)
    if row is None or row[1] is None or not is_unsent(sql, row[0]):
        return False
    if reservation(sql, run, release, end) is not None or _disclaimed(sql, run, release, end):
        return False
    sql.execute("UPDATE reservations SET attempt = ? WHERE id = ?", (end, row[0]))
    return True


def check_most(sql: sqlite3.Connection, run: str, release: str, attempt: int, most: int | None) -> None:
    """Raises `Refusal` (BUDGET) for a charge beyond the allowed number, where there is one."""
    charged = attempted(sql, run, release)
    if most is not None and attempt not in charged and len(charged) >= most:
        often = "1 attempt" if most == 1 else f"{most} attempts"
        raise Refusal(
            Reason.BUDGET,
            f"the plan pays for {often} at {release}, and {'it is' if most == 1 else 'all are'} charged.",
        )


def open_for(sql: sqlite3.Connection, reserved: int, release: str, request: bytes) -> None:
    """Record what the text is opened for under a charge. Raises `Refusal` (CONFLICT) if something else is recorded."""
    sql.execute("UPDATE reservations SET request = ? WHERE id = ? AND request IS NULL", (request, reserved))
    kept = sql.execute("SELECT request FROM reservations WHERE id = ?", (reserved,)).fetchone()
    if bytes(kept[0]) != request:
        raise Refusal(
            Reason.CONFLICT,
            f"release {release} was charged for another training in this run; one charge is one training. Start a new "
            "run.",
        )


def check_going(sql: sqlite3.Connection, run: str, release: str, attempt: int) -> None:
    """Raises `Refusal` (SECURE_SUM) for an attempt that was disclaimed: nothing more of it is made or revealed."""
    if _disclaimed(sql, run, release, attempt):
        raise Refusal(
            Reason.SECURE_SUM,
            f"attempt {attempt} at {release} is over: this party signed that it will never reveal a share of it. Begin "
            "a new attempt.",
        )


def reveal(sql: sqlite3.Connection, run: str, release: str, attempt: int, survivors: bytes) -> None:
    """Record to which list of survivors an attempt's shares go. Raises `Refusal` as `Ledger.reveal` does."""
    check_going(sql, run, release, attempt)
    row = reservation(sql, run, release, attempt)
    if row is None or row[1] is None or is_unsent(sql, row[0]):
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
    """Record that no share of an attempt is ever revealed. Idempotent. Raises `Refusal` as `Ledger.disclaim` does."""
    row = reservation(sql, run, release, attempt)
    if row is not None:
        _check_unrevealed(sql, row[0], release, attempt)
    sql.execute("INSERT OR IGNORE INTO disclaimed VALUES (?, ?, ?, ?)", (run, release, attempt, time.time()))


def refund(sql: sqlite3.Connection, run: str, release: str, attempt: int, disclaims: bool = False) -> bool:
    """Take back an attempt's charge; returns whether there was one. Raises `Refusal` as `Ledger.refund` does.

    disclaims: also disclaim the attempt, in the same transaction. The row stays, so that the attempt's number is never
    used again; its noise key is erased. An unsent charge is not taken back, because the text was opened for it: it
    waits for the next attempt.
    """
    if disclaims:
        disclaim(sql, run, release, attempt)
    row = sql.execute(
        "SELECT id, masked, refunded_at, unsent FROM reservations WHERE run = ? AND release = ? AND attempt = ?",
        (run, release, attempt),
    ).fetchone()
    if row is None or row[2] is not None or row[3]:
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
