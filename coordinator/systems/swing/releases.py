"""The releases of a swing run: at every token that is asked, how far the parties' teachers are from the public model;
or what each party's says, softened. Where the student is trained privately too, what its learners train.
"""

import math
from typing import TYPE_CHECKING, Final

from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent

from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.said import SoftenedTargets
from aggregation.noise.shares import MOST_LEVELS
from coordinator.errors import PlanError
from coordinator.pricing.release import Release, shares
from coordinator.systems.swing.learning import training
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import PublicSwing

if TYPE_CHECKING:
    from aggregation.mechanisms.vectors import DifferencesMechanism

DIFFERENCES, SOFTENED = "differences", "softened"
_SIGMA: Final = 32768.0
"""Standard deviation of one party's share of the noise, on the grid: fine enough for one teacher's word on a token."""
_ROOM: Final = 1 << 29
"""Grid units that all teachers together have in a number of the sum."""


def total_event(plan: SwingPlan, multiplier: float) -> DpEvent:
    """The event of all tokens together, as one Gaussian, as often as the plan allows."""
    once = GaussianDpEvent(multiplier)
    return once if plan.privacy.attempts == 1 else SelfComposedDpEvent(once, plan.privacy.attempts)


def releases(plan: SwingPlan, multiplier: float, public: PublicSwing) -> tuple[Release, ...]:
    """The release of a run; of differences, all tokens together with this noise multiplier.

    A unit is in one teacher, whose differences at all tokens together move from one place in the ball of radius `clip`
    sqrt(tokens) to any other: twice that is the L2 sensitivity, under add-or-remove of one unit. All tokens are charged
    together, once. Softened outcomes have no guarantee, and no noise that is calibrated. What learners train is
    calibrated by itself, to all of the plan's epsilon: nobody's records are in both. Raises `PlanError`.
    """
    tokens = len(public.queries.ids)
    if plan.published:
        softened = softened_under(plan, public.tokens)
        texts = len(public.queries)
        return (Release(SOFTENED, softened, tokens, softened.columns, charges=texts, form=Form.SAID),)
    mechanism = differences_under(plan, multiplier, tokens)
    attempts, among = plan.privacy.attempts, plan.teaching if plan.learner is not None else ()
    said = Release(DIFFERENCES, mechanism, tokens, mechanism.columns, attempts=attempts, parties=among)
    return (said,) if plan.learner is None else (said, training(plan, plan.learner, public.trainable))


def differences_under(plan: SwingPlan, multiplier: float, tokens: int) -> "DifferencesMechanism":
    """The mechanism of all tokens' differences: a number for each outcome and one for all others.

    Raises `PlanError`.
    """
    from learning.swing.differences import mechanism

    honest = shares(plan)
    levels = int(_SIGMA * math.sqrt(honest) / (2 * multiplier))
    try:
        return mechanism(
            tokens,
            plan.distil.top,
            clip=plan.swing.clip,
            noise_multiplier=multiplier,
            shares=honest,
            levels=min(max(1, levels), MOST_LEVELS, _ROOM // plan.teachers_of_all),
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
