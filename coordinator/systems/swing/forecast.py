"""Forecasts what a swing run will cost, and how its noise compares with what teachers say.

Only the plan, the public model and the texts that are asked are used; made-up batches are timed. Epsilon is exact.
"""

import math
from pathlib import Path
from typing import Final

import numpy as np

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.vectors import DifferencesMechanism
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.forecasting.needs import Needs
from coordinator.forecasting.pace import LOOKED_AT, Lengths, pace_of
from coordinator.language_models.pairs import heldout_rows
from coordinator.pricing.release import PricedPlan, Release
from coordinator.systems.swing.learning import LEARNED
from coordinator.systems.swing.plan import LearnerTable, SwingPlan
from coordinator.systems.swing.recipe import Swing
from coordinator.text_models import forecast as text_models

LEARNS, SAYS = 5.3, 2.2
"""Time of a student's update for a token, and of saying what might stand there, over that of reading it."""
HELD_BYTES: Final = 12
"""Bytes of one number that a teacher says at a party: in single precision, on the grid, and in the sum."""
ASKED_BYTES: Final = 20 * 1024
"""Bytes for each token of the vocabulary while a teacher is asked: four arrays of the 1,024 tokens that are asked at a
time on a processor, or on the host one of a device's 4,096, and a fourth more.
"""


def forecast(recipe: Swing, priced: PricedPlan[SwingPlan], base: Path, cache: Path, prepared: float) -> Forecast:
    """Forecast a run. No party is asked, none of their data is read, and nothing is spent."""
    plan, public, release = recipe.plan, recipe.read, priced.releases[0]
    rows: tuple[Row, ...] = ()
    warnings: tuple[str, ...] = ()
    if not plan.published:
        row = _row(plan, release)
        advice = ["fewer [queries]", "more [teachers] per_party", "fewer outcomes ([distil] top)", "a larger epsilon"]
        rows = (row,)
        if row.drowned:
            warnings = (text_models.drowning(row, "all that the teachers can say together", advice, priced),)
    if plan.learner is not None:
        row = _learned(plan.learner, priced)
        rows = (*rows, row)
        if row.drowned:
            advice = ["more units a step ([learner] batch)", "fewer steps", "a larger epsilon"]
            warnings = (*warnings, text_models.drowning(row, "the sum of a learner's gradients", advice, priced))
    lengths = lengths_of(recipe)
    pace = pace_of(public.model, lengths, trained=False, sample=text_models.declared(plan))
    units = text_models.declared(plan) / len(plan.federation.names)
    layers = public.layers[0] / public.layers[1]

    def whole(seen: float) -> float:
        """All seconds, where one text takes so many to read."""
        taught = (
            units * plan.teachers.epochs * text_models.TRAINED + plan.teachers.per_party * SAYS * plan.queries.limit
        )
        if plan.learner is not None:
            taught = max(taught, plan.learner.steps * plan.learner.expected_batch * text_models.TRAINED * layers)
        own = len(public.queries) * (SAYS + LEARNS * layers * plan.distil.passes) + 2 * len(public.heldout)
        return text_models.seconds(plan, prepared, taught * seen + pace.trial, 1) + own * seen / text_models.at_once()

    spent = pace.text.through(whole)
    return Forecast(
        plan=plan,
        rows=rows,
        epsilon=priced.guarantee.epsilon if priced.private else None,
        trained=0,
        bytes=text_models.traffic(priced, public) + len(plan.federation.names) * asked_bytes(recipe),
        seconds=spent.likely,
        between=(spent.least, spent.most),
        why=text_models.by(lengths),
        memory=memory(recipe, priced),
        clear=plan.exposed,
        assumptions=(text_models.supposed(plan, lengths),),
        warnings=(*warnings, *recipe.doubts()),
        teachers=plan.teachers.per_party,
    )


def needs(recipe: Swing, priced: PricedPlan[SwingPlan], base: Path, cache: Path) -> Needs:
    """The needs that are expected of the run."""
    cells = sum(release.rows * release.columns for release in priced.releases)
    return Needs.of(memory(recipe, priced), text_models.model_bytes(recipe.read) + asked_bytes(recipe), cells)


def memory(recipe: Swing, priced: PricedPlan[SwingPlan]) -> dict[str, int]:
    """Upper bounds of the peak memory of each kind of process, in bytes."""
    plan, public, release = recipe.plan, recipe.read, priced.releases[0]
    found = text_models.memory(priced, public)
    cells = release.rows * release.columns
    logits = 4 * public.tokens * public.longest * plan.distil.micro_batch
    found["coordinator"] += text_models.LOGITS * logits + 20 * text_models.model_bytes(public) + 24 * cells
    found["party node"] += text_models.NODE_BYTES * cells
    found["party training"] += HELD_BYTES * cells * plan.teachers.per_party + ASKED_BYTES * public.tokens
    return found


def _row(plan: SwingPlan, release: Release) -> Row:
    bounds = release.under(DifferencesMechanism)
    # Teachers of like text move the same outcomes: at the most all by all of the clip.
    noise = 2 * bounds.clip * bounds.noise_multiplier * math.sqrt(release.rows * release.columns)
    most = plan.teachers_of_all * bounds.clip
    return Row(release.name, release.rows, 2 * bounds.clip, noise, most, at_most=True)


def _learned(settings: LearnerTable, priced: PricedPlan[SwingPlan]) -> Row:
    """The norm of a batch's clipped gradients if all agreed, beside that of a whole step's noise."""
    release = priced.release(LEARNED)
    assert release is not None
    mechanism = release.under(GradientMechanism)
    noise = mechanism.noise_multiplier * mechanism.sensitivity * mechanism.granularity
    signal = settings.expected_batch * mechanism.clip
    sides = noise * math.sqrt(mechanism.parameters)
    return Row(LEARNED, mechanism.steps, mechanism.clip, sides, signal, at_most=True)


def asked_bytes(recipe: Swing) -> int:
    """Bytes of the questions as one party is sent them: about six for a token's number in JSON, and its outcomes."""
    tokens = len(recipe.read.queries.ids)
    inputs = sum(map(len, set(recipe.read.before)))
    return 6 * inputs + tokens * (6 + 4 * recipe.plan.distil.top * (1 if recipe.read.tokens <= 1 << 16 else 2))


def lengths_of(recipe: Swing) -> Lengths:
    """The lengths of the texts of `[evaluation]`; without it, the most that the model reads."""
    public = recipe.read
    if public.pairs is not None and public.heldout:
        return Lengths(np.sort(np.array([len(row) for row in heldout_rows(public)[:LOOKED_AT]], np.int64)), known=True)
    return Lengths.of(public.tokenizer, [each.text for each in public.heldout], longest=public.longest)
