"""Verifies a published folder: every check by name, passed or with what is wrong.

Given the authority's certificate, this shows who signed the folder and that its parties attest its cost. Without it the
folder is only checked for consistency, and whoever changed it could have signed it anew.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any, Final

from aggregation.mechanisms.mechanism import HEURISTIC
from coordinator.identity.identity import APART
from coordinator.pricing.release import rounded_up
from coordinator.published import manifest as names
from coordinator.published.folder import Published
from coordinator.published.manifest import Manifest
from coordinator.published.statement import Privacy
from coordinator.publishing.report import promised
from coordinator.reading import shown, some
from coordinator.verifying.attestations import check_parties
from coordinator.verifying.audits import check_audit
from coordinator.verifying.charges import Charged
from coordinator.verifying.check import Check, Trust, certificate_in, stands, told, tried
from coordinator.verifying.evidence import against_plan, claiming, plan_of, recomputed
from protos.conclave.v1 import plan_pb2
from protos.digest import plan_hash
from protos.identity.certificates import Role
from protos.identity.signing import Signed
from protos.identity.validity import moment
from protos.roster import summing

ONLY_ACCIDENTS: Final = (
    "no authority was named (--trust ca.pem), so this can only find accidental damage: whoever changed the folder "
    "could have signed it anew"
)
NO_PROMISE: Final = (
    "this folder holds no promise: neither privacy.json nor a signed manifest. A model that was trained in clear "
    "(recipe fine_tune) looks so, and one from which its promise was taken. Nothing says that anybody's text is "
    "protected."
)
_PROMISING: Final = (names.MANIFEST, names.SIGNATURE, names.PRIVACY, names.PLAN)
_UNSIGNED: Final = (names.MANIFEST, names.SIGNATURE)


@dataclass(frozen=True, slots=True)
class Verdict:
    """All checks of a folder. run, epsilon: as the folder states them, where they can be read."""

    folder: Path
    run: str | None
    epsilon: float | None
    checks: tuple[Check, ...]

    def __repr__(self) -> str:
        wrong = [each.name for each in self.checks if not each.ok]
        said = f"WRONG: {', '.join(wrong)}" if wrong else f"{len(self.checks)} checks ok"
        return f"<verdict on {self.folder}: {said}>"

    @property
    def ok(self) -> bool:
        """Whether all checks passed."""
        return all(each.ok for each in self.checks)


def verify(folder: Path, trust: Trust | None = None) -> Verdict:
    """Run all checks of a published folder; whatever is in it, this ends with a verdict.

    Raises `IntegrityError` where there is no folder.
    """
    found = Published.at(folder)
    if not any(name in found.sizes for name in _PROMISING):
        return Verdict(folder, None, None, (told("promise", [NO_PROMISE], ""),))
    manifest, unread = tried(lambda: found.model(names.MANIFEST, Manifest))
    privacy, no_privacy = tried(lambda: found.model(names.PRIVACY, Privacy))
    plan, no_plan = tried(lambda: plan_of(found.read(names.PLAN)))
    attested = check_parties(found, manifest, privacy, plan, trust)
    checks = [_files(found, manifest, unread), _signer(found, manifest, trust, attested.times), attested.check]
    checks.append(_plan(manifest, plan, no_plan))
    checks.append(_privacy(manifest, privacy, no_privacy, plan, [each for each, _ in attested.statements]))
    checks.append(_card(found, privacy))
    checks += [] if (audit := check_audit(found, privacy, plan)) is None else [audit]
    checks.append(_trust(plan, trust, any(said.simulation for _, said in attested.statements)))
    epsilon = None if privacy is None else privacy.epsilon
    return Verdict(folder, None if manifest is None else shown(manifest.run), epsilon, tuple(checks))


def lines(verdict: Verdict) -> list[str]:
    """The verdict for a person, one line a sentence."""
    said = []
    for each in verdict.checks:
        for number, sentence in enumerate(each.sentences):
            said.append(f"  {'' if number else each.name:<10} {'' if each.ok else 'WRONG: '}{sentence}")
    return said


def record(verdict: Verdict) -> dict[str, Any]:
    """The verdict for other programs."""
    return {
        "folder": str(verdict.folder),
        "ok": verdict.ok,
        "run": verdict.run,
        "epsilon": verdict.epsilon,
        "checks": {each.name: {"ok": each.ok, "sentence": " ".join(each.sentences)} for each in verdict.checks},
    }


def _files(found: Published, manifest: Manifest | None, unread: str) -> Check:
    """Check that every file is the one that was signed, and that there is no other file and no empty folder."""
    wrong = some(found.odd)
    if manifest is None:
        return told("files", [*wrong, f"{unread} Without it nothing says which files belong here."], "")
    listed = manifest.files
    astray = {path for path in listed if not _inside(path)}
    wrong += some(f"The manifest lists {shown(path)}, which is no path inside the folder." for path in sorted(astray))
    odd = []
    for path, file in sorted(listed.items()):
        if path in astray:
            continue
        if path not in found.sizes:
            odd.append(f"{shown(path)} is missing.")
        elif found.sizes[path] != file.bytes:
            odd.append(f"{shown(path)} has {found.sizes[path]:,} bytes and had {file.bytes:,} when it was signed.")
        else:
            digest, unreadable = tried(lambda path=path: found.sha256(path))  # type: ignore[misc]
            if digest != file.sha256:
                odd.append(unreadable or f"{shown(path)} was altered: its SHA-256 is not the one that was signed.")
    extra = sorted(path for path in found.sizes if path not in listed and path not in _UNSIGNED and not _hubs(path))
    wrong += some(odd) + some(f"{shown(path)} was not there when the folder was signed." for path in extra)
    wrong += some(f"{shown(path)} is a folder that holds nothing that was signed." for path in _empty(found, listed))
    whole, hubs = len(listed) - len(odd), sum(path not in listed and _hubs(path) for path in found.sizes)
    beside = f"; {hubs} that a hub's client put there, which no model is loaded from" if hubs else ""
    return told("files", wrong, f"{whole} of {len(listed)} match the signed manifest{beside}")


def _signer(found: Published, manifest: Manifest | None, trust: Trust | None, times: Sequence[float]) -> Check:
    """Check that the manifest is signed with the key in coordinator.pem, and that this certificate is the
    coordinator's.

    times: when parties signed. A certificate that has expired since is accepted only where the parties confirm the time
    of signing.
    """
    signed, unread = tried(
        lambda: Signed(found.read(names.MANIFEST), found.read(names.SIGNATURE), certificate_in(found, names.SIGNER))
    )
    if signed is None:
        return told("signer", [unread], "")
    signed_at = None if manifest is None else manifest.signed_at
    name = None if manifest is None else manifest.coordinator
    _, wrong = stands(signed, names.KIND, Role.COORDINATOR, name, signed_at, trust)
    if wrong:
        return told("signer", [f"{names.MANIFEST}: {wrong}"], "")
    if manifest is None or signed_at is None:
        return told("signer", [], "the signature is that of coordinator.pem")
    now, at = datetime.now(UTC), datetime.fromtimestamp(signed_at, UTC)
    if at > now + APART:
        return told("signer", [f"{names.MANIFEST} says that it was signed in the future; a clock is wrong."], "")
    told_times = [*times, *([] if manifest.attested_at is None else [manifest.attested_at])]
    latest = datetime.fromtimestamp(max([signed_at, *told_times]), UTC)
    if latest > at + APART:
        said = f"{names.MANIFEST} says that it was signed at {moment(at)}, and what it lists is of {moment(latest)}."
        return told("signer", [said], "")
    end = signed.signer.not_valid_after_utc
    if end < latest:
        return told(
            "signer", [f"coordinator.pem expired at {moment(end)}, and parties signed at {moment(latest)}."], ""
        )
    until = f"certificate valid until {end:%Y-%m-%d}"
    if end < now:
        if not times or manifest.attested_at is None:
            said = f"coordinator.pem expired at {moment(end)}, and nobody else vouches for the time of its signature."
            return told("signer", [said], "")
        until = f"certificate expired on {end:%Y-%m-%d}, after it signed this"
    return told("signer", [], f"{name}, signed at {moment(at)}, {until}")


def _plan(manifest: Manifest | None, plan: plan_pb2.Plan | None, unread: str) -> Check:
    if plan is None:
        return told("plan", [unread], "")
    found = plan_hash(plan).hex()
    if manifest is not None and manifest.plan_hash != found:
        return told("plan", [f"{names.PLAN} is another plan than the one that this run was bound to."], "")
    return told("plan", [], f"the one that this run was bound to, hash {found[:16]}")


def _privacy(
    manifest: Manifest | None,
    privacy: Privacy | None,
    unread: str,
    plan: plan_pb2.Plan | None,
    parties: Sequence[Charged],
) -> Check:
    """Check that the stated guarantee follows from the events, and the events from the plan."""
    if privacy is None:
        return told("privacy", [unread], "")
    wrong = []
    if manifest is not None and (privacy.run, privacy.plan_hash) != (manifest.run, manifest.plan_hash):
        wrong.append("privacy.json is of another run than the manifest.")
    if plan is None:
        return told("privacy", [*wrong, "Without the plan nothing says what was promised."], "")
    wrong += against_plan(privacy, plan)
    if not privacy.guarantee and plan.terms.privacy.unproven:
        measured = "an audit measured it" if privacy.audited else "no audit measured it"
        said = f"no guarantee claimed: a heuristic; what the releases tell of a text is not bounded, and {measured}"
        return told("privacy", [*wrong, *claiming(privacy, plan)], said)
    if privacy.insecure_reproducible_noise and plan.terms.privacy.insecure_reproducible_noise:
        if privacy.epsilon is not None:
            wrong.append("privacy.json states an epsilon, and the noise can be reproduced from the plan's seed.")
        return told("privacy", wrong, "no guarantee claimed: the noise can be reproduced from the plan's seed")
    epsilon, odd = recomputed(privacy, plan, parties)
    wrong += odd
    if wrong or privacy.epsilon is None:
        return told("privacy", wrong, "")
    many = f"{len(privacy.releases)} release{'s' * (len(privacy.releases) > 1)}"
    return told(
        "privacy",
        [],
        f"{many}, recomputed epsilon {epsilon:.6g} <= stated {rounded_up(privacy.epsilon)} "
        f"(delta {privacy.delta:g}); the plan promised {plan.terms.privacy.epsilon:g}",
    )


def _card(found: Published, privacy: Privacy | None) -> Check:
    """Check that the model card states the guarantee of privacy.json."""
    text, unread = tried(lambda: found.text(names.CARD))
    if text is None:
        return told("card", [unread], "")
    if privacy is None:
        return told("card", ["Without privacy.json nothing says what README.md may promise."], "")
    if promised(privacy.model_dump()) not in text:
        return told("card", [f"{names.CARD} does not promise what privacy.json states."], "")
    return told("card", [], "README.md promises what privacy.json states")


def _trust(plan: plan_pb2.Plan | None, trust: Trust | None, simulation: bool) -> Check:
    """What has to be trusted if all checks passed; this entry itself cannot fail."""
    if trust is None:
        return told("trust", [], ONLY_ACCIDENTS)
    if plan is None:
        return told("trust", ["Without the plan nothing says who had to be trusted."], "")
    terms = plan.terms.privacy
    if terms.unproven:
        well = f"{HEURISTIC}, against nobody: the coordinator received what left each party, and knows whose it is"
    elif terms.trust == plan_pb2.TRUST_SECURE_SUM:
        honest = len(summing(plan.terms)) - terms.dropouts - terms.colluders
        pooling = f" with {terms.colluders} colluding part{'y' if terms.colluders == 1 else 'ies'}"
        well = f"secure sum, {honest} honest shares: excludes a curious coordinator{pooling if terms.colluders else ''}"
    else:
        well = "trusted aggregator: holds against readers of the student, not against the coordinator"
    if terms.trust == plan_pb2.TRUST_SECURE_SUM:
        for what, form in (("own model", plan_pb2.FORM_WEIGHTS), ("own model's words", plan_pb2.FORM_SAID)):
            alone = [each.name for each in plan.terms.releases if each.form == form]
            if alone:
                well += (
                    f"; it saw each party's {what} in {' and '.join(map(shown, alone))}, under that party's own noise"
                )
    if simulation:
        well += "; simulation, so nothing is claimed between its parties"
    return told("trust", [], well)


def _empty(found: Published, listed: Iterable[str]) -> list[str]:
    """The folders that contain no listed file."""
    used = {str(parent) for path in listed for parent in PurePosixPath(path).parents}
    return sorted(path for path in set(found.folders) - used if not _hubs(f"{path}/") and path != ".cache")


def _hubs(path: str) -> bool:
    """Whether a hub's client puts this into every folder that it downloads."""
    return path == ".gitattributes" or path.startswith(".cache/huggingface/")


def _inside(path: str) -> bool:
    """Whether a path in the manifest is a plain one below the folder, and may be listed."""
    parts = path.split("/")
    plain = not any(part in ("", ".", "..") for part in parts) and "\0" not in path and "\\" not in path
    return plain and not PurePosixPath(path).is_absolute() and path not in _UNSIGNED
