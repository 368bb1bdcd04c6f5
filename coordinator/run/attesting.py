"""Parties sign what a run has cost them; sums are made again without parties that were lost before they signed."""

import base64
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from aggregation.mechanisms.mechanism import Form
from coordinator.errors import PartyLost, RunError
from coordinator.federation.federation import Federation
from coordinator.pricing.release import PricedPlan, Release
from coordinator.progress.progress import Progress
from coordinator.published.manifest import Seal
from coordinator.published.statement import Privacy
from coordinator.publishing.report import Statement
from coordinator.reading import without_places
from coordinator.store.faults import sound
from coordinator.store.store import RunStore
from coordinator.verifying.attestations import OVERCHARGED, UNATTESTED, judged
from coordinator.verifying.evidence import lacking
from protos.conclave.v1 import plan_pb2
from protos.identity.identity import Identity
from protos.identity.signing import Signed


async def attest(
    federation: Federation,
    priced: PricedPlan[Any],
    store: RunStore,
    progress: Progress,
    *,
    sums: Callable[[], Mapping[str, tuple[str, ...]]],
    statement: Callable[[], Statement],
    again: Callable[[], Awaitable[None]] | None,
) -> dict[str, Any]:
    """Have every party in a sum sign what the run has cost it, and check the signatures as a verifier will.

    A party that is lost before it signs, or whose attestation is not valid, leaves its part of the sums unattested: the
    sums are made again without it, at no cost. Where they cannot be made again, and for a party that was charged beyond
    the plan, no guarantee is given, as long as enough others remain; otherwise nothing is published, and the run can be
    resumed.

    sums: whose contributions are in each release now. statement: what can be said of the run now. again: makes the sums
    again with the remaining parties; None where a sum is made only once. Returns the result of the stage.
    """
    await federation.repay(store, last=True)
    gone = dict(federation.lost)  # for steps before the last, whose sums stand without these parties
    while True:
        made = sums()
        took_part = sorted({name for parties in made.values() for name in parties})
        costs = {name: _charged_to(name, priced, store, made) for name in took_part}
        signed = await federation.attest(store.plan_hash.hex(), costs)
        stated = Privacy.model_validate(statement().privacy)
        found = judged(signed, stated)
        federation.disbelieve(found.unfit)
        signed = {name: each for name, each in signed.items() if name not in found.unfit}
        unsigned = [name for name in took_part if name not in signed and name not in gone]
        few = lacking(stated, priced.binding, set(signed) - set(found.beyond))
        if unsigned and (few or again is not None):
            await _without(unsigned, federation, store, progress, again)
            continue
        break
    for name, why in found.beyond.items():
        progress.say(f"  party {name} was charged for more than this run's plan: {why}")
    if few:
        raise RunError(_too_few_vouch(few, found.beyond, federation.lost, store.id), code="C801")
    missing = {name: why for name, why in federation.lost.items() if name not in signed}
    silent = [name for name in missing if stated.throughout(name)]
    left_out = dict.fromkeys(silent, UNATTESTED) | dict.fromkeys(found.beyond, OVERCHARGED)
    for name, why in left_out.items():
        progress.say(f"  nothing is promised for {name}: {why}")
    kept = {name: packed(each) for name, each in signed.items()}
    return {"signed": kept, "missing": missing, "left_out": left_out}


def seal(store: RunStore, binding: plan_pb2.Plan, identity: Identity) -> Seal:
    """The signing material for a student of this run. Raises `RunError` where what is stored of it is damaged."""
    with sound(store.folder):
        _, attested_at, kept = store.stages()["attest"]
        signed = {name: _unpacked(each) for name, each in kept["signed"].items()}
        missing = {name: without_places(str(why)) for name, why in kept["missing"].items()}
        if attested_at is None:
            raise ValueError("nobody attested what the run cost")
    return Seal(
        run=store.joined_as,
        plan_hash=store.plan_hash.hex(),
        binding=binding,
        identity=identity,
        attestations=signed,
        not_attested=missing,
        attested_at=attested_at,
        signed_at=time.time(),
    )


def packed(signed: Signed) -> dict[str, str]:
    """A signed statement as a fact of a run."""
    parts = {"payload": signed.payload, "signature": signed.signature, "certificate": signed.certificate}
    return {name: base64.b64encode(part).decode() for name, part in parts.items()}


def _too_few_vouch(few: list[str], beyond: Mapping[str, str], lost: Mapping[str, str], run: str) -> str:
    """The message that nothing is published, because of which parties, and what to do."""
    why = [f"party {name} was charged for more than this run's plan: {each}." for name, each in beyond.items()]
    why += [f"party {name} was lost: {each}." for name, each in lost.items()]
    return (
        f"{' '.join([*why, *few])} Nothing is published.\n  What was answered is stored, and nothing was paid "
        f"twice. When that is mended:  coordinator resume {run}"
    )


def _charged_to(
    party: str, priced: PricedPlan[Any], store: RunStore, sums: Mapping[str, tuple[str, ...]]
) -> list[Release]:
    """What a party's ledger must have been charged: the releases in whose sums it is, step by step."""
    found = []
    for release in priced.releases:
        if release.form == Form.STEPPED:
            steps = (release.step(number) for number in range(release.steps))
            found += [step for step in steps if party in store.summed(step.name)]
        elif party in sums[release.name]:
            found.append(release)
    return found


async def _without(
    unsigned: list[str],
    federation: Federation,
    store: RunStore,
    progress: Progress,
    again: Callable[[], Awaitable[None]] | None,
) -> None:
    """Make the sums again with the remaining parties."""
    gone = " and ".join(unsigned)
    if again is None:
        raise PartyLost(
            f"party {gone} was lost before it signed what the run cost it ({federation.lost.get(unsigned[0])}), "
            "and its part is in a sum that is made once.\n  The run is stored, nothing was paid twice. When "
            f"it is back (`party serve`):  coordinator resume {store.id}"
        )
    progress.say(f"  {gone} did not sign what the run cost it: the sums start again without it, at no cost")
    await again()


def _unpacked(kept: dict[str, str]) -> Signed:
    return Signed(**{name: base64.b64decode(part) for name, part in kept.items()})
