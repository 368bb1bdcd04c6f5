"""Forecasts what a run of `nvdp` will cost, and how its noise compares with its signal.

Only the plan, the public encoder and the lengths of the public text are used; made-up batches are timed. Epsilon is
exact, and absent in the published form.
"""

import math
from pathlib import Path

import numpy as np

from coordinator.forecasting.forecast import Forecast, Row
from coordinator.forecasting.needs import Needs
from coordinator.pricing.release import PricedPlan
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.recipe import Nvdp
from coordinator.systems.nvdp.releases import SAMPLES, mechanism_of
from coordinator.systems.nvdp.sequences.recipe import SampledByLayer
from coordinator.text_models import forecast as text_models


def forecast(
    recipe: Nvdp | SampledByLayer, priced: PricedPlan[NvdpPlan], base: Path, cache: Path, prepared: float
) -> Forecast:
    """Forecast a run. No party is asked, none of their data is read, and nothing is spent."""
    if isinstance(recipe, SampledByLayer):
        looked = min(recipe.plan.samples.rows, text_models.declared(recipe.plan) / len(recipe.plan.federation.names))
        return text_models.forecast(
            priced, recipe.read, (), (), prepared=prepared, looked=float(looked), private=False, sums=1
        )
    plan, mechanism = recipe.plan, mechanism_of(priced.releases)
    # Of all rows' mean, the signal is the spread of public vectors along one number.
    rows = mechanism.rows * len(plan.federation.names)
    spread = math.sqrt(float(np.trace(recipe.read.statistics.covariance)) / mechanism.dimensions)
    row = Row(SAMPLES, rows, 1.0, mechanism.sigma / math.sqrt(rows), spread, at_most=True)
    advice = ["more [samples] rows", "fewer dimensions", "a larger epsilon"]
    return text_models.forecast(
        priced,
        recipe.read,
        (row,),
        (text_models.drowning(row, "the spread of public vectors", advice, priced),) if row.drowned else (),
        prepared=prepared,
        looked=float(min(mechanism.rows, text_models.declared(plan) / len(plan.federation.names))),
        private=False,
        sums=1,
    )


def needs(recipe: Nvdp | SampledByLayer, priced: PricedPlan[NvdpPlan], base: Path, cache: Path) -> Needs:
    """The needs that are expected of the run."""
    public = recipe.read
    cells = sum(release.rows * release.columns for release in priced.releases)
    return Needs.of(text_models.memory(priced, public), text_models.model_bytes(public), cells)
