"""The output of `party budget`: an account, the cost of its runs, what it inherited, and who opened it."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aggregation.accounting.price import Guarantee, price
from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import HEURISTIC
from party.errors import PartyError
from party.ledger.accounts import Noted, Opened, Reservation, every, noted, reservations
from party.ledger.database import FILE, reading
from party.ledger.lineages import Budget, budget_of, documents, group_of
from party.ledger.runs import JoinedRun, joined_runs


@dataclass(frozen=True, slots=True)
class RunCost:
    """The charges of one run, without refunds. price: None where its events have no price, as without a guarantee.

    The price is the run's own, by the accountant that is tight for events fixed in advance by the plan; the account's
    filter counts the same run for more.
    """

    run: JoinedRun
    charged: tuple[Reservation, ...]
    price: Guarantee | None


@dataclass(frozen=True, slots=True)
class Inherited:
    """An account that shares records with this one, and how many releases it was charged for."""

    account: Opened
    charges: int


@dataclass(frozen=True, slots=True)
class Statement:
    """One account in full. documents: how many distinct documents it was charged for. hindered: why nothing can be
    charged for its records, whatever is left.
    """

    account: Opened
    documents: int
    budget: Budget
    runs: tuple[RunCost, ...]
    inherited: tuple[Inherited, ...]
    hindered: str
    log: tuple[Noted, ...]

    @property
    def unguaranteed(self) -> int:
        """How many releases made from text left without a guarantee."""
        if self.account.capped:
            return 0
        return sum(each.stands and not each.blank for run in self.runs for each in run.charged)


def statements(home: Path, lineage: str | None = None) -> tuple[Statement, ...]:
    """The accounts of the ledger in `home`, or one of them; safe beside a running node.

    Raises `PartyError` when there is no such account, or the file is not a ledger.
    """
    path = home / FILE
    if not path.exists():
        raise PartyError(
            f"There is no ledger in {home} yet. Open an account: party account open --config FILE", code="C604"
        )
    with reading(path) as sql:
        accounts = every(sql)
        wanted = [each for each in accounts if lineage in (None, each.lineage)]
        if not wanted:
            known = ", ".join(each.lineage for each in accounts) or "none"
            raise PartyError(f"{path} has no account {lineage}. It has: {known}.", code="C604")
        runs = joined_runs(sql)
        found = []
        for own in wanted:
            group = group_of(sql, own)
            charged = reservations(sql, own.id)
            found.append(
                Statement(
                    account=own,
                    documents=documents(sql, own),
                    budget=budget_of(sql, group),
                    runs=tuple(_cost(run, charged, own.delta) for run in runs if _of(run, charged)),
                    inherited=tuple(
                        Inherited(each, sum(each_.stands and not each_.blank for each_ in reservations(sql, each.id)))
                        for each in group.others
                    ),
                    hindered=group.hindered,
                    log=noted(sql, [own.lineage]),
                )
            )
    return tuple(found)


def to_json(statement: Statement) -> dict[str, Any]:
    """A statement as JSON values. Times are seconds since 1970."""
    account, budget = statement.account, statement.budget
    return {
        "account": account.lineage,
        "id": account.id,
        "opened_at": account.opened_at,
        "simulation": account.simulation,
        "documents": None if account.uncounted else statement.documents,
        "guarantee": account.capped,
        "releases_without_guarantee": statement.unguaranteed,
        "delta": account.delta,
        "unit": None if account.protection is None else account.protection.unit,
        "relation": None if account.protection is None else account.protection.relation,
        "cap": budget.cap,
        "spent": None if budget.spent is None else _finite(budget.spent),
        "left": budget.left,
        "order": None if account.filter is None else account.filter.order,
        "hindered": statement.hindered or None,
        "runs": [_run_to_json(each) for each in statement.runs],
        "inherited": [
            {
                "account": each.account.lineage,
                "id": each.account.id,
                "unit": None if each.account.protection is None else each.account.protection.unit,
                "releases": each.charges,
            }
            for each in statement.inherited
        ],
        "log": [{"at": each.at, "what": each.what, "by": each.by} for each in statement.log],
    }


def shown(statement: Statement) -> list[tuple[str, str]]:
    """A statement for people: the label of each line, and the line."""
    account, budget = statement.account, statement.budget
    counted = "documents were not all counted" if account.uncounted else f"{statement.documents:,} documents charged"
    runs, accounts = len(statement.runs), len(statement.inherited)
    inherited = f" and {accounts} inherited {'account' if accounts == 1 else 'accounts'}" if accounts else ""
    ran = f"in {runs} {'run' if runs == 1 else 'runs'}"
    if budget.cap is None:
        many = statement.unguaranteed
        spent = f"no cap: {many:,} {'release' if many == 1 else 'releases'} without a guarantee, {ran}"
    else:
        spent = (
            f"epsilon {budget.spent:.2f} of {budget.cap:.2f} (delta {account.delta:g}) for {account.about}, "
            f"{ran}{inherited}; {budget.left:.2f} is left for one more release"
        )
    lines = [
        ("account", f"{account.lineage} (opened {_day(account.opened_at)})   {counted}"),
        ("id", account.id),
        ("spent", spent),
    ]
    if account.simulation:
        lines.append(("", "a simulation: its noise may be known to anyone, and none of these figures is a guarantee"))
    for each in statement.runs:
        unpriced = "no price" if account.capped else HEURISTIC
        own = unpriced if each.price is None else f"epsilon {each.price.epsilon:.2f} ({each.price.accountant})"
        state = "open" if each.run.left_at is None else "ended"
        lines.append(("run", f"{each.run.id}   {_day(each.run.joined_at)}, {state}   {own}   {_releases(each)}"))
    for other in statement.inherited:
        why = "whose documents were not all counted" if other.account.uncounted else "shares records"
        why += f", for {other.account.about}"
        lines.append(
            (
                "inherited",
                f"{other.account.lineage} (opened {_day(other.account.opened_at)}), {why}: {other.charges} "
                f"{'release' if other.charges == 1 else 'releases'}",
            )
        )
    if statement.hindered:
        lines.append(("", f"plans are refused, or answered without text: {statement.hindered}"))
    lines += [("log", f"{_minute(each.at)}   {each.what}, by {each.by}") for each in statement.log]
    return lines


def _of(run: JoinedRun, charged: tuple[Reservation, ...]) -> bool:
    return any(each.run == run.id for each in charged)


def _cost(run: JoinedRun, charged: tuple[Reservation, ...], delta: float | None) -> RunCost:
    own = tuple(each for each in charged if each.run == run.id)
    if delta is None:
        return RunCost(run, own, None)
    try:
        found = price([each.event for each in own if each.stands], delta)
    except ConclaveError:
        found = None
    return RunCost(run, own, found)


def _run_to_json(cost: RunCost) -> dict[str, Any]:
    return {
        "run": cost.run.id,
        "joined_at": cost.run.joined_at,
        "left_at": cost.run.left_at,
        "epsilon": None if cost.price is None else _finite(cost.price.epsilon),
        "accountant": None if cost.price is None else cost.price.accountant,
        "releases": [
            {
                "release": each.release,
                "attempt": each.attempt,
                "reserved_at": each.reserved_at,
                "refunded_at": each.refunded_at,
                "without_text": each.blank,
            }
            for each in cost.charged
        ],
    }


def _releases(cost: RunCost) -> str:
    return ", ".join(each.release + _how(each) for each in cost.charged)


def _how(charge: Reservation) -> str:
    """In brackets, where it applies: which attempt it was, and that a refunded one costs nothing."""
    said = [f"attempt {charge.attempt + 1}"] if charge.attempt or not charge.stands else []
    said += [] if charge.stands else ["refunded, costs nothing"]
    said += ["without text"] if charge.blank else []
    return f" ({', '.join(said)})" if said else ""


def _finite(number: float) -> float | None:
    return number if number < float("inf") else None


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at))


def _minute(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
