"""The rules by which a party takes part: its pinned peers, its policy, and the account that pays."""

import math
from pathlib import Path

from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import HEURISTIC
from party.config import PartyConfig
from party.ledger.accounts import check as check_cap
from party.ledger.accounts import find, is_charged, missing
from party.ledger.database import FILE, reading
from party.ledger.protection import of_policy
from protos.console.checklist import Line, ok, to_do, warning


def peers(config: PartyConfig) -> Line:
    """Check whether enough peers are pinned for any plan, and name them."""
    policy, pinned = config.policy, sorted(set(config.peers) - {config.name})
    if policy.simulation:
        return ok("peers", f"pinned: {', '.join(pinned)}" if pinned else "none pinned: a simulation")
    if not pinned:
        return warning(
            "peers",
            "none pinned: every other party may be made up, so a plan that counts on the noise of others is refused. "
            "Pin their fingerprints in [peers], as their administrators read them out",
        )
    if 1 + len(pinned) < policy.minimum_parties:
        return warning(
            "peers",
            f"pinned: {', '.join(pinned)}; with this party that is less than minimum_parties = "
            f"{policy.minimum_parties}, so every plan is refused. Pin the others, or lower minimum_parties",
        )
    return ok("peers", f"pinned: {', '.join(pinned)}")


def policy(config: PartyConfig) -> Line:
    """Warn about rules that are valid by themselves but contradict each other or the party's size."""
    policy = config.policy
    records = policy.declared_size
    if records is not None and policy.delta is not None and policy.delta * records >= 1:
        return warning(
            "policy",
            f"delta = {policy.delta:g} with declared_size = {records:,} allows a record or more to be shown outright; "
            f"below {1 / records:.0e} it would not",
        )
    if policy.simulation and config.identity is not None:
        return warning("policy", "simulation = true admits noise that protects nobody: right only for public text")
    rules = [
        f"epsilon {policy.epsilon:g} and delta {policy.delta:g} for {of_policy(policy)}, for the life of the data"
        if policy.guarantee
        else f"{HEURISTIC}, and no other plans",
        f"recipes {', '.join(policy.recipes)}",
        f"minimum_parties {policy.minimum_parties}",
        f"trust {policy.trust or ('as the plan says' if policy.simulation else 'secure-sum')}",
    ]
    if policy.minimum_noise is not None:
        rules.append(f"noise multipliers from {policy.minimum_noise:g}")
    if policy.maximum_queries is not None:
        rules.append(f"at most {policy.maximum_queries:,} queries")
    may = ("clear_votes", "weights", "samples", "public_labels", "simulation")
    if granted := [rule for rule in may if getattr(policy, rule)]:
        rules.append(f"allowed: {', '.join(granted)}")
    return ok("policy", "; ".join(rules))


def account(config: PartyConfig, home: Path) -> Line:
    policy, path = config.policy, home / FILE
    opening = f"{config.lineage} is not open yet. To open it, for good: party account open --config FILE"
    try:
        if not path.exists():
            return ok("account", "a simulation's: serving opens it") if policy.simulation else to_do("account", opening)
        with reading(path) as sql:
            own = find(sql, config.lineage)
            if own is None and policy.simulation:
                return ok("account", "a simulation's: serving opens it")
            if own is None:
                raise missing(sql, config.lineage, home)
            stated = own.protection is not None or (is_charged(sql, own) and not policy.simulation)
            about = of_policy(policy) if stated else None  # one never charged takes the policy's cap when it serves
            check_cap(own, policy.epsilon, policy.delta, policy.simulation, path, about)
            from party.ledger.lineages import budget_of, group_of  # the accountants take a second to import

            budget = budget_of(sql, group := group_of(sql, own))
    except ConclaveError as error:
        return to_do("account", str(error))
    if budget.left is None and group.hindered:
        return to_do("account", f"{own.lineage}: every plan is refused: {group.hindered}. Name another account.")
    if budget.left is None:
        return ok("account", f"{own.lineage}: no cap; every release without a guarantee is recorded")
    if not budget.left:
        return to_do("account", f"{own.lineage}: nothing is left of {own.cap}, so every plan is refused.")
    return ok(
        "account",
        f"{own.lineage}: epsilon {math.floor(budget.left * 1000) / 1000:g} of {own.epsilon:g} at delta {own.delta:g} "
        f"is left for one more release, for {of_policy(policy)}",
    )
