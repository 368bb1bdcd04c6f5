"""What the parties of a run attest: their identity, which run it was, and what it cost each of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from aggregation.errors import ConclaveError
from coordinator.identity.identity import APART
from coordinator.published import manifest as names
from coordinator.published.folder import Published
from coordinator.published.manifest import Manifest, attestation_files
from coordinator.published.statement import Attestation, Privacy
from coordinator.reading import shaped, shown, some
from coordinator.verifying.charges import Charged, charged
from coordinator.verifying.check import Check, Trust, certificate_in, stands, told, tried
from coordinator.verifying.evidence import dearer, lacking
from protos.conclave.v1 import plan_pb2
from protos.identity.certificates import Role, fingerprint
from protos.identity.signing import ATTESTATION, Signed
from protos.identity.validity import check_dates, moment

OVERCHARGED: Final = "it was charged for more than this run's plan"
UNATTESTED: Final = "what the run cost there is the coordinator's word alone"
"""The reason why nothing is promised for a party."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The result of checking parties' attestations against the plan.

    unfit: why an attestation is not valid, by party. beyond: what a party was charged beyond the plan, in words.
    """

    unfit: Mapping[str, str]
    beyond: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Attested:
    """What the parties of a published folder attest.

    statements: of each party that the guarantee is for, as far as it could be read. times: when parties signed the
    statements that are valid.
    """

    statements: tuple[tuple[Charged, Attestation], ...]
    times: tuple[float, ...]
    check: Check


def judged(signed: Mapping[str, Signed], privacy: Privacy) -> Judged:
    """Check what parties signed as a verifier of the folder will, before anything is published."""
    unfit, beyond = {}, {}
    for name, each in signed.items():
        said, unread = tried(lambda each=each, name=name: shaped(each.payload, name, Attestation))  # type: ignore[misc]
        if said is None:
            unfit[name] = unread
            continue
        costs, wrong = charged(said, privacy)
        wrong = [*_of_run(said, name, privacy.run, privacy.plan_hash), *_same_terms(said, privacy), *wrong]
        if wrong:
            unfit[name] = " ".join(some(wrong))
        elif over := _beyond(costs, privacy):
            beyond[name] = over
    return Judged(unfit, beyond)


def check_parties(
    found: Published,
    manifest: Manifest | None,
    privacy: Privacy | None,
    plan: plan_pb2.Plan | None,
    trust: Trust | None,
) -> Attested:
    """Check that as many parties as the guarantee needs attest their cost, and that a reason is stated for every other
    party.
    """
    if manifest is None:
        return Attested((), (), told("parties", ["Without the manifest nothing says who attests."], ""))
    left_out = {} if privacy is None else privacy.left_out
    wrong: list[str] = []
    attested: list[tuple[Charged, Attestation]] = []
    times: list[float] = []
    valid: set[str] = set()
    for name, attestor in sorted(manifest.parties.items()):
        said, odd = _attested(found, name, attestor.fingerprint, manifest, trust)
        if said is not None and privacy is not None:
            costs, departs = charged(said, privacy)
            odd += [*_same_terms(said, privacy), *some(departs)]
            if costs.beyond and name not in left_out:
                odd.append(f"{name} attests {' and '.join(costs.beyond)}, which privacy.json does not know.")
            if name not in left_out:
                attested.append((costs, said))
        wrong += odd
        if said is not None and not odd:
            times.append(said.signed_at)
            valid |= {name} - set(left_out)
    wrong += _strays(found, manifest)
    planned = set(manifest.parties) | set(manifest.not_attested)
    if plan is not None:
        planned = set(plan.terms.parties)
        strange = (set(manifest.parties) | set(manifest.not_attested) | set(left_out)) - planned
        wrong += [f"{shown(name)} attests a run whose plan does not have it." for name in sorted(strange)]
    wrong += [f"{name} both attests and does not." for name in set(manifest.parties) & set(manifest.not_attested)]
    summed = {name for release in privacy.releases for name in release.parties} if privacy is not None else planned
    silent = summed - set(manifest.parties) - set(manifest.not_attested)
    wrong += [f"{name} attests nothing, and nothing says why." for name in sorted(silent)]
    for name, why in sorted(manifest.not_attested.items()):
        throughout = privacy is not None and privacy.throughout(name)
        if throughout and name not in left_out:
            wrong.append(f"{name} took part to the end and attests nothing ({shown(why)}): {UNATTESTED}.")
    if privacy is not None and plan is not None:
        wrong += lacking(privacy, plan, valid)
    needed = "" if plan is None else f" (the promise needs {max(1, plan.terms.minimum_parties)})"
    well = f"{len(manifest.parties)} of {len(planned)} attestations, none altered{needed}{_signed(times, manifest)}"
    well += "".join(f"; {name} attests nothing ({shown(why)})" for name, why in sorted(manifest.not_attested.items()))
    well += "".join(f"; {name} is left out of the promise: {shown(why)}" for name, why in sorted(left_out.items()))
    absent = sorted(planned - summed - set(manifest.parties) - set(manifest.not_attested))
    well += "".join(f"; {shown(name)} is in no sum" for name in absent)
    well += "".join(f"; {each}" for costs, _ in attested for each in costs.more)
    return Attested(tuple(attested), tuple(times), told("parties", wrong, well))


def _attested(
    found: Published, name: str, expected: str, manifest: Manifest, trust: Trust | None
) -> tuple[Attestation | None, list[str]]:
    """A party's attestation, and what is wrong with its signer, its run or its time."""
    statement, signature, certificate = attestation_files(name)
    signed, unread = tried(
        lambda: Signed(found.read(statement), found.read(signature), certificate_in(found, certificate))
    )
    if signed is None:
        return None, [f"{name}'s attestation: {unread}"]
    said, unread = tried(lambda: shaped(signed.payload, statement, Attestation))
    _, unsigned = stands(signed, ATTESTATION, Role.PARTY, name, None if said is None else said.signed_at, trust)
    wrong = [f"{name}'s attestation: {unsigned}"] if unsigned else []
    if said is None:
        return None, [*wrong, unread]
    held, _ = tried(lambda: fingerprint(signed.signer))
    if held != expected:
        wrong.append(f"{name}'s attestation is signed with another key than the manifest names.")
    if not unsigned:
        wrong += _dated(signed, said, manifest)
    odd = _of_run(said, name, manifest.run, manifest.plan_hash)
    return (said if said.party == name else None), [*wrong, *odd]


def _dated(signed: Signed, said: Attestation, manifest: Manifest) -> list[str]:
    """In sentences, where the coordinator does not confirm the time that a party states.

    Whoever holds the key of an expired certificate could state an earlier time, so the coordinator's time is needed as
    well.
    """
    at, name = datetime.fromtimestamp(said.signed_at, UTC), said.party
    if at > datetime.now(UTC) + APART:
        return [f"{name} says that it signed in the future ({moment(at)}); a clock is wrong."]
    whose = f"the certificate of party {name}"
    if manifest.attested_at is None:
        _, expired = tried(lambda: check_dates(signed.signer, whose, Role.PARTY))
        return [f"Nobody but {name} says when it signed: {expired}"] if expired else []
    had = datetime.fromtimestamp(manifest.attested_at, UTC)
    if abs(had - at) > APART:
        return [f"{name} says that it signed at {moment(at)}, and the coordinator that this came at {moment(had)}."]
    _, expired = tried(
        lambda: check_dates(signed.signer, f"when the coordinator received it, {whose}", Role.PARTY, had)
    )
    return [f"{name}'s attestation: {expired}"] if expired else []


def _signed(times: list[float], manifest: Manifest) -> str:
    """When parties signed by their own clocks, and when the coordinator received it by its own."""
    if not times:
        return ""
    first, last = (moment(datetime.fromtimestamp(each, UTC)) for each in (min(times), max(times)))
    said = f"; signed at {first}" + (f" to {last}" if last != first else "")
    if manifest.attested_at is None:
        return said
    return f"{said}, received at {moment(datetime.fromtimestamp(manifest.attested_at, UTC))} by the coordinator's clock"


def _strays(found: Published, manifest: Manifest) -> list[str]:
    known = {path for name in manifest.parties for path in attestation_files(name)}
    stray = [path for path in found.sizes if path.startswith(f"{names.ATTESTATIONS}/") and path not in known]
    return some(f"{shown(path)} belongs to no party that the manifest names." for path in sorted(stray))


def _beyond(costs: Charged, privacy: Privacy) -> str:
    """What a party was charged beyond the run's plan, in words; empty where nothing."""
    try:
        dear = dearer(privacy, costs)
    except (ConclaveError, ArithmeticError, ValueError) as error:
        dear = f"events without a price ({shown(error, 300)})"
    return " and ".join([*costs.beyond, *([dear] if dear else [])])


def _of_run(said: Attestation, name: str, run: str, plan_hash: str) -> list[str]:
    wrong = []
    if said.party != name:
        return [f"{attestation_files(name)[0]} is what {shown(said.party)} attests, not {name}."]
    if said.run != run:
        wrong.append(f"{name} attests run {shown(said.run)}, not this run {shown(run)}.")
    if said.plan_hash != plan_hash:
        wrong.append(f"{name} attests a run of another plan.")
    return wrong


def _same_terms(said: Attestation, privacy: Privacy) -> list[str]:
    keys = ("unit", "record", "relation", "guarantee", "insecure_reproducible_noise")
    return [
        f"{said.party} attests {key} {shown(getattr(said, key))}; privacy.json says {shown(getattr(privacy, key))}."
        for key in keys
        if getattr(said, key) != getattr(privacy, key)
    ]
