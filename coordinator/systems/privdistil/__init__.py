"""PrivDistil: public text is chosen privately; a student is distilled on it and then fine-tuned privately."""

from typing import Final

from coordinator.systems.example import example
from coordinator.systems.glances import about
from coordinator.systems.privdistil.audit import PrivDistilAttacks
from coordinator.systems.privdistil.compare import PrivDistilComparison
from coordinator.systems.privdistil.forecast import forecast, needs
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.systems.privdistil.public import prepare
from coordinator.systems.privdistil.recipe import PrivDistil
from coordinator.systems.system import System
from coordinator.text_models.student import exhibits

SYSTEM: Final = System(
    name="privdistil",
    plan=PrivDistilPlan,
    prepare=prepare,
    recipe=PrivDistil,
    needs=needs,
    forecast=forecast,
    comparison=PrivDistilComparison,
    example=example(__name__),
    audit=PrivDistilAttacks,
    exhibits=exhibits,
    about=about(__name__),
)
