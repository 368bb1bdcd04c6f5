"""The one release of a swing run: at every token that is asked, how far the parties' teachers are from the public
model.
"""

import math
from typing import Final

from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent

from aggregation.errors import ConclaveError
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism
from coordinator.errors import PlanError
from coordinator.pricing.release import Release, shares
from coordinator.systems.swing.plan import SwingPlan

DIFFERENCES: Final = "differences"
_SIGMA: Final = 4096.0
"""Standard deviation of one party's share of the noise, on the grid: fine enough, and quick to draw."""


def total_event(plan: SwingPlan, multiplier: float) -> DpEvent:
    """The event of all tokens together, as one Gaussian, as often as the plan allows."""
    once = GaussianDpEvent(multiplier)
    return once if plan.privacy.attempts == 1 else SelfComposedDpEvent(once, plan.privacy.attempts)


def releases(plan: SwingPlan, multiplier: float, tokens: int) -> tuple[Release, ...]:
    """The release of a run that asks so many tokens, all together with this noise multiplier.

    A unit is in one teacher, whose vector at every token moves from one place in the ball of radius `clip` to any
    other: L2 sensitivity 2 clip a token under add-or-remove of one unit. Every token is charged once. Raises
    `PlanError`.
    """
    mechanism = differences(plan, multiplier, tokens)
    attempts = plan.privacy.attempts
    return (Release(DIFFERENCES, mechanism, tokens, mechanism.columns, tokens, attempts=attempts),)


def differences(plan: SwingPlan, multiplier: float, tokens: int) -> JointMechanism:
    """The mechanism of one token's differences: one hidden state, of a number for each outcome and one for all others.

    Raises `PlanError`.
    """
    clip, honest = plan.swing.clip, shares(plan)
    noise = multiplier * math.sqrt(tokens) * 2 * clip
    levels = max(1, int(_SIGMA * math.sqrt(honest) * clip / noise))
    try:
        hidden = HiddenMechanism(1, plan.distil.top + 1, clip, levels, noise, honest, plan.privacy.noise)
    except ConclaveError as error:
        raise PlanError(f"[swing] What teachers say cannot be released under this plan: {error}") from None
    return JointMechanism(None, hidden)
