"""A system of somebody else's package: how often each of a few words is said beside another, under noise."""

from coordinator.systems.system import System
from tally.compare import TallyComparison
from tally.forecast import forecast, needs
from tally.plan import TallyPlan
from tally.recipe import Tally, prepare

SYSTEM = System("tally", TallyPlan, prepare, Tally, needs, forecast, TallyComparison)
