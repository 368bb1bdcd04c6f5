"""DPED (Feng & Hong): embeddings distilled from noisy counts, moments, votes and hidden states."""

from typing import Final

from coordinator.systems.dped.audit import DpedAttacks
from coordinator.systems.dped.compare import DpedComparison
from coordinator.systems.dped.forecast import forecast, needs
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.public import prepare
from coordinator.systems.dped.recipe import Dped
from coordinator.systems.dped.student import exhibits
from coordinator.systems.example import example
from coordinator.systems.glances import about
from coordinator.systems.system import System

SYSTEM: Final = System(
    name="dped",
    plan=DpedPlan,
    prepare=prepare,
    recipe=Dped,
    needs=needs,
    forecast=forecast,
    comparison=DpedComparison,
    example=example(__name__),
    first=True,
    audit=DpedAttacks,
    exhibits=exhibits,
    words=lambda recipe: recipe.read.vocabulary.to_bytes(),
    about=about(__name__),
)
