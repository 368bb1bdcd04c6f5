"""What the parties of a published folder attest: that it is theirs, of this run, and what the run cost each of them."""

from coordinator import manifest as names
from coordinator.evidence import Charged, charged
from coordinator.findings import Finding, Trust, certificate_in, stands, told, tried
from coordinator.manifest import Manifest, attestation_files
from coordinator.published import Published, shaped, shown, some
from coordinator.stated import Attestation, Privacy
from protos.certificates import Role, fingerprint
from protos.conclave.v1 import plan_pb2
from protos.signing import ATTESTATION, Signed


def check_parties(
    found: Published,
    manifest: Manifest | None,
    privacy: Privacy | None,
    plan: plan_pb2.Plan | None,
    trust: Trust | None,
) -> tuple[list[tuple[Charged, Attestation]], Finding]:
    """Every party of the plan attests its cost, or it is said why not; what could be read of what they attest."""
    if manifest is None:
        return [], told("parties", ["Without the manifest nothing says who attests."], "")
    wrong: list[str] = []
    attested: list[tuple[Charged, Attestation]] = []
    for name, attestor in sorted(manifest.parties.items()):
        said, odd = _attested(found, name, attestor.fingerprint, manifest, trust)
        wrong += odd
        if said is not None and privacy is not None:
            wrong += _same_terms(said, privacy)
            costs, odd = charged(said, privacy)
            wrong += some(odd)
            attested.append((costs, said))
    known = {path for name in manifest.parties for path in attestation_files(name)}
    stray = [path for path in found.sizes if path.startswith(f"{names.ATTESTATIONS}/") and path not in known]
    wrong += some(f"{shown(path)} belongs to no party that the manifest names." for path in sorted(stray))
    planned = set(manifest.parties) | set(manifest.not_attested)
    if plan is not None:
        planned = set(plan.terms.parties)
        strange = (set(manifest.parties) | set(manifest.not_attested)) - planned
        wrong += [f"{shown(name)} attests a run whose plan does not have it." for name in sorted(strange)]
    wrong += [f"{name} both attests and does not." for name in set(manifest.parties) & set(manifest.not_attested)]
    summed = {name for release in privacy.releases for name in release.parties} if privacy is not None else planned
    silent = summed - set(manifest.parties) - set(manifest.not_attested)
    wrong += [f"{name} attests nothing, and nothing says why." for name in sorted(silent)]
    for name, why in sorted(manifest.not_attested.items()):
        if privacy is not None and all(name in release.throughout for release in privacy.releases):
            wrong.append(
                f"{name} took part to the end and attests nothing ({shown(why)}): what the run cost there is the "
                "coordinator's word alone."
            )
    well = f"{len(manifest.parties)} of {len(planned)} attestations, none altered"
    well += "".join(f"; {name} attests nothing ({shown(why)})" for name, why in sorted(manifest.not_attested.items()))
    absent = sorted(planned - summed - set(manifest.parties) - set(manifest.not_attested))
    well += "".join(f"; {shown(name)} is in no sum" for name in absent)
    well += "".join(f"; {each}" for costs, _ in attested for each in costs.more)
    return attested, told("parties", wrong, well)


def _attested(
    found: Published, name: str, expected: str, manifest: Manifest, trust: Trust | None
) -> tuple[Attestation | None, list[str]]:
    """What a party attests, and what is wrong with who says so and of which run."""
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
    if said.party != name:
        wrong.append(f"{statement} is what {shown(said.party)} attests, not {name}.")
        return None, wrong
    if said.run != manifest.run:
        wrong.append(f"{name} attests run {shown(said.run)}, not this run {shown(manifest.run)}.")
    if said.plan_hash != manifest.plan_hash:
        wrong.append(f"{name} attests a run of another plan.")
    return said, wrong


def _same_terms(said: Attestation, privacy: Privacy) -> list[str]:
    keys = ("unit", "record", "relation", "insecure_reproducible_noise")
    return [
        f"{said.party} attests {key} {shown(getattr(said, key))}; privacy.json says {shown(getattr(privacy, key))}."
        for key in keys
        if getattr(said, key) != getattr(privacy, key)
    ]
