"""The one release of a swing run: at every token that is asked, how far the parties' teachers are from the public
model; or what each party's says, softened.
"""

import math
from typing import TYPE_CHECKING, Final

from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent

from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.said import SoftenedTargets
from coordinator.errors import PlanError
from coordinator.pricing.release import Release, shares
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import PublicSwing

if TYPE_CHECKING:
    from aggregation.mechanisms.joint import JointMechanism

DIFFERENCES, SOFTENED = "differences", "softened"
_SIGMA: Final = 4096.0
"""Standard deviation of one party's share of the noise, on the grid: fine enough, and quick to draw."""


def total_event(plan: SwingPlan, multiplier: float) -> DpEvent:
    """The event of all tokens together, as one Gaussian, as often as the plan allows."""
    once = GaussianDpEvent(multiplier)
    return once if plan.privacy.attempts == 1 else SelfComposedDpEvent(once, plan.privacy.attempts)


def releases(plan: SwingPlan, multiplier: float, public: PublicSwing) -> tuple[Release, ...]:
    """The release of a run; of differences, all tokens together with this noise multiplier.

    A unit is in one teacher, whose vector at every token moves from one place in the ball of radius `clip` to any
    other: L2 sensitivity 2 clip a token under add-or-remove of one unit. Every token is charged once. Softened outcomes
    have no guarantee, and no noise that is calibrated. Raises `PlanError`.
    """
    tokens = len(public.queries.ids)
    if plan.published:
        softened = softened_under(plan, public.tokens)
        texts = len(public.queries)
        return (Release(SOFTENED, softened, tokens, softened.columns, charges=texts, form=Form.SAID),)
    mechanism = differences_under(plan, multiplier, tokens)
    attempts = plan.privacy.attempts
    words = mechanism.described_as_differences(tokens)
    return (Release(DIFFERENCES, mechanism, tokens, mechanism.columns, tokens, attempts=attempts, words=words),)


def differences_under(plan: SwingPlan, multiplier: float, tokens: int) -> "JointMechanism":
    """The mechanism of one token's differences: a number for each outcome and one for all others.

    Raises `PlanError`.
    """
    from learning.swing.differences import mechanism

    clip, honest = plan.swing.clip, shares(plan)
    one = multiplier * math.sqrt(tokens)
    levels = max(1, int(_SIGMA * math.sqrt(honest) / (2 * one)))
    try:
        return mechanism(
            plan.distil.top,
            clip=clip,
            noise_multiplier=one,
            shares=honest,
            levels=levels,
            distribution=plan.privacy.noise,
        )
    except ConclaveError as error:
        raise PlanError(f"[swing] What teachers say cannot be released under this plan: {error}") from None


def softened_under(plan: SwingPlan, tokens: int) -> SoftenedTargets:
    """The heuristic by which a party softens what its teacher says. tokens: that the model has. Raises `PlanError`."""
    settings = plan.swing
    try:
        return SoftenedTargets(
            top=plan.distil.top,
            tokens=tokens,
            protection=settings.protection,
            scale=0.0 if settings.protection == "none" else settings.scale,
            protected=settings.noised if settings.protection == "top" else 0,
            temperature=settings.temperature,
            strength=settings.strength,
            cap=settings.cap,
        )
    except ConclaveError as error:
        raise PlanError(f"[swing] What teachers say cannot be softened under this plan: {error}") from None
