"""The party files of a plan that divides one source itself: each party's part of it, and the narrowest policy that
works.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from dp_accounting import DpEvent

from aggregation.accounting.price import LifetimeFilter
from coordinator.plan.plan import Plan
from coordinator.pricing.release import Release, borne

_MOST_EPSILON: Final = 1000.0


def party_tables(plan: Plan, releases: Sequence[Release] = ()) -> dict[str, dict[str, Any]]:
    """The party files of a plan that divides one source itself: each party's part, and the narrowest policy that works.

    releases: the releases of the plan. Empty for a plan whose parties run elsewhere: they have files of their own.
    """
    shards = plan.federation.shards
    if shards is None:
        return {}
    split = shards.split.model_dump(exclude_none=True)
    parties = split.pop("parties")
    parts = {"parts": split.pop("of", parties), "seed": plan.run.seed} | split
    source = shards.model_dump(exclude_none=True, exclude={"split"}) | plan.shard_columns
    cap = {"epsilon": _cap(plan, releases), "delta": plan.privacy.delta} if plan.privacy.guarantee else {}
    policy = {
        **(cap or {"guarantee": False}),
        "unit": plan.privacy.unit,
        "record": plan.privacy.record,
        "recipes": [plan.run.recipe],
        "simulation": True,
        "clear_votes": True,
        "weights": True,
        "samples": True,
        "public_labels": True,
    }
    return {
        name: {
            "name": name,
            "shard": source | {"part": parts | {"part": number}},
            "policy": dict(policy),
            "compute": _compute(plan, name),
        }
        for number, name in enumerate(plan.federation.names)
    }


def under_accounts(
    tables: Mapping[str, Mapping[str, Any]], opened: Sequence[Any], *, new: bool
) -> tuple[dict[str, dict[str, Any]], list[Any]]:
    """The party files with accounts that have the caps of their policies, and what the accounts were opened for.

    A cap holds for an account's life, so a mended plan with another one has parties that the run starts open another
    account. opened: for what the run's accounts were opened so far, in order. new: whether the plan was mended.
    """
    kept = list(opened)
    if not tables:
        return {}, kept
    policy = next(iter(tables.values()))["policy"]
    terms = [policy.get(key) for key in ("guarantee", "epsilon", "delta", "unit", "record")]
    if terms not in kept and (new or not kept):
        kept.append(terms)
    number = kept.index(terms) if terms in kept else len(kept) - 1
    if not number:
        return {name: dict(table) for name, table in tables.items()}, kept
    return {name: {**table, "account": f"{name}-{number + 1}"} for name, table in tables.items()}, kept


def _compute(plan: Plan, name: str) -> dict[str, Any]:
    """`[compute]` of a party that is started for the run.

    On this machine it computes with what the coordinator does. On a cluster, one that asks for a GPU computes on the
    one that Ray gives it and nowhere else, and any other on its processor, whatever else Ray has left visible.
    """
    run, cluster = plan.run, plan.federation.cluster
    if cluster is None:
        return {"device": run.device, "precision": run.precision, "threads": run.threads}
    if plan.MODELS and cluster.of(name).gpus:
        return {"device": "cuda", "precision": run.precision}
    return {"device": "cpu"}


def _cap(plan: Plan, releases: Sequence[Release]) -> float:
    """A lifetime cap with room for one run.

    A lifetime cap counts a release for more than the run's own accountant does: little more for Gaussian releases, much
    more for few steps on random batches.
    """
    cap = 2 * plan.privacy.epsilon
    for each in borne(releases):
        events = [release.at_most for release in each]
        while events and cap < _MOST_EPSILON and not _admits(cap, plan.privacy.delta, events):
            cap *= 2
    return cap


def _admits(cap: float, delta: float, events: Sequence[DpEvent]) -> bool:
    return LifetimeFilter(cap, delta).admits(events[1:], events[0])
