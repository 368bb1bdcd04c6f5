"""NVDP: each party releases a noisy vector of each of its texts, and whoever wants trains on them."""

from pathlib import Path
from typing import Final, cast

from coordinator.page.exhibits import Exhibit
from coordinator.systems.example import example
from coordinator.systems.glances import about
from coordinator.systems.nvdp import public as vectors
from coordinator.systems.nvdp.audit import NvdpAttacks
from coordinator.systems.nvdp.compare import NvdpComparison
from coordinator.systems.nvdp.forecast import forecast, needs
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.public import PublicVectors
from coordinator.systems.nvdp.recipe import Nvdp
from coordinator.systems.nvdp.sequences import public as sequences
from coordinator.systems.nvdp.sequences.audit import SequenceAttacks
from coordinator.systems.nvdp.sequences.public import PublicSequences
from coordinator.systems.nvdp.sequences.recipe import SampledByLayer
from coordinator.systems.nvdp.sequences.student import PublishedSequences
from coordinator.systems.nvdp.sequences.student import exhibits as sequence_exhibits
from coordinator.systems.nvdp.student import PublishedSamples
from coordinator.systems.nvdp.student import exhibits as sample_exhibits
from coordinator.systems.system import System


def prepare(plan: NvdpPlan, base: Path, cache: Path) -> PublicVectors | PublicSequences:
    """The public data of a plan in its form. Raises as the form's own `prepare`."""
    if plan.published:
        return sequences.prepare(plan, base, cache)
    return vectors.prepare(plan, base, cache)


def recipe_of(plan: NvdpPlan, public: PublicVectors | PublicSequences | None) -> Nvdp | SampledByLayer:
    """The recipe of a plan in its form."""
    if plan.published:
        return SampledByLayer(plan, cast("PublicSequences | None", public))
    return Nvdp(plan, cast("PublicVectors | None", public))


def attacks_on(recipe: Nvdp | SampledByLayer) -> NvdpAttacks | SequenceAttacks:
    """The attacks on a run in its form."""
    return SequenceAttacks(recipe) if isinstance(recipe, SampledByLayer) else NvdpAttacks(recipe)


def exhibits(student: PublishedSamples | PublishedSequences) -> list[Exhibit]:
    """What a run's page shows of rows in its form, and of the classifier that learned from them."""
    return sequence_exhibits(student) if isinstance(student, PublishedSequences) else sample_exhibits(student)


SYSTEM: Final = System(
    name="nvdp",
    plan=NvdpPlan,
    prepare=prepare,
    recipe=recipe_of,
    needs=needs,
    forecast=forecast,
    comparison=NvdpComparison,
    example=example(__name__),
    audit=attacks_on,
    exhibits=exhibits,
    about=about(__name__),
)
