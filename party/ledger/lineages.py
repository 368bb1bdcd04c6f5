"""Accounts that share records: a charge of one counts for all of them, and every one of their caps holds.

Whether a shard overlaps with an older one is not asked but found from keyed hashes of the documents that were read,
whatever the party, the lineage, the file or the division among parties is called now.
"""

import math
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from aggregation.accounting.library import DpEvent, get_epsilon_gaussian
from aggregation.accounting.price import LifetimeFilter
from party.ledger import census
from party.ledger.accounts import Opened, charges, every, is_charged, note
from party.ledger.database import COUNTING_UNITS, version_of
from party.ledger.runs import joined_runs
from protos.refusal import Reason, Refusal


@dataclass(frozen=True, slots=True)
class Budget:
    """The figures of an account. cap: its epsilon; None without a cap, and so are the others. runs: how many are open.

    spent, left: epsilon, at the cap's delta, of one Gaussian release that costs as much as all charges, including those
    of accounts that share records, and of the largest one that is still admitted; they do not add up to the cap.
    """

    cap: float | None
    spent: float | None
    left: float | None
    runs: int


@dataclass(frozen=True)
class Group:
    """An account together with all that share a record with it, directly or through others.

    A release is admitted when the events of all of them plus its own stay within every cap: a record in two lineages
    was promised both caps. Groups may be larger than necessary, never smaller.
    """

    own: Opened
    others: tuple[Opened, ...] = ()

    @cached_property
    def filters(self) -> tuple[LifetimeFilter, ...]:
        """Each account's own filter, at the order that was fixed when it was opened; none of one without a cap."""
        return tuple(each.filter for each in (self.own, *self.others) if each.filter is not None)

    @cached_property
    def hindered(self) -> str:
        """Why no release may read the account's records, whatever is left of the caps; empty where they may be read.

        Noise of a simulation may be known to anyone, so no cap can hold for a record that one has read. Nor can a cap
        hold for a record that left without a guarantee, and such a record may not leave so once a cap is promised for
        it. And charges for different units cannot be added (`party.admission.protection`).
        """
        for each in self.others:
            if each.simulation != self.own.simulation:
                if not each.uncounted:
                    return f"{each.lineage} read some of them {'in a simulation' if each.simulation else 'in earnest'}"
            elif each.protection is None:
                return f"nobody has stated what the charges to {each.lineage} protected"
            elif not each.capped and self.own.capped:
                return f"{each.lineage} let some of them leave without a guarantee, which no cap covers"
            elif each.capped and not self.own.capped:
                return f"{each.lineage} was charged for {each.protection}, under a cap, and this account has none"
            elif not each.capped:
                continue  # whatever the unit, neither account promises anything
            elif each.protection != self.own.protection:
                return f"{each.lineage} was charged for {each.protection}"
        return ""

    def admits(self, spent: Sequence[DpEvent], event: DpEvent) -> bool:
        """Whether `event` may follow what the group has spent."""
        return not self.hindered and all(each.admits(spent, event) for each in self.filters)

    def holds(self, spent: Sequence[DpEvent]) -> bool:
        """Whether what the group has spent is within every cap."""
        return not self.hindered and all(each.spent(spent) <= each.cap for each in self.filters)

    def left(self, spent: Sequence[DpEvent]) -> float | None:
        """Epsilon, at the own cap's delta, of the largest single Gaussian release that every cap still admits; None
        without a cap.
        """
        if self.own.delta is None:
            return None
        if self.hindered:
            return 0.0
        tightest = min(self.filters, key=lambda each: (each.cap - each.spent(spent)) / each.order)
        divergence = tightest.cap - tightest.spent(spent)
        if not divergence > 0:
            return 0.0
        return float(get_epsilon_gaussian(math.sqrt(tightest.order / (2 * divergence)), self.own.delta))

    def spent(self, charged: Sequence[DpEvent]) -> float | None:
        """Epsilon, at the own cap's delta, of one Gaussian release that costs as much as all charges; None without a
        cap.
        """
        own = self.own.filter
        if own is None:
            return None
        divergence = own.spent(charged) if charged else 0.0
        if 0 < divergence < math.inf:
            return float(get_epsilon_gaussian(math.sqrt(own.order / (2 * divergence)), own.delta))
        return math.inf if divergence else 0.0


def over(own: Opened, what: str) -> Refusal:
    """The refusal for what an account cannot pay: the same words whichever account's charges stand in the way.

    Nobody outside may learn that a record is in two shards, nor see a figure that depends on it.
    """
    if not own.capped:
        return Refusal(
            Reason.BUDGET,
            f"the ledger does not let {what} leave without a guarantee, which is all that this party's account is for; "
            "its administrator sees why with party budget.",
        )
    return Refusal(
        Reason.BUDGET,
        f"the ledger cannot pay for {what} within this party's cap of {own.cap}; its administrator sees what is left "
        "with party budget. (A cap over all runs to come counts a release for somewhat more than one plan does for "
        "itself.)",
    )


def group_of(sql: sqlite3.Connection, own: Opened) -> Group:
    """The accounts of the ledger that share records with `own`, directly or through others, where this matters.

    Two accounts that cannot be told apart are assumed to share records: one that was charged before records were
    counted shares with every other, and one for parts of documents shares with all of other units, whose documents were
    not hashed by part.
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
    reached |= {each.number for each in known.values() if _alike(own, each)}
    others = (known[number] for number in sorted(reached - {own.number}))
    return Group(own, tuple(each for each in others if _counts(sql, own, each)))


def _counts(sql: sqlite3.Connection, own: Opened, other: Opened) -> bool:
    """Whether an account that shares records matters.

    One of the same kind has a cap on these records, a charged one has released something about them, and what a real
    run read is not for a simulation. What was answered without text released nothing.
    """
    alike = (other.simulation, other.protection) == (own.simulation, own.protection)
    return alike or (own.simulation and not other.simulation) or is_charged(sql, other)


def _alike(own: Opened, other: Opened) -> bool:
    """Whether no census could show that two accounts share no record."""
    if own.uncounted or other.uncounted:
        return True
    inside = any(each.protection is not None and each.protection.inside_documents for each in (own, other))
    return inside and own.protection != other.protection


def own_events(sql: sqlite3.Connection, own: Opened) -> list[DpEvent]:
    """All charges of an account itself, without refunds; only these are told outside."""
    return charges(sql, own.id)


def events_of(sql: sqlite3.Connection, group: Group) -> list[DpEvent]:
    """All charges of the accounts of a group, without refunds and without what others answered without text.

    What another account let leave without a guarantee has no price: `Group.hindered` says that it did.
    """
    capped = (account for account in group.others if account.capped or not group.own.capped)
    others = [event for account in capped for event in charges(sql, account.id, blank=False)]
    return own_events(sql, group.own) + others


def budget_of(sql: sqlite3.Connection, group: Group) -> Budget:
    """The figures of the own account."""
    charged = events_of(sql, group)
    runs = sum(1 for run in joined_runs(sql) if run.left_at is None)
    return Budget(group.own.epsilon, group.spent(charged), group.left(charged), runs)


def record_units(sql: sqlite3.Connection, own: Opened, counted: Path) -> tuple[str, ...]:
    """Take a census into the ledger, inside a transaction; returns the lineages now found to share records with `own`.

    Those that were known before are not named again. A training may have read no record at all. Memory: one chunk of
    `party.ledger.census`. Raises `PartyError` for a census that is incomplete.
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
    """How many distinct documents an account was charged for; 0 before records were counted."""
    if version_of(sql) < COUNTING_UNITS:
        return 0
    row = sql.execute("SELECT COUNT(*) FROM units WHERE account = ? AND kind = ?", (own.number, census.TEXT))
    return int(row.fetchone()[0])
