"""Swing distillation: language models of parties that have much text teach whoever has little."""

from typing import Final

from coordinator.systems.example import example
from coordinator.systems.glances import about
from coordinator.systems.swing.audit import SwingAttacks
from coordinator.systems.swing.compare import SwingComparison
from coordinator.systems.swing.forecast import forecast, needs
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import prepare
from coordinator.systems.swing.recipe import Swing
from coordinator.systems.swing.student import exhibits
from coordinator.systems.system import System

SYSTEM: Final = System(
    name="swing",
    plan=SwingPlan,
    prepare=prepare,
    recipe=Swing,
    needs=needs,
    forecast=forecast,
    comparison=SwingComparison,
    audit=SwingAttacks,
    example=example(__name__),
    exhibits=exhibits,
    about=about(__name__),
)
