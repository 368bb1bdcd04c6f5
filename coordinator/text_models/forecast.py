"""Forecasts what a run of a text classifier will cost, for every kind of signal.

Only the plan and the public model are used; one made-up batch is timed. Epsilon is exact.
"""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from aggregation.mechanisms.mechanism import Form
from coordinator.forecasting import cost
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.forecasting.needs import Needs
from coordinator.pricing.release import PricedPlan, rounded_up
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.text_models.recipe import TextRecipe

TORCH_MEMORY = 400 * 2**20
"""Bytes of a process that has imported everything to train a text model."""
STEP_SECONDS, SECURE_SECONDS = 0.1, 0.1
"""Seconds of a step besides its gradients: for its calls, and for those of a secure sum of a short vector."""
VALUE_BYTES = 4
TOKEN_BYTES = 4
NODE_BYTES = 40
"""Bytes of a released number at a party's node: its bounded sum, the noise on it, and a masked block."""
USUAL_UNITS = 10_000
"""Units of a party, where the plan does not give their number."""

_TIMED = 32
TRAINED = 3
"""How many times longer it takes to train on a text than to run the model on it."""


def forecast(
    priced: PricedPlan[ClassifierPlan],
    public: PublicText,
    rows: tuple[Row, ...],
    warnings: tuple[str, ...],
    *,
    prepared: float,
    looked: float,
    sums: int,
    teachers: int = 0,
) -> Forecast:
    """The forecast of a run whose signals are known. No party is asked, none of their data is read, and nothing is
    spent.

    rows, warnings: of the signals. prepared: seconds that reading the public data took. looked: how many times a party
    processes a text, or the seconds this takes. sums: how many sums are made. teachers: of one party.
    """
    plan = priced.plan
    return Forecast(
        plan=plan,
        rows=rows,
        epsilon=priced.guarantee.epsilon if priced.private else None,
        trained=0,
        bytes=traffic(priced, public),
        seconds=seconds(plan, prepared, looked, sums, seconds_a_text(public)),
        memory=memory(priced, public),
        assumptions=(
            f"Supposed: texts of {public.longest} tokens, parties as fast as this machine, and {declared(plan):,} "
            f"units among them{', as [privacy] declared_size says' if plan.privacy.declared_size else ''}.",
        ),
        warnings=warnings,
        teachers=teachers,
    )


def needs(recipe: TextRecipe, priced: PricedPlan[ClassifierPlan], base: Path, cache: Path) -> Needs:
    """The needs that are expected of the run."""
    public = recipe.read
    cells = sum(release.rows * release.columns for release in priced.releases)
    return Needs.of(memory(priced, public), model_bytes(public), cells)


def traffic(priced: PricedPlan[ClassifierPlan], public: PublicText) -> int:
    """Bytes of the model and of public texts sent to all parties, and of what every step, round or query exchanges."""
    exchanged = sum(
        VALUE_BYTES
        * release.rows
        * release.columns
        * release.steps
        * (2 if release.form in (Form.STEPPED, Form.WEIGHTS) else 1)
        for release in priced.releases
    )
    asked = sum(len(text.encode()) + 8 for texts in public.queries for text in texts)
    return len(priced.plan.federation.names) * (model_bytes(public) + asked + exchanged)


def memory(priced: PricedPlan[ClassifierPlan], public: PublicText) -> dict[str, int]:
    """Upper estimates of the peak memory of each kind of process, in bytes."""
    plan, parameters = priced.plan, len(public.start)
    parties = len(plan.federation.names)
    model = model_bytes(public)
    texts = declared(plan) // parties * (TOKEN_BYTES * public.longest + 16)
    if plan.model.adapt == "head":
        texts += declared(plan) // parties * 4 * int(getattr(public.model.config, "hidden_size", 1024))
    return {
        "coordinator": cost.COORDINATOR_MEMORY + TORCH_MEMORY + 3 * model + 60 * parameters,
        "party node": cost.NODE_MEMORY + NODE_BYTES * parameters,
        "party training": TORCH_MEMORY + 3 * model + 40 * parameters + texts + 512 * 2**20,
    }


def drowning(row: Row, what: str, advice: list[str], priced: PricedPlan[Any]) -> str:
    """A sentence on a signal that is below its noise, and on what would help. what: the name of the signal."""
    assert row.ratio is not None
    return (
        f"The noise is {1 / row.ratio:,.0f} times {what}: the student will hardly learn. Use "
        f"{', or '.join(advice)}. This run would cost epsilon {rounded_up(priced.guarantee.epsilon, 2)} all the same."
    )


def seconds_a_text(public: PublicText) -> float:
    """Seconds that the model takes to process one text of the plan's length on this machine."""
    from learning.classification.training import predict
    from learning.models.batching import Tokens

    rows = [Tokens(np.full(public.longest, 5, np.int32), public.longest)] * _TIMED
    predict(public.model, rows[:1])
    begun = time.monotonic()
    predict(public.model, rows)
    return (time.monotonic() - begun) / _TIMED


def trained_sums(plan: ClassifierPlan) -> tuple[float, int]:
    """How many times a party processes a text where `[dp_sgd]` trains the model, and how many sums are made."""
    settings, parties = plan.dp_sgd, len(plan.federation.names)
    looked = settings.steps * settings.batch / parties * TRAINED
    if plan.model.adapt == "head":
        looked = declared(plan) / parties
    return looked, settings.steps if settings.form == "federated" else settings.rounds


def seconds(plan: ClassifierPlan, prepared: float, looked: float, sums: int, seen: float) -> float:
    """Seconds from the run's command to its end. Parties that are launched here share this machine's cores.

    seen: seconds to process one text.
    """
    shared = plan.federation.shards is not None
    crowd = 1.0 if not shared else max(1.0, len(plan.federation.names) / (os.cpu_count() or 1))
    secure = SECURE_SECONDS if plan.privacy.trust == "secure-sum" else 0.0
    constant = cost.COMMAND_SECONDS + cost.FINISHING_SECONDS + (cost.RAY_SECONDS if shared else 0.0)
    return prepared + constant + crowd * (looked * seen + cost.START_SECONDS) + (STEP_SECONDS + secure) * sums


def model_bytes(public: PublicText) -> int:
    """Bytes of the model's files as every party is sent them."""
    return sum(path.stat().st_size for path in public.files.values())


def declared(plan: ClassifierPlan) -> int:
    """Units of all parties together: the plan's figure, or a typical one."""
    return plan.privacy.declared_size or USUAL_UNITS * len(plan.federation.names)
