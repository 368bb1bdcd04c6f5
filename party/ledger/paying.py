"""Whether an account can pay: alone, which a coordinator can also compute, and together with accounts that share
records.

Nobody outside may learn the second. Where the account alone can pay but the group cannot, a run is charged and answered
as usual, but without text: noise alone. So what is refused once a run has joined, and in which words, depends on the
account's own charges only. All functions run inside a transaction of the ledger.
"""

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

from aggregation.accounting.library import DpEvent, SelfComposedDpEvent
from party.ledger import attempts
from party.ledger.accounts import Opened, note
from party.ledger.lineages import Group, events_of, group_of, over, own_events


def check_join(sql: sqlite3.Connection, own: Opened, run: str, wanted: Sequence[tuple[str, DpEvent]]) -> None:
    """Raises `Refusal` (BUDGET), in the same words for any reason, unless a run that has not joined can be paid for.

    Only this check tells anything outside about the charges of accounts that share records.
    """
    if not _fits(sql, group_of(sql, own), run, wanted):
        raise over(own, "this plan")


def check_join_again(sql: sqlite3.Connection, own: Opened, run: str, wanted: Sequence[tuple[str, DpEvent]]) -> None:
    """Raises `Refusal` (BUDGET) unless the account alone can pay for a run that joined before.

    That it shares records may have been found in this very run; it then continues without text.
    """
    if not _fits(sql, Group(own), run, wanted):
        raise over(own, "this plan")


def check_charge(
    sql: sqlite3.Connection, own: Opened, run: str, release: str, event: DpEvent, *, opening: bool
) -> bool:
    """Whether a charge about to be made is for something made without text. Raises `Refusal` (BUDGET).

    opening: the charge comes before text is opened for it, so that it can still be answered without; `afford` then
    tells its maker so, and marks it. Otherwise what leaves was made already, from text, unless all earlier charges of
    the release were blank; it is refused where those that share records cannot pay for it.
    """
    if not Group(own).admits(own_events(sql, own), event):
        raise over(own, release)
    blank = is_blank(sql, run) if opening else attempts.all_blank(sql, run, release)
    group = group_of(sql, own)
    if not blank and group.others and not group.admits(events_of(sql, group), event):
        if not opening:
            raise over(own, release)
        _go_blank(sql, group, run)
    return blank and not opening


def afford(
    sql: sqlite3.Connection,
    own: Opened,
    run: str,
    wanted: Callable[[], Sequence[tuple[str, DpEvent]]],
    release: str,
) -> bool:
    """Whether a run may use text. See `party.ledger.ledger.Ledger.afford`."""
    if not is_blank(sql, run):
        group = group_of(sql, own)
        if not group.others or _fits(sql, group, run, wanted()):
            return True
        _go_blank(sql, group, run)
    sql.execute(
        "UPDATE reservations SET blank = 1 WHERE run = ? AND release = ? AND account = ? AND unsent",
        (run, release, own.id),
    )
    return False


def is_blank(sql: sqlite3.Connection, run: str) -> bool:
    """Whether a run is answered without text from now on."""
    row = sql.execute("SELECT blank FROM runs WHERE id = ?", (run,)).fetchone()
    return row is not None and bool(row[0])


def _go_blank(sql: sqlite3.Connection, group: Group, run: str) -> None:
    """Answer a run without text from now on, and tell the administrator why."""
    sql.execute("UPDATE runs SET blank = 1 WHERE id = ?", (run,))
    shared = ", ".join(each.lineage for each in group.others)
    why = group.hindered or "together they leave too little for it"
    note(
        sql,
        group.own.lineage,
        f"run {run} is answered without text, noise alone: this account shares records with {shared}, and {why}",
    )


def _fits(sql: sqlite3.Connection, group: Group, run: str, wanted: Sequence[tuple[str, DpEvent]]) -> bool:
    """Whether the releases of a run that are not charged yet fit into a group's caps."""
    spent = events_of(sql, group)
    paid = Counter({release: len(attempts.attempted(sql, run, release)) for release, _ in wanted})
    left: list[DpEvent] = []
    for release, event in wanted:
        if paid[release]:
            paid[release] -= 1
        else:
            left.append(event)
    for event, alike in groupby(left):  # hundreds of steps cost the same
        count = len(list(alike))
        spent.append(event if count == 1 else SelfComposedDpEvent(event, count))
    return group.holds(spent)
