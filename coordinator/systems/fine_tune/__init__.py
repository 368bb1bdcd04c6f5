"""A text model trained without privacy on simulated text, to be compared with."""

from typing import Final

from coordinator.systems.fine_tune.plan import FineTunePlan
from coordinator.systems.fine_tune.recipe import no_recipe, run
from coordinator.systems.system import System
from coordinator.text_models.compare import ClassifierFamily

SYSTEM: Final = System("fine_tune", FineTunePlan, no_recipe, no_recipe, no_recipe, ClassifierFamily, alone=run)
