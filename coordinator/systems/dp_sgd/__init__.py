"""DP-SGD among parties (Abadi et al. 2016): federated steps, or rounds of local training."""

from typing import Final

from coordinator.systems.dp_sgd.forecast import forecast
from coordinator.systems.dp_sgd.plan import DpSgdPlan
from coordinator.systems.dp_sgd.recipe import DpSgd
from coordinator.systems.example import example
from coordinator.systems.glances import about
from coordinator.systems.system import System
from coordinator.text_models.auditing.trained import ClassifierAttacks
from coordinator.text_models.compare import ClassifierComparison
from coordinator.text_models.forecast import needs
from coordinator.text_models.public import prepare
from coordinator.text_models.student import exhibits

SYSTEM: Final = System(
    name="dp_sgd",
    plan=DpSgdPlan,
    prepare=prepare,
    recipe=DpSgd,
    needs=needs,
    forecast=forecast,
    comparison=ClassifierComparison,
    example=example(__name__),
    audit=ClassifierAttacks,
    exhibits=exhibits,
    about=about(__name__),
)
