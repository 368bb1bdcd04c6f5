"""Whether the audit in a published folder is one of its run, and its bounds follow from its guesses."""

import json
import math
from typing import Final

from aggregation.accounting.events import from_json
from aggregation.errors import ConclaveError
from coordinator.pricing.release import rounded_up
from coordinator.published.audit import AUDIT, Audit, units_of_canary
from coordinator.published.folder import Published
from coordinator.published.statement import Privacy
from coordinator.reading import shown
from coordinator.verifying.check import Check, told, tried
from protos.conclave.v1 import plan_pb2

NAME: Final = "audit"
_TOLERANCE: Final = 1e-6


def check_audit(found: Published, privacy: Privacy | None, plan: plan_pb2.Plan | None) -> Check | None:
    """Check the folder's audit; None where it has none and its plan asks for none.

    An audit is the coordinator's own word: nothing shows that the guesses were made. What is checked is that the file
    belongs here, hides nothing that the plan asked for, and that its bounds are those of its guesses.
    """
    asked = plan is not None and _asked(plan)
    if AUDIT not in found.sizes:
        if privacy is not None and privacy.audited and not asked:
            return told(NAME, [f"privacy.json says that an audit measured the releases, and {AUDIT} is missing."], "")
        return told(NAME, [f"The plan asks for an audit, and {AUDIT} is missing."], "") if asked else None
    audit, unread = tried(lambda: found.model(AUDIT, Audit))
    if audit is None:
        return told(NAME, [unread], "")
    wrong = [] if asked else [f"{AUDIT} is here, and the plan asks for no audit."]
    if privacy is not None and (audit.run, audit.plan_hash) != (privacy.run, privacy.plan_hash):
        wrong.append(f"{AUDIT} is of another run than privacy.json.")
    if privacy is not None:
        wrong += _claims(audit, privacy)
    wrong += _bounds(audit, 1 if privacy is None else units_of_canary(privacy.unit, privacy.record))
    if audit.claimed is not None and audit.against is not None and privacy is not None:
        wrong += _refutations(audit, audit.claimed, privacy)
    if audit.claimed is not None and audit.broken:
        wrong.append(
            f"An attack shows epsilon {audit.lower:.3f} or more, and refutes the claimed {rounded_up(audit.claimed)}."
        )
    well = (
        f"{len(audit.attacks)} attacks on a simulation of the plan, epsilon {audit.lower:.2f} or more at "
        f"{100 * audit.confidence:g}%, {_held(audit)}"
    )
    return told(NAME, wrong, well)


def _claims(audit: Audit, privacy: Privacy) -> list[str]:
    """In sentences, where the audit holds another claim against its attacks than the folder makes."""
    if audit.claimed is None and privacy.epsilon is None:
        said = f"{AUDIT} is here, and privacy.json says that no audit measured the releases."
        return [] if privacy.audited else [said]
    if audit.claimed is None or (audit.claimed, audit.delta) != (privacy.epsilon, privacy.delta):
        held = "no epsilon" if audit.claimed is None else f"epsilon {audit.claimed:.6g}"
        return [f"{AUDIT} holds {held} against its attacks, and privacy.json states another."]
    return []


def _held(audit: Audit) -> str:
    return "no claim" if audit.claimed is None else f"claimed {rounded_up(audit.claimed)}"


def _asked(plan: plan_pb2.Plan) -> bool:
    """Whether a plan has the table `[audit]`."""
    try:
        document = json.loads(plan.document)
    except (ValueError, RecursionError):
        return False
    return isinstance(document, dict) and document.get("audit") is not None


def _refutations(audit: Audit, claimed: float, privacy: Privacy) -> list[str]:
    """In sentences, where the file says of an attack that it does not refute the claim, and it does, or the reverse."""
    from learning.audits import gate, trade_offs

    try:
        events = [from_json(each.event) for each in privacy.releases]
        against, claim = trade_offs.claimed(events, claimed, audit.delta)
        together = trade_offs.Together(claim, units_of_canary(privacy.unit, privacy.record))
        fell = [gate.falls(together, each.count, each.counted, len(audit.attacks)) for each in audit.attacks]
    except (ConclaveError, ArithmeticError, ValueError) as error:
        return [f"{AUDIT} cannot be held to the events of privacy.json: {shown(error, 300)}"]
    wrong = []
    if (against, gate.GATE) != (audit.against, audit.gate):
        wrong.append(
            f'{AUDIT} holds attacks to "{audit.against}" at {audit.gate}; its plan\'s events give "{against}", and a '
            f"claim is held to {gate.GATE}."
        )
    for each, falls in zip(audit.attacks, fell, strict=True):
        if falls != each.refuted:
            said = "does not refute" if falls else "refutes"
            wrong.append(f"{AUDIT} says that the attack on {shown(each.attacked)} {said} the claim; it is not so.")
        if [each.guesses, each.right] not in each.counted or len(each.counted) != each.tried:
            wrong.append(f"{AUDIT} hides guesses about {shown(each.attacked)} that were looked at.")
    return wrong


def _bounds(audit: Audit, units: int) -> list[str]:
    """In sentences, which lower bounds do not follow from their guesses. units: how many a canary is of."""
    from learning.audits.one_run import lower_bound

    wrong = []
    for each in audit.attacks:
        confidence = 1 - (1 - audit.each) / each.tried
        try:
            lower = lower_bound(
                each.count, each.guesses, each.right, delta=audit.delta, confidence=confidence, units=units
            )
        except ConclaveError as error:
            wrong.append(f"{AUDIT}, {shown(each.attacked)}: {error}")
            continue
        if not math.isclose(lower, each.lower, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            wrong.append(
                f"{AUDIT} says epsilon {each.lower:.4g} or more for {shown(each.attacked)}; its guesses show "
                f"{lower:.4g}."
            )
    return wrong
