"""Whether a plan promises what this party's account keeps: a guarantee, or expressly none.

A plan without a guarantee is admitted only by a party whose file says `[policy] guarantee = false`, and such a party
admits no other. So no release is charged to a cap that cannot hold for it, and nobody believes in a cap that was not
kept.
"""

from aggregation.mechanisms.mechanism import HEURISTIC, Mechanism
from aggregation.mechanisms.said import SoftenedTargets
from party.config import PartyConfig
from party.releasing.mechanisms import against, broken
from protos.conclave.v1 import plan_pb2


def admit_guarantee(terms: plan_pb2.Terms, config: PartyConfig) -> None:
    """Raises `Refusal`: PLAN where terms contradict themselves on whether they promise anything, POLICY (rule
    `guarantee`) where they promise something else than this party's account keeps.
    """
    privacy = terms.privacy
    if privacy.unproven and (privacy.epsilon or privacy.delta or privacy.attempts > 1):
        raise broken(
            f"it says that nothing is guaranteed, and states epsilon = {privacy.epsilon:g}, delta = {privacy.delta:g} "
            f"and {max(1, privacy.attempts)} attempts"
        )
    if privacy.unproven and privacy.trust != plan_pb2.TRUST_TRUSTED_AGGREGATOR:
        raise broken("it says that nothing is guaranteed, and names a trust that hides sums, of which it has none")
    if privacy.unproven and config.policy.guarantee:
        raise against(
            "guarantee",
            f"guarantee = true; this plan has {HEURISTIC}. Plan with releases that have a guarantee; or ask this party "
            "for an account without a cap, which its administrator opens under guarantee = false",
        )
    if not privacy.unproven and not config.policy.guarantee:
        raise against(
            "guarantee",
            "guarantee = false; this party's account has no cap, so that nothing a plan promises could be kept by it. "
            "Plan without a guarantee, or ask this party for an account with a cap",
        )


def admit_proven(release: plan_pb2.Release, mechanism: Mechanism, terms: plan_pb2.Terms, config: PartyConfig) -> None:
    """Raises `Refusal`: PLAN for a release with a guarantee in terms without one, or the reverse; POLICY (`simulation`)
    for outcomes that nothing softens, outside a simulation.
    """
    if mechanism.guaranteed and terms.privacy.unproven:
        raise broken(f"it says that nothing is guaranteed, and release {release.name} of {mechanism.kind} is")
    if not mechanism.guaranteed and not terms.privacy.unproven:
        raise broken(
            f"it promises epsilon = {terms.privacy.epsilon:g}, and release {release.name} of {mechanism.kind} has "
            f"{HEURISTIC}"
        )
    if isinstance(mechanism, SoftenedTargets) and not mechanism.softens and not config.policy.simulation:
        raise against(
            "simulation",
            f"simulation = false; release {release.name} has outcomes that nothing softens, which is for a simulation "
            "alone",
        )
