"""PATE (Papernot et al. 2017, 2018): votes of classifier ensembles at the parties."""

from functools import partial
from typing import Final

from coordinator.systems.example import example
from coordinator.systems.glances import about
from coordinator.systems.pate.audit import PateAttacks
from coordinator.systems.pate.forecast import forecast
from coordinator.systems.pate.plan import PatePlan
from coordinator.systems.pate.recipe import Pate
from coordinator.systems.system import System
from coordinator.text_models.compare import ClassifierComparison
from coordinator.text_models.forecast import needs
from coordinator.text_models.public import prepare
from coordinator.text_models.student import exhibits

SYSTEM: Final = System(
    name="pate",
    plan=PatePlan,
    prepare=partial(prepare, asks=True),
    recipe=Pate,
    needs=needs,
    forecast=forecast,
    comparison=ClassifierComparison,
    example=example(__name__),
    audit=PateAttacks,
    exhibits=exhibits,
    about=about(__name__),
)
