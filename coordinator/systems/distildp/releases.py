"""The releases of a DistilDP run, and how its budget is divided between counts and the teacher's training."""

from typing import Final

from dp_accounting import ComposedDpEvent, DpEvent

from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.said import FreeTargets, FreeTexts
from coordinator.language_models.counts import count_releases
from coordinator.language_models.plan import LanguagePlan
from coordinator.pricing.release import Release
from coordinator.systems.distildp.plan import DistilDpPlan
from coordinator.text_models.federated_training import ROUND, descent_event, descent_releases, mechanism

TEACHER: Final = f"{ROUND}-0"
"""Where parties keep their teachers' parameters: their trainings, which give nothing themselves, by the name that they
have where parameters leave.
"""
WRITTEN, GRADED = "texts", "targets"
"""Where parties keep them: what their teachers write, and what these say of every token of all texts."""


def releases(plan: DistilDpPlan, multiplier: float, tokens: int, parameters: int, longest: int) -> tuple[Release, ...]:
    """The releases of a run whose teacher is trained with this noise multiplier. Raises `PlanError`.

    tokens: that the model has. parameters: that are trained of it. longest: tokens of a text that a teacher writes,
    where parties keep theirs.
    """
    counted = count_releases(plan, tokens)
    if not plan.kept:
        return (*counted, *descent_releases(plan, multiplier, parameters))
    texts = FreeTexts(TEACHER, longest)
    targets = FreeTargets(WRITTEN, plan.distil.top, tokens)
    own, every = plan.generation.texts // len(plan.federation.names), plan.generation.texts
    return (
        *counted,
        Release(TEACHER, mechanism(plan, multiplier, parameters, plan.dp_sgd.steps), 0, 0, form=Form.TRAINING),
        Release(WRITTEN, texts, own, texts.columns, charges=own, form=Form.SAID),
        Release(GRADED, targets, every * longest, targets.columns, charges=every, form=Form.SAID),
    )


def total_event(plan: LanguagePlan, multiplier: float, tokens: int, parameters: int) -> DpEvent:
    """An event that costs no less than all releases together."""
    counted = [release.at_most for release in count_releases(plan, tokens)]
    return ComposedDpEvent([*counted, descent_event(plan, multiplier, parameters)])
