"""A text model trained without privacy on simulated text, as a baseline for comparisons."""

from typing import Final

from coordinator.systems.example import example
from coordinator.systems.fine_tune.plan import FineTunePlan
from coordinator.systems.fine_tune.recipe import no_recipe, run
from coordinator.systems.glances import about
from coordinator.systems.system import System
from coordinator.text_models.compare import ClassifierComparison

SYSTEM: Final = System(
    name="fine_tune",
    plan=FineTunePlan,
    prepare=no_recipe,
    recipe=no_recipe,
    needs=no_recipe,
    forecast=no_recipe,
    comparison=ClassifierComparison,
    example=example(__name__),
    alone=run,
    about=about(__name__),
)
