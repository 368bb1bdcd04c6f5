"""From a plan to what binds both ends: mechanisms calibrated to the budget, priced before anything runs."""

import math
from dataclasses import dataclass

from dp_accounting import GaussianDpEvent

from aggregation.accounting import Guarantee, calibrate, price
from aggregation.counts import CountsMechanism
from aggregation.errors import ConclaveError
from coordinator.errors import PlanError
from coordinator.plan import Plan
from protos.conclave.v1 import plan_pb2

COUNTS = "counts"
SAMPLER_SHARE = 1e-3
"""The part of a plan's delta that is kept for the noise sampler's distance from its ideal."""

_UNIT = {"record": plan_pb2.UNIT_RECORD, "user": plan_pb2.UNIT_USER}
_RECORD = {
    "document": plan_pb2.RECORD_DOCUMENT,
    "sentence": plan_pb2.RECORD_SENTENCE,
    "pair": plan_pb2.RECORD_PAIR,
}
_TRUST = {
    "trusted-aggregator": plan_pb2.TRUST_TRUSTED_AGGREGATOR,
    "secure-sum": plan_pb2.TRUST_SECURE_SUM,
}


@dataclass(frozen=True, slots=True)
class Bound:
    """A plan with its mechanisms chosen.

    guarantee: what the run costs at every party, delta being the plan's; slack of the noise sampler is inside it.
    binding: the message that every party is asked to join under.
    """

    plan: Plan
    counts: CountsMechanism
    guarantee: Guarantee
    binding: plan_pb2.Plan

    @property
    def private(self) -> bool:
        """Whether the guarantee holds: never when the noise can be reproduced from the plan."""
        return not self.plan.privacy.insecure_reproducible_noise


def bind(plan: Plan) -> Bound:
    """Choose the noise and price it. Raises `PlanError` when the plan cannot be paid from its own budget."""
    privacy, settings = plan.privacy, plan.dped
    shares = len(plan.federation.names) - privacy.dropouts
    cells = plan.vocabulary.size**2

    # A pair counts one: a wider clip would only buy more noise.
    clip = min(settings.clip, 1.0) if privacy.record == "pair" else settings.clip
    spare = privacy.delta * (1 - SAMPLER_SHARE)
    multiplier = privacy.noise_multiplier or calibrate(GaussianDpEvent, privacy.epsilon, spare)
    try:
        chosen = CountsMechanism(clip, settings.levels, multiplier, shares)
    except ConclaveError as error:
        raise PlanError(f"[dped] The counts cannot be released under this plan: {error}") from None
    slack = chosen.slack(cells, privacy.epsilon)
    if slack > privacy.delta * SAMPLER_SHARE:
        raise PlanError(
            f"[privacy] delta = {privacy.delta:g} is too small for {cells:,} noisy cells: the noise sampler's own "
            f"error takes {slack:.1e} of it. Use a larger delta, more [dped] levels, or fewer words. Nothing ran."
        )
    guarantee = price([chosen.event()], spare)
    if guarantee.epsilon > privacy.epsilon:
        needed = calibrate(GaussianDpEvent, privacy.epsilon, spare)
        raise PlanError(
            f"[privacy] noise_multiplier = {multiplier:g} costs epsilon {rounded_up(guarantee.epsilon)} at delta "
            f"{privacy.delta:g}, over the plan's {privacy.epsilon:g}. Use at least {needed:g}, or leave it out and it "
            "is calibrated. Nothing ran."
        )
    guarantee = Guarantee(guarantee.epsilon, privacy.delta, guarantee.accountant, guarantee.rdp_epsilon)
    return Bound(plan, chosen, guarantee, _message(plan, chosen))


def rounded_up(epsilon: float, decimals: int = 3) -> str:
    """An epsilon as a person reads it, never less than it is."""
    grid = 10**decimals
    return "infinity" if math.isinf(epsilon) else f"{math.ceil(epsilon * grid) / grid:.{decimals}f}"


def _message(plan: Plan, counts: CountsMechanism) -> plan_pb2.Plan:
    privacy = plan.privacy
    return plan_pb2.Plan(
        document=plan.document(),
        terms=plan_pb2.Terms(
            recipe=plan.run.recipe,
            seed=plan.run.seed,
            parties=plan.federation.names,
            minimum_parties=plan.minimum_parties,
            privacy=plan_pb2.Privacy(
                epsilon=privacy.epsilon,
                delta=privacy.delta,
                unit=_UNIT[privacy.unit],
                record=_RECORD[privacy.record],
                trust=_TRUST[privacy.trust],
                dropouts=privacy.dropouts,
                colluders=privacy.colluders,
                insecure_reproducible_noise=privacy.insecure_reproducible_noise,
            ),
            releases=[
                plan_pb2.Release(
                    name=COUNTS,
                    charges=1,
                    counts=plan_pb2.CountsMechanism(
                        clip=counts.clip,
                        levels=counts.levels,
                        noise_multiplier=counts.noise_multiplier,
                        shares=counts.shares,
                    ),
                )
            ],
        ),
    )
