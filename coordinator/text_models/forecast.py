"""What a run of a text classifier will cost, and how its noise compares with what it adds to.

From the plan and the public model alone: one made-up batch is timed. Epsilon is exact.
"""

import math
import os
import time
from pathlib import Path

import numpy as np

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.mechanism import Form
from coordinator.forecasting import cost
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.forecasting.needs import Room
from coordinator.pricing.priced_plan import bind
from coordinator.pricing.release import Bound, rounded_up
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText, prepare

TORCH_MEMORY = 400 * 2**20
"""Of a process that has imported what trains a text model."""
STEP_SECONDS, SECURE_SECONDS = 0.1, 0.1
"""What a step takes besides its gradients: its calls, and those of a secure sum of a short vector."""
VALUE_BYTES = 4
TOKEN_BYTES = 4
NODE_BYTES = 40
"""Of a released number, at a party's node: its bounded sum, the noise on it, and a masked block."""
USUAL_UNITS = 10_000
"""Of a party, where the plan does not say how many there are."""

_TIMED = 32
_TRAINED = 3
"""How many times as long as looking at a text, learning from it takes."""


def forecast(plan: ClassifierPlan, base: Path, cache: Path) -> Forecast:
    """Forecast a run; nothing of the parties is read or asked, and nothing is spent.

    Raises `PlanError`, `DataError` and `ModelError` as the run itself would.
    """
    begun = time.monotonic()
    public = prepare(plan, base, cache)
    prepared = time.monotonic() - begun
    bound = bind(plan, public)
    rows = tuple(_rows(bound))
    seen = seconds_a_text(public)
    return Forecast(
        plan=plan,
        rows=rows,
        epsilon=bound.guarantee.epsilon if bound.private else None,
        trained=0,
        bytes=traffic(bound, public),
        seconds=seconds(plan, public, prepared, seen),
        memory=memory(bound, public),
        assumptions=(
            f"Supposed: texts of {public.longest} tokens, parties as fast as this machine, and {_declared(plan):,} "
            f"units among them{', as [privacy] declared_size says' if plan.privacy.declared_size else ''}.",
        ),
        warnings=_warnings(rows, bound),
        teachers=plan.teachers // len(plan.federation.names) if plan.run.recipe == "pate" else 0,
    )


def room_of(bound: Bound[ClassifierPlan], public: PublicText) -> Room:
    """What the run is expected to need."""
    cells = sum(release.rows * release.columns for release in bound.releases)
    return Room.of(memory(bound, public), model_bytes(public), cells)


def traffic(bound: Bound[ClassifierPlan], public: PublicText) -> int:
    """Bytes of the model and of public texts to all parties, and of what every step, round or query exchanges."""
    exchanged = sum(
        VALUE_BYTES
        * release.rows
        * release.columns
        * release.steps
        * (2 if release.form in (Form.STEPPED, Form.WEIGHTS) else 1)
        for release in bound.releases
    )
    asked = sum(len(text.encode()) + 8 for texts in public.queries for text in texts)
    return len(bound.plan.federation.names) * (model_bytes(public) + asked + exchanged)


def memory(bound: Bound[ClassifierPlan], public: PublicText) -> dict[str, int]:
    """Upper estimates of each kind of process' memory at its fullest, in bytes."""
    plan, parameters = bound.plan, len(public.start)
    parties = len(plan.federation.names)
    model = model_bytes(public)
    texts = _declared(plan) // parties * (TOKEN_BYTES * public.longest + 16)
    if plan.model.adapt == "head":
        texts += _declared(plan) // parties * 4 * int(getattr(public.model.config, "hidden_size", 1024))
    return {
        "coordinator": cost.COORDINATOR_MEMORY + TORCH_MEMORY + 3 * model + 60 * parameters,
        "party node": cost.NODE_MEMORY + NODE_BYTES * parameters,
        "party training": TORCH_MEMORY + 3 * model + 40 * parameters + texts + 512 * 2**20,
    }


def _rows(bound: Bound[ClassifierPlan]) -> list[Row]:
    """The signal is the norm of a batch's clipped gradients if they all agreed; the noise is that of all of a sum."""
    plan, settings, rows = bound.plan, bound.plan.dp_sgd, []
    for release in bound.releases:
        if release.form == Form.SUMMED:
            votes = release.under(JointMechanism).votes
            assert votes is not None
            noise, teachers = votes.noise, float(plan.teachers)
            rows.append(Row(release.name, release.rows, math.sqrt(2), noise, teachers, at_most=True))
            continue
        mechanism = release.under(GradientMechanism)
        noise = mechanism.noise_multiplier * mechanism.sensitivity * mechanism.granularity
        batch = settings.batch if release.form == Form.STEPPED else settings.batch / len(bound.plan.federation.names)
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
    return rows


def _warnings(rows: tuple[Row, ...], bound: Bound[ClassifierPlan]) -> tuple[str, ...]:
    if not any(row.drowned for row in rows):
        return ()
    (row, *_), plan = rows, bound.plan
    assert row.ratio is not None
    if plan.run.recipe == "pate":
        what, advice = "all teachers' votes together", ["fewer [pate] queries", "more teachers", "a larger epsilon"]
    else:
        what = "the sum of its gradients at the most"
        advice = [] if plan.model.adapt == "head" else ['train less of the model ([model] adapt = "head")']
        advice += ["more units a step ([dp_sgd] batch)", "fewer steps", "a larger epsilon"]
    return (
        f"The noise is {1 / row.ratio:,.0f} times {what}: the student will hardly learn. Use "
        f"{', or '.join(advice)}. This run would cost epsilon {rounded_up(bound.guarantee.epsilon, 2)} all the same.",
    )


def seconds_a_text(public: PublicText) -> float:
    """How long the model takes to look at one text of the plan's length, on this machine."""
    from learning.classification.training import predict
    from learning.models.batching import Tokens

    rows = [Tokens(np.full(public.longest, 5, np.int32), public.longest)] * _TIMED
    predict(public.model, rows[:1])
    begun = time.monotonic()
    predict(public.model, rows)
    return (time.monotonic() - begun) / _TIMED


def seconds(plan: ClassifierPlan, public: PublicText, prepared: float, seen: float) -> float:
    """From the command to the end. Parties that are launched here share this machine's cores."""
    settings, parties = plan.dp_sgd, len(plan.federation.names)
    shared = plan.federation.shards is not None
    crowd = 1.0 if not shared else max(1.0, parties / (os.cpu_count() or 1))
    if plan.model.adapt == "head":
        looked = _declared(plan) / parties
    elif plan.run.recipe == "pate":
        assert plan.pate is not None
        looked = _declared(plan) / parties * plan.pate.epochs * _TRAINED
    else:
        looked = settings.steps * settings.batch / parties * _TRAINED
    sums = 1 if plan.run.recipe == "pate" else settings.steps if settings.form == "federated" else settings.rounds
    secure = SECURE_SECONDS if plan.privacy.trust == "secure-sum" else 0.0
    constant = cost.COMMAND_SECONDS + cost.FINISHING_SECONDS + (cost.RAY_SECONDS if shared else 0.0)
    return prepared + constant + crowd * (looked * seen + cost.START_SECONDS) + (STEP_SECONDS + secure) * sums


def model_bytes(public: PublicText) -> int:
    """Of the model's files, as every party is sent them."""
    return sum(path.stat().st_size for path in public.files.values())


def _declared(plan: ClassifierPlan) -> int:
    return plan.privacy.declared_size or USUAL_UNITS * len(plan.federation.names)
