"""Accounts of a party's ledger: opened once, deliberately and on record, with a cap for the life of their data.

The accountant is imported only where something is priced: its import takes a second, and most commands of a party price
nothing.
"""

import contextlib
import getpass
import json
import os
import secrets
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from party.errors import PartyError
from party.ledger.database import (
    COUNTING_UNITS,
    FILE,
    PROTECTING,
    REFUNDING,
    connect,
    held,
    reading,
    transaction,
    version_of,
)
from party.ledger.protection import Protection

if TYPE_CHECKING:
    from aggregation.accounting.library import DpEvent
    from aggregation.accounting.price import LifetimeFilter

_COLUMNS = "id, number, lineage, epsilon, delta, simulation, opened_at, uncounted"
DOCUMENT = Protection()
"""The unit of a cap by default."""
NO_CAP: Final = "no cap: it promises nothing, and records what leaves without a guarantee"


@dataclass(frozen=True, slots=True)
class Opened:
    """An account as it was opened. opened_at: seconds since 1970.

    id: random; only this part of the ledger may leave the party. epsilon, delta: the cap; None of an account without
    one, which promises nothing and records what left without a guarantee. uncounted: it was charged before records were
    counted, or was put back from a copy that may lack charges (`party.ledger.copying`), so that nobody can say which
    records were read. protection: what its cap protects, permanently; None where it was opened before this was stored,
    and nobody has stated it since.
    """

    id: str
    number: int
    lineage: str
    epsilon: float | None
    delta: float | None
    simulation: bool
    opened_at: float
    uncounted: bool
    protection: Protection | None = DOCUMENT

    @property
    def capped(self) -> bool:
        """Whether the account has a cap."""
        return self.epsilon is not None

    @property
    def about(self) -> str:
        """What the cap protects, in words."""
        return "units that nobody has stated" if self.protection is None else str(self.protection)

    @property
    def cap(self) -> str:
        """The cap and what it protects, in words; or that there is none."""
        if self.epsilon is None or self.delta is None:
            return NO_CAP
        return f"epsilon {self.epsilon:g} (delta {self.delta:g}) for {self.about}"

    @property
    def filter(self) -> "LifetimeFilter | None":
        """The privacy filter that enforces the cap: its order follows from epsilon and delta, which never change. None
        without a cap.
        """
        if self.epsilon is None or self.delta is None:
            return None
        from aggregation.accounting.price import LifetimeFilter

        return LifetimeFilter(self.epsilon, self.delta)


@dataclass(frozen=True, slots=True)
class Reservation:
    """One event that an account was charged. Times are seconds since 1970; `answered_at` is None until the first byte
    leaves.

    refunded_at: when the charge was taken back, after which it costs nothing; None while it counts. blank: what left
    under it was made without text.
    """

    run: str
    release: str
    attempt: int
    event: "DpEvent"
    reserved_at: float
    answered_at: float | None
    refunded_at: float | None = None
    blank: bool = False

    @property
    def stands(self) -> bool:
        """Whether the charge counts."""
        return self.refunded_at is None


@dataclass(frozen=True, slots=True)
class Account:
    """The current state of an account. `id` is random; only this part of the ledger may leave the party.

    epsilon, delta: None without a cap.
    """

    id: str
    lineage: str
    epsilon: float | None
    delta: float | None
    simulation: bool
    opened_at: float
    reservations: tuple[Reservation, ...]


@dataclass(frozen=True, slots=True)
class Noted:
    """A line of the ledger's log: when, for which lineage, what, and the operating system's name of the user."""

    at: float
    lineage: str
    what: str
    by: str


def open_account(
    home: Path,
    lineage: str,
    *,
    epsilon: float | None,
    delta: float | None,
    simulation: bool,
    protection: Protection = DOCUMENT,
) -> tuple[Opened, bool]:
    """Open an account permanently in the ledger of `home`; returns whether it is new. Recorded with time and user.

    epsilon, delta: the cap; None where `protection` says that there is none.

    An existing account under this cap stays unchanged. If it was opened before accounts stored what they protect, this
    records that everything it was charged for protected this. Raises `PartyError` while a node holds the folder, for
    another cap than it was opened with, and for a cap that admits nothing.
    """
    with held(home), contextlib.closing(connect(home / FILE)) as sql:
        there = find(sql, lineage)
        found = ensure(sql, lineage, epsilon, delta, simulation, home / FILE, protection)
        return found, there is None


def ensure(
    sql: sqlite3.Connection,
    lineage: str,
    epsilon: float | None,
    delta: float | None,
    simulation: bool,
    path: Path,
    protection: Protection = DOCUMENT,
) -> Opened:
    """The lineage's account, opened if it does not exist. Raises `PartyError` as `open_account` does."""
    if {epsilon is not None, delta is not None} != {protection.capped}:
        raise PartyError(
            f"{path}: the account {lineage} has either a cap with epsilon and delta, or none of these.", code="C604"
        )
    if epsilon is not None and delta is not None:
        from aggregation.accounting.price import LifetimeFilter

        LifetimeFilter(epsilon, delta)
    with transaction(sql):
        found = find(sql, lineage)
        if found is None:
            sql.execute(
                "INSERT INTO accounts (id, number, lineage, epsilon, delta, simulation, opened_at, unit, relation) "
                "VALUES (?, (SELECT COALESCE(MAX(number), 0) + 1 FROM accounts), ?, ?, ?, ?, ?, ?, ?)",
                (
                    secrets.token_hex(16), lineage, epsilon, delta, int(simulation), time.time(),
                    protection.unit, protection.relation,
                ),
            )  # fmt: skip
            kind = ", a simulation" if simulation else ""
            cap = f"epsilon {epsilon:g} at delta {delta:g} for {protection}" if protection.capped else NO_CAP
            note(sql, lineage, f"opened with {cap}{kind}")
    found = find(sql, lineage)
    assert found is not None
    if found.protection is None:
        check(found, epsilon, delta, simulation, path, None)
        found = _state(sql, found, protection)
    check(found, epsilon, delta, simulation, path, protection)
    return found


def take_up(
    sql: sqlite3.Connection,
    lineage: str,
    epsilon: float | None,
    delta: float | None,
    simulation: bool,
    path: Path,
    protection: Protection,
) -> Opened:
    """The lineage's account as a node continues it. Raises `PartyError` as `party.ledger.ledger.Ledger.open` says.

    An account that was opened before accounts stored what they protect takes over the policy's unit, provided it was
    never charged.
    """
    found = find(sql, lineage)
    if found is None and not simulation:
        raise missing(sql, lineage, path.parent)
    if found is None or (found.protection is None and (simulation or not is_charged(sql, found))):
        found = ensure(sql, lineage, epsilon, delta, simulation, path, protection)
    check(found, epsilon, delta, simulation, path, protection)
    return found


def _state(sql: sqlite3.Connection, found: Opened, protection: Protection) -> Opened:
    """Record what an account protects that was opened before this was stored."""
    with transaction(sql):
        sql.execute(
            "UPDATE accounts SET unit = ?, relation = ? WHERE id = ?",
            (protection.unit, protection.relation, found.id),
        )
        note(sql, found.lineage, f"stated to be for {protection}, with all that it was charged before")
    return replace(found, protection=protection)


def check(
    found: Opened,
    epsilon: float | None,
    delta: float | None,
    simulation: bool,
    path: Path,
    protection: Protection | None = DOCUMENT,
) -> None:
    """Raises `PartyError` when the policy differs from the one under which the account was opened.

    protection: what the policy's cap protects; None is not compared.
    """
    if (found.epsilon is None) != (epsilon is None):
        was, says = ("without a cap", "one") if found.epsilon is None else (f"with {found.cap}", "none")
        raise PartyError(
            f"{path}: the account {found.lineage} was opened {was}, and the policy now has {says} ([policy] "
            "guarantee). That holds for the life of the data: restore it, or name another account.",
            code="C604",
        )
    if (found.epsilon, found.delta) != (epsilon, delta):
        raise PartyError(
            f"{path}: the account {found.lineage} was opened with epsilon = {found.epsilon:g} and delta = "
            f"{found.delta:g}, the policy now says {epsilon:g} and {delta:g}. A cap holds for the life of the data: "
            "restore it.",
            code="C604",
        )
    if found.simulation != simulation:
        was = "a simulation" if found.simulation else "private text"
        raise PartyError(
            f"{path}: the account {found.lineage} was opened for {was}; [policy] simulation says otherwise. "
            "Restore it, or name another account.",
            code="C604",
        )
    if protection is None or found.protection == protection:
        return
    if found.protection is None:
        raise PartyError(
            f"{path}: the account {found.lineage} was charged before accounts kept what they protect. If every plan "
            f"that it was charged for protected {protection}, say so, for good and on record: party account open "
            f"{found.lineage} --config party.toml. If one of them did not, its cap says nothing of these records: "
            "leave it, and serve other ones under another account.",
            code="C604",
        )
    raise PartyError(
        f"{path}: the account {found.lineage} was opened for {found.protection}; the policy now says {protection}. "
        f"Charges for different units do not add up: restore {found.protection.settings}, or name another account.",
        code="C604",
    )


def missing(sql: sqlite3.Connection, lineage: str, folder: Path) -> PartyError:
    """The message for a lineage whose account nobody opened."""
    there = ", ".join(each.lineage for each in every(sql))
    known = f" It has {there}: one that this party goes on with is named by account = in its file." if there else ""
    return PartyError(
        f"The ledger in {folder} has no account {lineage}.{known} To open a new one, for good: "
        f"party account open {lineage} --config party.toml",
        code="C604",
    )


def find(sql: sqlite3.Connection, lineage: str) -> Opened | None:
    """The lineage's account."""
    return next((each for each in every(sql) if each.lineage == lineage), None)


def every(sql: sqlite3.Connection) -> tuple[Opened, ...]:
    """All accounts in the order in which they were opened."""
    columns, version = _COLUMNS, version_of(sql)
    if version < COUNTING_UNITS:
        columns = "id, rowid, lineage, epsilon, delta, simulation, opened_at, 1"
    protections = "NULL, NULL" if version < PROTECTING else "unit, relation"
    rows = sql.execute(f"SELECT {columns}, {protections} FROM accounts ORDER BY 2")
    return tuple(
        Opened(
            r[0], r[1], r[2], r[3], r[4], bool(r[5]), r[6], bool(r[7]), None if r[8] is None else Protection(r[8], r[9])
        )
        for r in rows
    )


def is_charged(sql: sqlite3.Connection, account: Opened) -> bool:
    """Whether anything made from text was ever charged to an account, taken back or not."""
    of_text = "" if version_of(sql) < PROTECTING else "AND NOT blank"
    row = sql.execute(
        f"SELECT EXISTS (SELECT 1 FROM reservations WHERE account = ? {of_text})", (account.id,)
    ).fetchone()
    return bool(row[0])


def reservations(sql: sqlite3.Connection, account: str) -> tuple[Reservation, ...]:
    """Everything that an account was ever charged, in order; charges that were taken back are marked."""
    from aggregation.accounting import events

    version = version_of(sql)
    refunded = "NULL" if version < REFUNDING else "refunded_at"
    blank = "0" if version < PROTECTING else "blank"
    rows = sql.execute(
        f"SELECT run, release, attempt, event, reserved_at, answered_at, {refunded}, {blank} FROM reservations "
        "WHERE account = ? ORDER BY id",
        (account,),
    )
    return tuple(
        Reservation(r[0], r[1], r[2], events.from_json(json.loads(r[3])), r[4], r[5], r[6], bool(r[7])) for r in rows
    )


def charges(sql: sqlite3.Connection, account: str, *, blank: bool = True) -> "list[DpEvent]":
    """The charges of an account that count, each event once with its number: hundreds of steps cost the same to price.

    blank: include what was answered without text.
    """
    from aggregation.accounting import events
    from aggregation.accounting.library import SelfComposedDpEvent

    standing = "" if version_of(sql) < REFUNDING else "AND refunded_at IS NULL"
    standing += "" if blank or version_of(sql) < PROTECTING else " AND NOT blank"
    rows = sql.execute(
        f"SELECT event, COUNT(*) FROM reservations WHERE account = ? {standing} GROUP BY event ORDER BY MIN(id)",
        (account,),
    )
    found = [(events.from_json(json.loads(text)), count) for text, count in rows]
    return [event if count == 1 else SelfComposedDpEvent(event, count) for event, count in found]


def note(sql: sqlite3.Connection, lineage: str, what: str) -> None:
    """Add a line to the log, inside a transaction."""
    sql.execute("INSERT INTO log VALUES (?, ?, ?, ?)", (time.time(), lineage, what, _user()))


def noted(sql: sqlite3.Connection, lineages: Iterable[str]) -> tuple[Noted, ...]:
    """The log's lines on these lineages, in order."""
    wanted = set(lineages)
    if version_of(sql) < COUNTING_UNITS:
        return ()
    rows = sql.execute("SELECT at, account, what, by FROM log ORDER BY rowid")
    return tuple(Noted(*row) for row in rows if row[1] in wanted)


def read_account(path: Path, lineage: str) -> Account | None:
    """The account of a lineage as stored in the ledger file; safe beside a running node. Raises `PartyError`."""
    if not path.exists():
        return None
    with reading(path) as sql:
        found = find(sql, lineage)
        if found is None:
            return None
        charged = reservations(sql, found.id)
    return Account(found.id, found.lineage, found.epsilon, found.delta, found.simulation, found.opened_at, charged)


def _user() -> str:
    try:
        return f"{getpass.getuser()} ({os.getuid()})"
    except (KeyError, OSError):  # a user id without a name, as in many containers
        return str(os.getuid())
