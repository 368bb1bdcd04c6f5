"""The releases of counts that a language model's run makes before it trains: of tokens, and of control codes."""

import math
from typing import Final

from aggregation.errors import ConclaveError
from aggregation.mechanisms.counts import CountsMechanism
from coordinator.errors import PlanError
from coordinator.federation.federation import Federation
from coordinator.language_models.plan import LanguagePlan
from coordinator.pricing.release import SAMPLER_SHARE, PricedPlan, Release, gaussian_multiplier, shares, unpromised
from coordinator.store.store import RunStore
from coordinator.text_models.messages import model_message
from coordinator.text_models.public import PublicModel
from learning.text.codes import MOST_COUNTS
from protos.conclave.v1 import party_pb2

TOKENS: Final = "tokens"
CODES: Final = "codes"
LARGEST_SUM: Final = 2**31 - 1
FINEST: Final = 4096
_HEADROOM: Final = 8
"""How many times more units than declared there may be before a sum could wrap."""


def count_releases(plan: LanguagePlan, tokens: int) -> tuple[Release, ...]:
    """The counts that a plan asks for. tokens: that the model has. Raises `PlanError`."""
    found = []
    if plan.floor.use:
        columns = tokens * max(1, plan.apart)
        if plan.apart and columns > MOST_COUNTS:
            raise PlanError(
                f"[floor] by_code: counts of {tokens:,} tokens by {plan.apart:,} codes are more than {MOST_COUNTS:,}. "
                "Use by_code = false."
            )
        found.append(_release(plan, TOKENS, plan.floor.clip, plan.floor_epsilon, columns))
    if plan.codes is not None:
        found.append(_release(plan, CODES, plan.codes.clip, plan.codes_epsilon, plan.codes.codes().cells))
    return tuple(found)


def _release(plan: LanguagePlan, name: str, clip: float, epsilon: float, columns: int) -> Release:
    privacy = plan.privacy
    multiplier = gaussian_multiplier(epsilon, privacy.delta * (1 - SAMPLER_SHARE)) * math.sqrt(privacy.attempts)
    return counts_under(plan, name, clip, multiplier, columns)


def counts_under(plan: LanguagePlan, name: str, clip: float, multiplier: float, columns: int) -> Release:
    """The release of counts at a noise multiplier. Raises `PlanError`."""
    privacy, attempts = plan.privacy, plan.privacy.attempts
    levels = max(1, min(FINEST, LARGEST_SUM // (_HEADROOM * (privacy.declared_size or 1))))
    try:
        mechanism = CountsMechanism(clip, levels, multiplier, shares(plan))
    except ConclaveError as error:
        raise PlanError(f"The counts of {name} cannot be released under this plan: {error}") from None
    return Release(name, mechanism, 1, columns, attempts=attempts)


async def count(
    priced: PricedPlan[LanguagePlan], public: PublicModel, federation: Federation, store: RunStore
) -> dict[str, int]:
    """Have all parties count, and store the noisy sums; returns how many parties are in each.

    When it is run again after a stop, it asks for nothing that is already stored.
    """
    plan, present = priced.plan, {}
    for release in priced.releases:
        if release.name not in (TOKENS, CODES):
            continue
        request = party_pb2.TrainRequest(operation_id=f"{release.name}-0")
        if release.name == TOKENS:
            request.tokens.release, request.tokens.by_code = release.name, bool(plan.apart)
            request.tokens.model.CopyFrom(model_message(plan, public))
        else:
            request.codes.release = release.name
        await federation.train(request, doing="counting", then="counted")
        if plan.privacy.trust == "secure-sum":
            present[release.name] = await federation.sum_securely(release, priced.binding.terms, 1, store)
        else:
            note = unpromised(plan)
            present[release.name] = await federation.aggregate(release.name, 1, release.columns, 1, store, note)
    return present
