"""Accounts that share records: what one of them was charged counts for all, and every cap of theirs holds.

Nobody is asked whether a shard is an old one: keyed hashes of the documents that were read say so, whatever the party,
the lineage, the file or the division among parties is called now.
"""

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dp_accounting import DpEvent, get_epsilon_gaussian

from aggregation.accounting import LifetimeFilter
from party import census
from party.accounts import Opened, charges, every, joined_runs, note
from party.database import COUNTING_UNITS, version_of
from protos.refusal import Reason, Refusal


@dataclass(frozen=True, slots=True)
class Budget:
    """An account in figures. cap: its epsilon. runs: how many are open.

    spent, left: epsilon at the cap's delta of one Gaussian release that is worth all that was charged, to accounts that
    share records too, and of the largest one that is still admitted; they do not add up to the cap.
    """

    cap: float
    spent: float
    left: float
    runs: int


@dataclass(frozen=True)
class Group:
    """An account, and the others that share a record with it or with one of them.

    A release is admitted when the events of all of them and its own stay within every one's cap: a record that two
    lineages hold was promised both. So groups are larger than they need be, never smaller.
    """

    own: Opened
    others: tuple[Opened, ...] = ()

    @cached_property
    def filters(self) -> tuple[LifetimeFilter, ...]:
        """Each account's own, at the order that was fixed when it was opened."""
        return tuple(each.filter for each in (self.own, *self.others))

    def admit(self, spent: Sequence[DpEvent], event: DpEvent, release: str) -> None:
        """Return when `event` may follow what the group has spent. Raises `Refusal` (BUDGET, POLICY).

        It does not say whose charges stand in the way: that a record is in two shards is nobody's business outside.
        """
        self._keep_apart()
        if all(each.admits(spent, event) for each in self.filters):
            return
        raise Refusal(
            Reason.BUDGET,
            f"the ledger cannot pay for {release}: of the cap of {self.own.epsilon:g}, a release of epsilon "
            f"{math.floor(self.left(spent) * 1000) / 1000:g} at delta {self.own.delta:g} is left. "
            "(A cap over all runs to come counts a release for somewhat more than one plan does for itself.)",
        )

    def left(self, spent: Sequence[DpEvent]) -> float:
        """Epsilon at the own cap's delta of the largest single Gaussian release that every cap still admits."""
        tightest = min(self.filters, key=lambda each: (each.cap - each.spent(spent)) / each.order)
        divergence = tightest.cap - tightest.spent(spent)
        if not divergence > 0:
            return 0.0
        return float(get_epsilon_gaussian(math.sqrt(tightest.order / (2 * divergence)), self.own.delta))

    def spent(self, charged: Sequence[DpEvent]) -> float:
        """Epsilon at the own cap's delta of one Gaussian release that is worth what was charged."""
        own = self.filters[0]
        divergence = own.spent(charged) if charged else 0.0
        if 0 < divergence < math.inf:
            return float(get_epsilon_gaussian(math.sqrt(own.order / (2 * divergence)), own.delta))
        return math.inf if divergence else 0.0

    def _keep_apart(self) -> None:
        """Noise of a simulation may be known to anyone, so no cap can hold for a record that one has read."""
        if all(each.simulation == self.own.simulation or each.uncounted for each in self.others):
            return
        was = "as private text" if self.own.simulation else "in a simulation, whose noise may be known to anyone"
        raise Refusal(
            Reason.POLICY,
            f"records of this shard were read here before {was}. A simulation and a promise share no record.",
            "simulation",
        )


def group_of(sql: sqlite3.Connection, own: Opened) -> Group:
    """The accounts of the ledger that share records with `own`, through others too.

    One that was charged before units were counted may share any with each, and is taken to.
    """
    known = {each.number: each for each in every(sql)}
    linked: dict[int, set[int]] = {number: set() for number in known}
    if version_of(sql) >= COUNTING_UNITS:
        for one, other in sql.execute("SELECT one, other FROM links"):
            linked[one].add(other)
    reached, ahead = {own.number}, [own.number]
    while ahead:
        new = linked[ahead.pop()] - reached
        reached |= new
        ahead += new
    reached |= {each.number for each in known.values() if each.uncounted or own.uncounted}
    others = (known[number] for number in sorted(reached - {own.number}))
    # A simulation that was refused private text, and was charged nothing, has shown nothing of it to anyone.
    return Group(own, tuple(each for each in others if own.simulation or not each.simulation or _charged(sql, each)))


def _charged(sql: sqlite3.Connection, account: Opened) -> bool:
    row = sql.execute("SELECT EXISTS (SELECT 1 FROM reservations WHERE account = ?)", (account.id,)).fetchone()
    return bool(row[0])


def events_of(sql: sqlite3.Connection, group: Group) -> list[DpEvent]:
    """All that the accounts of a group were charged, without what was taken back."""
    return [event for account in (group.own, *group.others) for event in charges(sql, account.id)]


def budget_of(sql: sqlite3.Connection, group: Group) -> Budget:
    """The own account in figures."""
    charged = events_of(sql, group)
    runs = sum(1 for run in joined_runs(sql) if run.left_at is None)
    return Budget(group.own.epsilon, group.spent(charged), group.left(charged), runs)


def record_units(sql: sqlite3.Connection, own: Opened, counted: Path) -> tuple[str, ...]:
    """Take a census into the ledger, inside a transaction; the lineages that turn out to share records with `own`.

    Those that were known to are not named again. A training may have read no record at all. Memory: one chunk of
    `party.census`. Raises `PartyError` for a census that is not whole.
    """
    for chunk in census.chunks(counted):
        sql.executemany(
            "INSERT OR IGNORE INTO units (hash, account, kind) VALUES (?, ?, ?)",
            ((row[:-1], own.number, row[-1]) for row in chunk),
        )
    linked = {row[0] for row in sql.execute("SELECT other FROM links WHERE one = ?", (own.number,))}
    rest = [each for each in every(sql) if each.number != own.number and each.number not in linked]
    if not rest:
        return ()
    sharing = {
        row[0]
        for row in sql.execute(
            "SELECT DISTINCT theirs.account FROM units AS ours JOIN units AS theirs ON theirs.hash = ours.hash "
            "WHERE ours.account = ? AND theirs.account != ours.account",
            (own.number,),
        )
    }
    new = [each for each in rest if each.number in sharing]
    for each in new:
        pairs = [(own.number, each.number), (each.number, own.number)]
        sql.executemany("INSERT INTO links VALUES (?, ?)", pairs)
        note(sql, own.lineage, f"shares records with {each.lineage}; each is charged for both")
    return tuple(each.lineage for each in new)


def documents(sql: sqlite3.Connection, own: Opened) -> int:
    """How many different documents an account was charged for; 0 before units were counted."""
    if version_of(sql) < COUNTING_UNITS:
        return 0
    row = sql.execute("SELECT COUNT(*) FROM units WHERE account = ? AND kind = ?", (own.number, census.TEXT))
    return int(row.fetchone()[0])
