"""The one release of an `nvdp` run: every party's rows."""

from typing import Final

from dp_accounting import ComposedDpEvent, DpEvent, GaussianDpEvent, SelfComposedDpEvent

from aggregation.accounting.events import RandomizedResponseDpEvent
from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.samples import SamplesMechanism
from coordinator.errors import PlanError
from coordinator.pricing.release import Release
from coordinator.systems.nvdp.plan import NvdpPlan

SAMPLES: Final = "samples"


def total_event(plan: NvdpPlan, multiplier: float) -> DpEvent:
    """What a unit's rows cost at this noise multiplier: their vectors together, and each label."""
    vectors = GaussianDpEvent(multiplier)
    if not plan.label_epsilon:
        return vectors
    label = RandomizedResponseDpEvent(plan.label_epsilon, plan.classes)
    return ComposedDpEvent([vectors, SelfComposedDpEvent(label, plan.samples.texts)])


def releases(plan: NvdpPlan, multiplier: float) -> tuple[Release, ...]:
    """The release at this noise multiplier. Raises `PlanError` for noise that the grid has no room for."""
    table = plan.samples
    try:
        mechanism = SamplesMechanism(
            rows=table.rows,
            dimensions=table.dimensions,
            levels=table.levels,
            noise_multiplier=multiplier,
            texts=table.texts,
            classes=plan.classes,
            label_epsilon=plan.label_epsilon,
        )
    except ConclaveError as error:
        raise PlanError(f"[samples] {error}") from None
    return (Release(SAMPLES, mechanism, table.rows, mechanism.columns, form=Form.SAMPLES),)


def mechanism_of(found: tuple[Release, ...]) -> SamplesMechanism:
    """The mechanism of the release."""
    (release,) = found
    return release.under(SamplesMechanism)
