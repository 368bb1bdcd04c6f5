"""Goes on with a run under a mended plan, where nothing was spent under the earlier one as its parties' ledgers say.

No party takes another plan under an id that it has joined, so they join again under a new id, as they join a new run.
Whatever a coordinator says of the earlier plan, nothing that was charged, drawn or kept for it is there for the mended
one. That nothing was spent is shown to the person at the coordinator, who would otherwise pay twice unawares.
"""

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from coordinator.errors import PartyLost, PlanError, RunError
from coordinator.federation.attestation import attested
from coordinator.identity.identity import Own
from coordinator.plan.federation import FederationTable
from coordinator.pricing.release import PricedPlan
from coordinator.progress.progress import Progress
from coordinator.published.statement import Attestation
from coordinator.reading import shaped
from coordinator.run.attesting import packed
from coordinator.store.faults import sound
from coordinator.store.mending import begin_anew
from coordinator.store.store import RunStore
from coordinator.systems.registry import plan_of
from coordinator.transport.grpc_link import GrpcLink
from coordinator.transport.launchers import PartyAddress
from coordinator.transport.link import Answered, Outcome, Refused, Untroubled
from coordinator.transport.retry import PatientLink, Retry
from protos.digest import plan_hash
from protos.identity.signing import Signed
from protos.refusal import Reason, plain

ASKED_SECONDS: Final = 20.0
"""The most seconds that a party is waited for which is asked what a run has cost it."""
CHARGING: Final = frozenset({"train", "aggregate"})
"""Stages in which a ledger may be charged: parties charge a training before they run it."""
_UNSPENT: Final = "unspent"


@dataclass(frozen=True, slots=True)
class Mended:
    """A plan under which a run is to go on in place of the one that it began with.

    differ: the keys at which it differs; none where the same plan is to be joined again. facts: of it, for the store.
    """

    differ: tuple[str, ...]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Told:
    """What parties' ledgers say of a run. signed: by party, its attestation. spent: what it was charged for, where that
    is anything. strange: parties that are not in the run. silent: why others say nothing.
    """

    signed: dict[str, Signed] = field(default_factory=dict)
    spent: dict[str, tuple[str, ...]] = field(default_factory=dict)
    strange: set[str] = field(default_factory=set)
    silent: dict[str, str] = field(default_factory=dict)


def mended(store: RunStore, priced: PricedPlan[Any], facts: Mapping[str, Any]) -> Mended | None:
    """The plan to go on under, where it is not the run's own or the run ended at its parties; None to go on as before.

    facts: of the plan, for the store, but for its hash. Raises `PlanError`, naming what differs and what was charged,
    where the store shows that something was spent.
    """
    digest = plan_hash(priced.binding).hex()
    same = digest == store.fact("plan_hash")
    if same and (not store.fact("left") or store.finished("aggregate")):
        return None
    found = Mended(() if same else differing(store, priced), {**facts, "plan_hash": digest})
    _check_unspent(store, found.differ)
    return found


def differing(store: RunStore, priced: PricedPlan[Any]) -> tuple[str, ...]:
    """The keys, dotted, at which a plan's document differs from the run's; none where only public content does."""
    with sound(store.folder):
        return tuple(sorted(_differing(json.loads(store.fact("document")), json.loads(priced.binding.document))))


def in_words(differ: Sequence[str]) -> str:
    """What differs between two plans."""
    return f"{', '.join(differ)} differ" if differ else "the public text or the files that it names differ"


async def keep_unspent(addresses: Sequence[PartyAddress], store: RunStore, own: Own, within: float) -> bool:
    """Store what parties attest of a run that is about to end before anything was spent; returns whether they agree.

    within: seconds that they have.
    """
    with suppress(TimeoutError):
        told = await asyncio.wait_for(ledgers(addresses, store.joined_as, store.plan_hash, own, within), within)
        store.note(**{_UNSPENT: {name: packed(each) for name, each in told.signed.items() if name not in told.spent}})
        return not told.spent
    return True


async def go_on(
    found: Mended, addresses: Sequence[PartyAddress], priced: PricedPlan[Any], store: RunStore, own: Own, say: Progress
) -> None:
    """Begin the run anew under a mended plan, once every party's ledger has said that nothing was spent.

    Raises `RunError`, naming what was spent at whom, and `PartyLost` for a party that does not say; the run can then go
    on under its own plan alone.
    """
    _check_unspent(store, found.differ)
    run, digest, settings = store.joined_as, store.plan_hash, priced.plan.federation
    told = await ledgers(addresses, run, digest, own, _patience(settings), settings.deadline_seconds)
    if told.spent:
        listed = "; ".join(f"party {name} for {', '.join(each)}" for name, each in sorted(told.spent.items()))
        raise RunError(
            f"run {store.id} was charged for under another plan: {in_words(found.differ)}. Charged: {listed}. No "
            f"charge serves another plan. {_RESTORE}",
            code="C108",
        )
    with sound(store.folder):
        kept = dict(store.fact(_UNSPENT) or {})
        earlier = plan_of(store.fact("plan")).federation.names
    for name, why in _unknown(told, earlier, kept, begun=not CHARGING.isdisjoint(store.stages())):
        raise PartyLost(
            f"party {name} does not say whether the run cost it anything under its earlier plan: {why}. When it is "
            f"back (`party serve`):  coordinator resume {store.id}"
        )
    await ledgers(addresses, run, digest, own, _patience(settings), settings.deadline_seconds, leave=told.signed)
    shown = {"run": run, "plan_hash": digest.hex(), "signed": kept | {n: packed(s) for n, s in told.signed.items()}}
    former = [*(store.fact("former") or []), shown]
    begin_anew(store, **found.facts, former=former, joined_as=f"{store.id}-{len(former) + 1}")
    changed = f"the plan was mended: {in_words(found.differ)}" if found.differ else "its parties are asked again"
    say.say(
        f"  {changed}. Nothing was spent before, and each party joins anew, as run {store.joined_as}. Public text and "
        "models that this leaves as they were are kept as prepared"
    )


async def ledgers(
    addresses: Sequence[PartyAddress],
    run: str,
    digest: bytes,
    own: Own,
    patience: float,
    deadline: float = ASKED_SECONDS,
    *,
    leave: Collection[str] | None = None,
) -> Told:
    """What each party's ledger says that a run of this id and plan hash has cost it.

    patience: seconds for which a party that is away is asked again. leave: in place of asking, tell these parties that
    the run is over. Raises `PartyRefused` for an attestation that does not stand.
    """
    told, retry = Told(), Retry(patience)
    links = {
        each.name: GrpcLink(
            each.name,
            each.address,
            each.token,
            identity=own.identity if own.tls else None,
            way=each.way,
            deadline=deadline,
        )
        for each in addresses
        if leave is None or each.name in leave
    }
    try:
        for link in links.values():
            link.bind(run, digest)
        if leave is not None:
            await asyncio.gather(*(link.leave() for link in links.values()))
            return told
        asked = (PatientLink(link, retry, Untroubled()).attest() for link in links.values())
        outcomes: list[Outcome[Signed]] = await asyncio.gather(*asked)
    finally:
        await asyncio.gather(*(link.close() for link in links.values()))
    for name, outcome in zip(links, outcomes, strict=True):
        match outcome:
            case Answered(signed):
                attested(name, signed, run, digest.hex(), (), own)
                told.signed[name] = signed
                if costs := shaped(signed.payload, name, Attestation).releases:
                    told.spent[name] = tuple(plain(each.name) for each in costs)
            case Refused(refusal) if refusal.reason is Reason.NOT_JOINED:
                told.strange.add(name)
            case Refused(refusal):
                told.silent[name] = refusal.sentence.rstrip(".")
            case lost:
                told.silent[name] = lost.why
    return told


_RESTORE: Final = "Restore the plan to resume the run, or start a new run with the new plan; that pays anew."


def _check_unspent(store: RunStore, differ: Sequence[str]) -> None:
    """Raises `PlanError` where the store itself shows that something was charged."""
    spent = sorted(store.released())
    if not spent and any(store.finished(stage) for stage in CHARGING):
        spent = ["its training"]
    if spent:
        more = len(spent) - 5
        listed = ", ".join(spent[:5]) + (f" and {more:,} more" if more > 0 else "")
        raise PlanError(
            f"run {store.id} was started with another plan: {in_words(differ)}. Parties were charged for {listed} "
            f"under that one, and no charge serves another plan. {_RESTORE}",
            code="C108",
        )


def _unknown(told: Told, earlier: Sequence[str], kept: Mapping[str, Any], *, begun: bool) -> Iterator[tuple[str, str]]:
    """Parties of which nobody knows whether they were charged, with the reason.

    earlier: the parties of the earlier plan. kept: the attestations from when the run ended at them. begun: whether
    anything was asked that is charged; if not, a party that is not in the run was never asked for anything.
    """
    yield from ((name, why) for name, why in told.silent.items() if name not in kept)
    if begun:
        for name in earlier:
            if name not in told.signed and name not in told.silent and name not in kept:
                yield name, "it is not in the run any more" if name in told.strange else "the new plan does not have it"


def _patience(settings: FederationTable) -> float:
    return min(settings.retry_seconds, ASKED_SECONDS)


def _differing(one: Any, other: Any, key: str = "") -> Iterator[str]:
    """The keys, dotted, at which two JSON documents differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for name in one.keys() | other.keys():
            yield from _differing(one.get(name), other.get(name), f"{key}.{name}" if key else name)
    elif one != other:
        yield key
