"""Whether the statements of a published folder follow from its plan and from what parties signed about its cost."""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import islice
from typing import Final

from dp_accounting import DpEvent, GaussianDpEvent
from google.protobuf.json_format import Parse, ParseError

from aggregation.accounting.events import from_json, leaves, to_json
from aggregation.accounting.price import price
from aggregation.errors import ConclaveError, IntegrityError
from aggregation.mechanisms.mechanism import HEURISTIC, Form
from aggregation.mechanisms.outside import OUTSIDE
from aggregation.mechanisms.registry import MECHANISMS, made, numbers_of
from aggregation.mechanisms.thresholded import ThresholdedVotes
from coordinator.pricing.release import SAMPLER_SHARE, Release, borne, graphs_delta
from coordinator.published.manifest import PLAN
from coordinator.published.statement import Privacy, StatedRelease, StatedSteps
from coordinator.reading import shown, strict_json
from coordinator.verifying.charges import Charged
from protos.conclave.v1 import plan_pb2
from protos.digest import canonical, plan_hash
from protos.fields import read, word
from protos.identity.signing import NO_RELATION, RELATION
from protos.roster import fewest_of, odd_roster, roster_of, summing

TOLERANCE: Final = 1e-9
_PRICED: Final = 1e-6
"""By how much of itself a price may differ between machines and versions: transforms round deltas to 1e-16."""
_STATED: Final = "privacy.json"
MOST_PARTIES: Final = 1000
MOST_PARTS: Final = 256
MOST_KINDS: Final = 16
MOST_OFTEN: Final = 10**9
MOST_ATTEMPTS: Final = 10
"""The limits of what is priced, more than any run has and few enough to price quickly: parties; parts of all events
together; different parts that are not Gaussian; repetitions of one part; attempts at one sum.
"""


def plan_of(content: bytes) -> plan_pb2.Plan:
    """The plan in `plan.json`. Raises `IntegrityError` unless its bytes are exactly those that are hashed."""
    strict_json(content, PLAN)
    plan = plan_pb2.Plan()
    try:
        Parse(content, plan)
        exact = canonical(plan) == content
    except (ParseError, ValueError, TypeError, RecursionError) as error:
        raise IntegrityError(f"{PLAN} is no plan: {shown(error)}.") from None
    if not exact:
        raise IntegrityError(f"{PLAN} is not in canonical form, so it is not what was hashed when the run began.")
    return plan


def against_plan(privacy: Privacy, plan: plan_pb2.Plan) -> list[str]:
    """In sentences, where `privacy.json` differs from the plan."""
    terms = plan.terms
    unproven = terms.privacy.unproven
    promises_nothing = unproven or terms.privacy.insecure_reproducible_noise
    stated = {
        "guarantee": (privacy.guarantee, not unproven),
        "unit": (privacy.unit, word(plan_pb2.Unit, terms.privacy.unit)),
        "record": (privacy.record, word(plan_pb2.Record, terms.privacy.record)),
        "trust": (privacy.trust, word(plan_pb2.Trust, terms.privacy.trust)),
        "insecure_reproducible_noise": (
            privacy.insecure_reproducible_noise,
            terms.privacy.insecure_reproducible_noise,
        ),
        "delta": (privacy.delta, None if promises_nothing else terms.privacy.delta),
        "relation": (privacy.relation, NO_RELATION if unproven else RELATION),
        "plan_hash": (privacy.plan_hash, plan_hash(plan).hex()),
        "parties planned": (privacy.parties.planned, len(terms.parties)),
        "shares_needed": (
            privacy.parties.shares_needed,
            len(summing(terms)) - terms.privacy.dropouts - terms.privacy.colluders,
        ),
        "attempts": (privacy.attempts, max(1, terms.privacy.attempts)),
    }
    found = [
        f"privacy.json says {key} {shown(said)}; by the plan it is {shown(planned)}."
        for key, (said, planned) in stated.items()
        if said != planned
    ]
    if [each.name for each in privacy.releases] != [each.name for each in terms.releases]:
        return [*found, "privacy.json lists other releases than the plan."]
    for stated_release, message in zip(privacy.releases, terms.releases, strict=True):
        found += _release_against(stated_release, message, terms)
    if (odd := odd_roster(terms)) is not None:
        found.append(f"The plan cannot be: {shown(odd)}.")
    most = {name for each in privacy.releases for name in each.parties}
    fewest = {name for name in most if privacy.throughout(name)}
    if not len(fewest) <= privacy.parties.in_the_sum <= len(most):
        found.append(f"privacy.json counts {privacy.parties.in_the_sum} parties in the sum, and names others.")
    return found


def recomputed(privacy: Privacy, plan: plan_pb2.Plan, parties: Sequence[Charged]) -> tuple[float, list[str]]:
    """Epsilon of the most expensive party's events, and in sentences where the stated one differs from it or from the
    plan.

    The releases in privacy.json are priced too, because they are all that is known of a party that attests nothing.
    """
    if privacy.epsilon is None or privacy.delta is None or privacy.sampler_delta is None:
        return 0.0, ["privacy.json states no epsilon and delta, though its noise cannot be reproduced."]
    if plan.terms.privacy.unproven:
        return 0.0, ["privacy.json states an epsilon, and the plan says that nothing is guaranteed."]
    found = []
    epsilon = privacy.epsilon
    if privacy.sampler_delta > privacy.delta * SAMPLER_SHARE * (1 + TOLERANCE):
        return 0.0, [f"privacy.json says the sampler takes {privacy.sampler_delta:g} of delta, more than a run admits."]
    try:
        made = [
            _release(message, stated.values, plan.terms)
            for stated, message in zip(privacy.releases, plan.terms.releases, strict=False)
        ]
        slack = sum(each.slack(epsilon) for each in made)
        if plan.terms.privacy.trust == plan_pb2.TRUST_SECURE_SUM:
            private = plan.terms.privacy
            slack += graphs_delta(made, len(plan.terms.parties), private.colluders, private.dropouts)
        stated = zip(privacy.releases, made, strict=True)
        events = {release.name: [from_json(each.event)] * release.attempts for each, release in stated}
        lists: dict[str, Sequence[DpEvent]] = {
            _whose(own, made): [event for each in own for event in events[each.name]] for own in borne(made)
        }
        lists |= {each.party: list(each.events) for each in parties}
        costs = _costs(lists, privacy.delta - privacy.sampler_delta)
    except (ConclaveError, ArithmeticError, ValueError) as error:
        return 0.0, [f"The events have no price: {shown(error, 300)}"]
    if slack > privacy.sampler_delta * (1 + TOLERANCE):
        found.append(
            f"The noise sampler and the graphs of secure sums take {slack:.4g} of delta; privacy.json says "
            f"{privacy.sampler_delta:.4g}."
        )
    for who, cost in costs.items():
        if cost > epsilon * (1 + _PRICED):
            whose = f"the events in {who}" if who.startswith(_STATED) else f"the events that {who} attests"
            found.append(f"Recomputed from {whose}, epsilon is {cost:.6g}, above the stated {epsilon:.6g}.")
    if epsilon > plan.terms.privacy.epsilon * (1 + TOLERANCE):
        found.append(f"The stated epsilon {epsilon:.6g} is above the {plan.terms.privacy.epsilon:g} of the plan.")
    return max(costs.values()), found


def dearer(privacy: Privacy, party: Charged) -> str:
    """The sentence that a party's attested charges cost more than the stated epsilon; empty where they do not.

    Raises `ConclaveError` for events without a price.
    """
    if privacy.epsilon is None or privacy.delta is None or privacy.sampler_delta is None:
        return ""
    (cost,) = _costs({party.party: party.events}, privacy.delta - privacy.sampler_delta).values()
    return f"epsilon {cost:.6g} by its own events" if cost > privacy.epsilon * (1 + _PRICED) else ""


def claiming(privacy: Privacy, plan: plan_pb2.Plan) -> list[str]:
    """In sentences, where a plan that guarantees nothing, or what is stated of its run, claims something."""
    found, terms = [], plan.terms.privacy
    if privacy.epsilon is not None or privacy.delta is not None or privacy.sampler_delta is not None:
        found.append("privacy.json states an epsilon or a delta, and the plan says that nothing is guaranteed.")
    if terms.epsilon or terms.delta or terms.attempts > 1:
        found.append("The plan says that nothing is guaranteed, and states an epsilon, a delta or several attempts.")
    if terms.trust != plan_pb2.TRUST_TRUSTED_AGGREGATOR:
        found.append("The plan says that nothing is guaranteed, and names a trust that hides sums.")
    return found


def lacking(privacy: Privacy, plan: plan_pb2.Plan, attesting: AbstractSet[str]) -> list[str]:
    """In sentences, where fewer parties attest validly than the guarantee needs.

    The guarantee counts on the noise of `minimum_parties` in every sum; the coordinator's word alone is no evidence
    that a party was there.
    """
    planned, needed = len(plan.terms.parties), max(1, plan.terms.minimum_parties)
    if len(attesting) < needed:
        return [
            f"{len(attesting)} of {planned} parties attest validly what the run cost them, and the promise needs "
            f"{needed}."
        ]
    least = {each.name: fewest_of(each, plan.terms) for each in plan.terms.releases}
    return [
        f"{len(there)} of {len(each.parties)} parties in the sum of {shown(each.name)} attest validly what it cost, "
        f"and the promise needs {some}."
        for each in privacy.releases
        if len(there := attesting & set(each.parties)) < (some := max(1, least.get(each.name, needed)))
    ]


def _whose(own: Sequence[Release], made: Sequence[Release]) -> str:
    """What is priced, in words: the releases of some parties, where these are not all."""
    return _STATED if len(own) == len(made) else f"{_STATED} ({', '.join(shown(each.name) for each in own)})"


def _release_against(stated: StatedRelease, message: plan_pb2.Release, terms: plan_pb2.Terms) -> list[str]:
    found = []
    name, needed = shown(stated.name), fewest_of(message, terms)
    try:
        release = _release(message, stated.values, terms)
        event, mechanism = to_json(release.event), json.loads(json.dumps(numbers_of(release.mechanism)))
        if stated.charges != message.charges or to_json(from_json(stated.event)) != event:
            found.append(f"privacy.json has another event for {name} than the plan's mechanism costs.")
        if not release.mechanism.guaranteed and not terms.privacy.unproven:
            found.append(f"The plan promises epsilon and delta, and no proof covers its release {name}: {HEURISTIC}.")
        if release.mechanism.guaranteed and terms.privacy.unproven:
            found.append(f"The plan says that nothing is guaranteed, and its release {name} is.")
        if stated.mechanism != mechanism:
            found.append(f"privacy.json describes another mechanism for {name} than the plan has.")
        shares = 0 if release.form.alone else release.mechanism.shares  # alone, all of the noise is a party's own
        if shares and needed < shares + terms.privacy.colluders:
            found.append(
                f"The plan goes on with {needed} parties, and {name} counts on the noise of {shares} "
                f"besides {terms.privacy.colluders} colluders."
            )
    except (ConclaveError, ArithmeticError, ValueError) as error:
        found.append(f"Release {name} of the plan cannot be: {shown(error, 300)}")
    if stated.among != (list(message.roster.parties) or None):
        found.append(f"privacy.json says otherwise than the plan who takes part in {name}.")
    if sorted(set(stated.parties)) != stated.parties or not set(stated.parties) <= set(roster_of(message, terms)):
        found.append(f"privacy.json names parties in the sum of {name} that the plan does not have, or one twice.")
    if not stated.values and message.form != plan_pb2.FORM_TRAINING:
        found.append(f"privacy.json says that no value was released under {name}, so nothing says what sampling took.")
    if (message.form == plan_pb2.FORM_STEPPED) != (stated.steps is not None):
        found.append(f"privacy.json says otherwise than the plan whether {name} is taken in steps.")
    elif stated.steps is not None:
        found += _steps_against(stated, stated.steps, message, terms)
    if len(stated.parties) < needed:
        found.append(
            f"{len(stated.parties)} parties are in the sum of {name} and the plan needs {needed}: a "
            "part of the noise that the guarantee counts on is missing."
        )
    return found


def _steps_against(
    stated: StatedRelease, steps: StatedSteps, message: plan_pb2.Release, terms: plan_pb2.Terms
) -> list[str]:
    found, name, needed = [], shown(stated.name), fewest_of(message, terms)
    if sorted(steps.parties) != stated.parties or max(steps.parties.values(), default=0) > message.gradients.steps:
        found.append(f"privacy.json counts steps of {name} that its parties cannot have been in.")
    if steps.fewest < needed:
        found.append(
            f"{steps.fewest} parties are in the smallest sum of {name} and the plan needs {needed}: a "
            "part of the noise that the guarantee counts on is missing."
        )
    if sum(steps.parties.values()) < steps.fewest * message.gradients.steps:
        found.append(f"privacy.json counts fewer parties in the sums of {name} than it says are in the smallest.")
    return found


def _release(message: plan_pb2.Release, values: int, terms: plan_pb2.Terms) -> Release:
    """The release that a plan's message describes; of its shape only what its price needs."""
    kind, parties = message.WhichOneof("mechanism"), len(roster_of(message, terms))
    if kind is None or kind not in (*MECHANISMS, OUTSIDE):
        raise IntegrityError("it names no mechanism that is known here.")
    mechanism, said = made(kind, read(getattr(message, kind))), word(plan_pb2.Form, message.form)
    if said not in mechanism.forms:
        raise IntegrityError(f"it is of the form {said}, which {kind} never are.")
    form = Form(said)
    if mechanism.shares > parties or parties > MOST_PARTIES:
        raise IntegrityError(f"it counts on the noise of {mechanism.shares} of {parties} parties.")
    rows = values * parties // mechanism.teachers if isinstance(mechanism, ThresholdedVotes) else values
    attempts = min(max(1, terms.privacy.attempts), MOST_ATTEMPTS) if form.retried else 1
    return Release(message.name, mechanism, rows, 1, message.charges, attempts, form, tuple(message.roster.parties))


def _costs(lists: Mapping[str, Sequence[DpEvent]], delta: float) -> dict[str, float]:
    """Epsilon of each list of events. Raises `IntegrityError` for a list that would take long to price."""
    known: dict[str, float] = {}
    costs = {}
    for who, events in lists.items():
        parts = list(islice((part for event in events for part in leaves(event)), MOST_PARTS + 1))
        kinds = {repr(part) for part, _ in parts if not isinstance(part, GaussianDpEvent)}
        if len(parts) > MOST_PARTS or len(kinds) > MOST_KINDS or any(count > MOST_OFTEN for _, count in parts):
            raise IntegrityError(f"{shown(who)} lists more events than a run has.")
        key = json.dumps(sorted(json.dumps(to_json(event), sort_keys=True) for event in events))
        if key not in known:
            known[key] = price(events, delta).epsilon
        costs[who] = known[key]
    return costs
