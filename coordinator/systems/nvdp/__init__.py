"""NVDP: each party releases a noisy vector of each of its texts, and whoever wants trains on them."""

from typing import Final

from coordinator.systems.example import example
from coordinator.systems.nvdp.audit import NvdpAttacks
from coordinator.systems.nvdp.compare import NvdpComparison
from coordinator.systems.nvdp.forecast import forecast, needs
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.public import prepare
from coordinator.systems.nvdp.recipe import Nvdp
from coordinator.systems.system import System

SYSTEM: Final = System(
    name="nvdp",
    plan=NvdpPlan,
    prepare=prepare,
    recipe=Nvdp,
    needs=needs,
    forecast=forecast,
    comparison=NvdpComparison,
    example=example(__name__),
    audit=NvdpAttacks,
)
