"""What a run writes into the ledger: that it joined, its charges, which rows got noise, what left.

All functions run inside a transaction of the ledger (`party.ledger.ledger`), whose methods say when each may be called.
"""

import json
import secrets
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from aggregation.accounting import events
from aggregation.accounting.library import DpEvent
from party.ledger import attempts, paying, runs
from party.ledger.accounts import Opened
from protos.refusal import Reason, Refusal

NOISE_KEY_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to add noise to one block: made once, and already on disk. `noise_key` belongs to the release, 32
    bytes.
    """

    noise_key: bytes
    fresh: bool


def join(
    sql: sqlite3.Connection, own: Opened, run: str, plan_hash: bytes, wanted: Sequence[tuple[str, DpEvent]]
) -> None:
    """Bind a run id to a plan; see `Ledger.join`."""
    known = runs.bound(sql, own, run)
    if known is not None and known[1] is not None:
        raise Refusal(Reason.NOT_JOINED, f"run {run} has ended here; start a new run.")
    if known is not None and known[0] != plan_hash:
        raise Refusal(Reason.CONFLICT, f"run {run} is bound to another plan here; start a new run.")
    if known is not None and not known[2]:
        raise Refusal(Reason.CONFLICT, f"run {run} is charged to another account here; start a new run.")
    (paying.check_join if known is None else paying.check_join_again)(sql, own, run, wanted)
    if known is None:
        runs.add(sql, own, run, plan_hash)


def reserve(
    sql: sqlite3.Connection,
    own: Opened,
    run: str,
    release: str,
    event: DpEvent,
    attempt: int,
    most: int | None,
    request: bytes | None,
) -> bytes:
    """Charge a release before text is opened for it, and return its noise key; see `Ledger.reserve`."""
    attempts.check_most(sql, run, release, attempt, most)
    reserved, key = _reserved(sql, own, run, release, event, attempt, opening=True)
    if request is not None:
        attempts.open_for(sql, reserved, release, request)
    return key


def mask(
    sql: sqlite3.Connection, own: Opened, run: str, release: str, event: DpEvent, attempt: int, most: int | None
) -> bytes:
    """Charge a masked vector before it leaves, and return its noise key; see `Ledger.mask`."""
    attempts.check_going(sql, run, release, attempt)
    attempts.take_over(sql, run, release, attempt)
    attempts.check_most(sql, run, release, attempt, most)
    key = _reserved(sql, own, run, release, event, attempt)[1]
    attempts.take_over(sql, run, release, attempt)  # if it was made just now
    return key


def claim(
    sql: sqlite3.Connection,
    own: Opened,
    run: str,
    release: str,
    event: DpEvent,
    batch: int,
    digest: bytes,
    rows: tuple[int, int],
) -> Claim:
    """Claim rows of a release for one batch; see `Ledger.claim`."""
    start, stop = rows
    reservation, key = _reserved(sql, own, run, release, event, 0)
    attempts.send(sql, reservation)
    row = sql.execute("SELECT digest FROM blocks WHERE reservation = ? AND batch = ?", (reservation, batch)).fetchone()
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


def answered(sql: sqlite3.Connection, run: str, release: str) -> None:
    """Record the first time that bytes of a release left."""
    sql.execute(
        "UPDATE reservations SET answered_at = ? WHERE run = ? AND release = ? AND answered_at IS NULL",
        (time.time(), run, release),
    )


def _reserved(
    sql: sqlite3.Connection,
    own: Opened,
    run: str,
    release: str,
    event: DpEvent,
    attempt: int,
    *,
    opening: bool = False,
) -> tuple[int, bytes]:
    """Id and noise key of the reservation, made if it does not exist.

    opening: before text is opened for it (`party.ledger.paying.check_charge`).
    """
    attempts.check_going(sql, run, release, attempt)
    row = attempts.reservation(sql, run, release, attempt)
    if row is not None:
        if row[1] is None:
            raise Refusal(Reason.NOT_JOINED, f"run {run} has ended here; start a new run.")
        return row[0], row[1]
    if runs.plan_of(sql, own, run) is None:
        raise Refusal(Reason.NOT_JOINED, f"run {run} is not joined here.")
    blank = paying.check_charge(sql, own, run, release, event, opening=opening)
    key = secrets.token_bytes(NOISE_KEY_BYTES)
    cursor = sql.execute(
        "INSERT INTO reservations (account, run, release, attempt, event, noise_key, reserved_at, unsent, blank) "
        "VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?)",
        (own.id, run, release, attempt, json.dumps(events.to_json(event)), key, time.time(), int(blank)),
    )
    assert cursor.lastrowid is not None
    return cursor.lastrowid, key
