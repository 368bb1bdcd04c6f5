"""DPED: embeddings distilled from noisy moments, votes and hidden states of teachers (Feng & Hong)."""

from typing import Final

from coordinator.systems.dped.compare import DpedFamily
from coordinator.systems.dped.forecast import forecast
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.public import prepare
from coordinator.systems.dped.recipe import Dped
from coordinator.systems.example import example
from coordinator.systems.system import System

SYSTEM: Final = System("dped", DpedPlan, prepare, Dped, forecast, DpedFamily, example(__name__))
