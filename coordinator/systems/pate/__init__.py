"""PATE (Papernot et al. 2017, 2018): votes of classifier ensembles at the parties."""

from functools import partial
from typing import Final

from coordinator.systems.pate.audit import PateAttacks
from coordinator.systems.pate.forecast import forecast
from coordinator.systems.pate.plan import PatePlan
from coordinator.systems.pate.recipe import Pate
from coordinator.systems.system import System
from coordinator.text_models.compare import ClassifierComparison
from coordinator.text_models.forecast import needs
from coordinator.text_models.public import prepare

SYSTEM: Final = System(
    name="pate",
    plan=PatePlan,
    prepare=partial(prepare, asks=True),
    recipe=Pate,
    needs=needs,
    forecast=forecast,
    comparison=ClassifierComparison,
    audit=PateAttacks,
)
