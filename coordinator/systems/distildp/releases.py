"""The releases of a DistilDP run, and how its budget is divided between counts and the teacher's training."""

from dp_accounting import ComposedDpEvent, DpEvent

from coordinator.language_models.counts import count_releases
from coordinator.language_models.plan import LanguagePlan
from coordinator.pricing.release import Release
from coordinator.text_models.federated_training import descent_event, descent_releases


def releases(plan: LanguagePlan, multiplier: float, tokens: int, parameters: int) -> tuple[Release, ...]:
    """The releases of a run whose teacher is trained with this noise multiplier. Raises `PlanError`.

    tokens: that the model has. parameters: that are trained of it.
    """
    return (*count_releases(plan, tokens), *descent_releases(plan, multiplier, parameters))


def total_event(plan: LanguagePlan, multiplier: float, tokens: int, parameters: int) -> DpEvent:
    """An event that costs no less than all releases together."""
    counted = [release.at_most for release in count_releases(plan, tokens)]
    return ComposedDpEvent([*counted, descent_event(plan, multiplier, parameters)])
