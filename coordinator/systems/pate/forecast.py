"""Forecasts what a run of `pate` will cost, and how its noise compares with the votes.

Only the plan, the public model and the lengths of the public text are used; made-up batches are timed. Epsilon is
exact.
"""

import math
from pathlib import Path

from aggregation.mechanisms.joint import JointMechanism
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.pricing.release import PricedPlan
from coordinator.text_models import forecast as text_models
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.recipe import Voted


def forecast(recipe: Voted, priced: PricedPlan[ClassifierPlan], base: Path, cache: Path, prepared: float) -> Forecast:
    """Forecast a run. No party is asked, none of their data is read, and nothing is spent."""
    plan, (release,) = recipe.plan, priced.releases
    votes = release.under(JointMechanism).votes
    assert votes is not None
    assert plan.pate is not None
    noise, teachers = votes.noise, float(plan.teachers)
    row = Row(release.name, release.rows, math.sqrt(2), noise, teachers, at_most=True)
    advice = ["fewer [pate] queries", "more teachers", "a larger epsilon"]
    looked = text_models.declared(plan) / len(plan.federation.names)
    return text_models.forecast(
        priced,
        recipe.read,
        (row,),
        (text_models.drowning(row, "all teachers' votes together", advice, priced),) if row.drowned else (),
        prepared=prepared,
        looked=looked if plan.model.adapt == "head" else looked * plan.pate.epochs * text_models.TRAINED,
        private=False,
        sums=1,
        teachers=plan.pate.teachers_per_party,
    )
