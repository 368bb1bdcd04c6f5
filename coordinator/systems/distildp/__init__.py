"""DistilDP: a private teacher of all parties writes and grades text; a smaller language model learns from it."""

from typing import Final

from coordinator.systems.distildp.audit import DistilDpAttacks
from coordinator.systems.distildp.compare import DistilDpComparison
from coordinator.systems.distildp.forecast import forecast, needs
from coordinator.systems.distildp.plan import DistilDpPlan
from coordinator.systems.distildp.public import prepare
from coordinator.systems.distildp.recipe import DistilDp
from coordinator.systems.distildp.student import exhibits
from coordinator.systems.example import example
from coordinator.systems.glances import about
from coordinator.systems.system import System

SYSTEM: Final = System(
    name="distildp",
    plan=DistilDpPlan,
    prepare=prepare,
    recipe=DistilDp,
    needs=needs,
    forecast=forecast,
    comparison=DistilDpComparison,
    example=example(__name__),
    audit=DistilDpAttacks,
    exhibits=exhibits,
    about=about(__name__),
)
