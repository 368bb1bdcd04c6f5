"""Whether this party takes part: the plan's terms against the party's own rules, before anything is spent."""

import math
import re
from typing import Final

from dp_accounting import DpEvent, SelfComposedDpEvent

from aggregation.accounting import price
from aggregation.counts import CountsMechanism
from aggregation.errors import ConclaveError
from aggregation.free import FreeAnswers
from aggregation.gradients import GradientMechanism
from aggregation.thresholded import ThresholdedVotes
from aggregation.vectors import VectorMechanism
from party.config import PartyConfig
from party.mechanisms import broken, mechanism_of, shares_of
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal

RELEASE_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}", re.ASCII)
CAPACITY: Final = 2**31
"""What one cell of a sum may reach before it wraps; integers travel modulo 2**32."""

MOST_RELEASES: Final = 64
MOST_PARTIES: Final = 1000
MOST_CHARGES: Final = 10**6


def admit(terms: plan_pb2.Terms, config: PartyConfig) -> None:
    """Return when this party takes part under these terms, else raise `Refusal` naming the rule. Spends nothing.

    A rule of the party file is refused as POLICY; terms that no party could accept as PLAN.
    """
    if len(terms.releases) > MOST_RELEASES or len(terms.parties) > MOST_PARTIES:
        raise broken(f"it has more than {MOST_RELEASES} releases or {MOST_PARTIES} parties")
    _admit_company(terms, config)
    _admit_promise(terms, config)
    events = [_admit_release(release, terms, config) for release in terms.releases]
    if terms.privacy.insecure_reproducible_noise:
        return
    try:
        spent = price(events, terms.privacy.delta).epsilon
    except ConclaveError as error:
        raise broken(f"its releases have no price: {str(error).rstrip('.')}") from None
    if not spent <= terms.privacy.epsilon:
        raise broken(
            f"its releases cost epsilon {spent:.4g} at delta {terms.privacy.delta:g}, "
            f"above the {terms.privacy.epsilon:g} it promises"
        )


def event_of(release: plan_pb2.Release) -> DpEvent:
    """What a release costs. Raises `Refusal` (PLAN) like `mechanism_of`."""
    event = mechanism_of(release).event()
    return event if release.charges == 1 else SelfComposedDpEvent(event, release.charges)


def _admit_company(terms: plan_pb2.Terms, config: PartyConfig) -> None:
    policy, parties = config.policy, list(terms.parties)
    if len(set(parties)) != len(parties) or parties != sorted(parties):
        raise broken("its parties are not sorted or one is named twice")
    if config.name not in parties:
        raise Refusal(
            Reason.PLAN, f"this party is {config.name}, and the plan knows {', '.join(parties) or 'no party'}."
        )
    if terms.recipe not in policy.recipes:
        raise _against("recipes", f"recipes = {', '.join(policy.recipes)}; this plan runs {terms.recipe or 'none'}")
    if len(parties) < policy.minimum_parties:
        raise _against("minimum_parties", f"minimum_parties = {policy.minimum_parties}, this plan has {len(parties)}")
    if terms.minimum_parties < policy.minimum_parties:
        raise _against(
            "minimum_parties",
            f"minimum_parties = {policy.minimum_parties}, this plan would go on with {terms.minimum_parties}",
        )
    if terms.minimum_parties > len(parties):
        raise broken(f"it wants {terms.minimum_parties} parties and has {len(parties)}")


def _admit_promise(terms: plan_pb2.Terms, config: PartyConfig) -> None:
    privacy = terms.privacy
    if not (math.isfinite(privacy.epsilon) and privacy.epsilon > 0 and 0 < privacy.delta < 1):
        raise broken(f"epsilon = {privacy.epsilon:g} and delta = {privacy.delta:g} promise nothing")
    if privacy.unit not in (plan_pb2.UNIT_RECORD, plan_pb2.UNIT_USER):
        raise broken("it does not say what it protects, a record or a user")
    if privacy.record not in (plan_pb2.RECORD_DOCUMENT, plan_pb2.RECORD_SENTENCE, plan_pb2.RECORD_PAIR):
        raise broken("it does not say what a record is")
    if privacy.unit == plan_pb2.UNIT_USER and config.shard.user is None:
        raise _against("shard.user", "this party's shard has no user column, and the plan protects users")
    if privacy.trust != plan_pb2.TRUST_TRUSTED_AGGREGATOR:
        raise _against("trust", "this party knows the trusted aggregator alone; the secure sum is not there yet")
    if privacy.insecure_reproducible_noise and not config.policy.simulation:
        raise _against(
            "simulation", "insecure_reproducible_noise protects nobody; only a policy with simulation = true admits it"
        )
    if privacy.dropouts + privacy.colluders >= len(terms.parties):
        raise broken(f"{privacy.dropouts} dropouts and {privacy.colluders} colluders leave no honest party")


def _admit_release(release: plan_pb2.Release, terms: plan_pb2.Terms, config: PartyConfig) -> DpEvent:
    if not RELEASE_NAME.fullmatch(release.name):
        raise broken(f"{release.name[:40]!r} is no name for a release; use small letters, digits and hyphens")
    if [each.name for each in terms.releases].count(release.name) > 1:
        raise broken(f"release {release.name} is listed twice")
    if not 1 <= release.charges <= MOST_CHARGES:
        raise broken(f"release {release.name} is charged {release.charges} times; use 1 to {MOST_CHARGES}")
    mechanism = mechanism_of(release)
    shares = shares_of(mechanism)
    honest = len(terms.parties) - terms.privacy.dropouts - terms.privacy.colluders
    if shares > honest:
        raise broken(
            f"release {release.name} counts on {shares} noise shares; "
            f"with the dropouts and colluders it allows, {honest} may be all there are"
        )
    if shares and terms.minimum_parties < shares + terms.privacy.colluders:
        raise broken(
            f"it would go on with {terms.minimum_parties} parties, and release {release.name} counts on "
            f"{shares} noise shares"
        )
    match mechanism:
        case CountsMechanism() | VectorMechanism():
            _admit_size(mechanism, config)
        case ThresholdedVotes() if not config.policy.clear_votes:
            raise _against(
                "clear_votes",
                f"clear_votes = false; release {release.name} sends this party's votes to the coordinator, which adds "
                "the noise itself",
            )
        case FreeAnswers():
            _admit_free(release, mechanism, terms)
    return event_of(release)


def _admit_size(mechanism: CountsMechanism | VectorMechanism, config: PartyConfig) -> None:
    declared = config.policy.declared_size
    if declared is not None and declared * mechanism.levels >= CAPACITY:
        raise _against(
            "declared_size",
            f"{declared} records of {mechanism.levels} levels may overflow a 32-bit sum; "
            f"levels up to {(CAPACITY - 1) // declared} would fit",
        )


def _admit_free(release: plan_pb2.Release, mechanism: FreeAnswers, terms: plan_pb2.Terms) -> None:
    """Answers are free only after a training that the same terms charge, and under no other name."""
    paid = [each for each in terms.releases if each.name == mechanism.after]
    if not paid or not isinstance(mechanism_of(paid[0]), GradientMechanism):
        raise broken(f"release {release.name} is free after {mechanism.after[:40]!r}, which trains nothing privately")
    if [each.free.after for each in terms.releases if each.HasField("free")].count(mechanism.after) > 1:
        raise broken(f"two releases are free after {mechanism.after!r}; one training is one set of teachers")


def _against(rule: str, what: str) -> Refusal:
    return Refusal(Reason.POLICY, f"policy {what}.", rule)
