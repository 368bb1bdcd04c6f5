"""Forecasts what a run of `dp_sgd` will cost, and how its noise compares with its signal.

Only the plan, the public model and the lengths of the public text are used; made-up batches are timed. Epsilon is
exact.
"""

import math
from pathlib import Path

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.mechanism import Form
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.pricing.release import PricedPlan
from coordinator.text_models import forecast as text_models
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.recipe import Trained


def forecast(recipe: Trained, priced: PricedPlan[ClassifierPlan], base: Path, cache: Path, prepared: float) -> Forecast:
    """Forecast a run. No party is asked, none of their data is read, and nothing is spent."""
    rows = _rows(priced)
    looked, sums = text_models.trained_sums(recipe.plan)
    return text_models.forecast(
        priced,
        recipe.read,
        rows,
        _warnings(rows, priced),
        prepared=prepared,
        looked=looked,
        private=recipe.plan.model.adapt != "head",
        sums=sums,
    )


def _rows(priced: PricedPlan[ClassifierPlan]) -> tuple[Row, ...]:
    """The signal is the norm of a batch's clipped gradients if all agreed; the noise is the norm of a sum's whole
    noise.
    """
    settings, rows = priced.plan.dp_sgd, []
    for release in priced.releases:
        mechanism = release.under(GradientMechanism)
        noise = mechanism.noise_multiplier * mechanism.sensitivity * mechanism.granularity
        batch = settings.batch if release.form == Form.STEPPED else settings.batch / len(priced.plan.federation.names)
        rows.append(
            Row(
                release.name,
                mechanism.steps,
                mechanism.clip,
                noise * math.sqrt(mechanism.parameters),
                batch * mechanism.clip,
                at_most=True,
            )
        )
    return tuple(rows)


def _warnings(rows: tuple[Row, ...], priced: PricedPlan[ClassifierPlan]) -> tuple[str, ...]:
    if not any(row.drowned for row in rows):
        return ()
    advice = [] if priced.plan.model.adapt == "head" else ['train less of the model ([model] adapt = "head")']
    advice += ["more units a step ([dp_sgd] batch)", "fewer steps", "a larger epsilon"]
    return (text_models.drowning(rows[0], "the sum of its gradients at the most", advice, priced),)
