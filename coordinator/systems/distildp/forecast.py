"""Forecasts what a DistilDP run will cost, and how its noise compares with its signals.

Only the plan, the public model and the lengths of the public text are used; made-up batches of such lengths are timed.
Epsilon is exact.
"""

import math
from pathlib import Path
from typing import Final

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.mechanism import Form
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.forecasting.needs import Needs
from coordinator.forecasting.pace import Lengths, pace_of
from coordinator.language_models.counts import CODES, TOKENS
from coordinator.pricing.release import PricedPlan, Release, rounded_up
from coordinator.systems.distildp.plan import DistilDpPlan
from coordinator.systems.distildp.recipe import DistilDp
from coordinator.text_models import forecast as text_models

WRITES: Final = 1.9
"""Time of writing a token, with those before it kept, over that of reading it in a text (docs/results/distildp.md)."""
GRADES, LEARNS = 2.2, 5.3
"""Time of saying what might stand in a token's place, and of a student's update for it, over that of reading it."""
MEASURES: Final = 4.9
"""Time of measuring student, teacher, floor and public model on a text, over that of the teacher's reading it."""
HELD_BYTES, GRADED_BYTES = 12, 24
"""Bytes of a number that parties' teachers said: at the coordinator, which holds those of all parties, and at a party
while it is made.
"""
TARGET_BYTES: Final = 4
"""Bytes of one kept outcome of a token at the coordinator: its number and its probability."""
TYPICAL: Final = 0.7
"""How much of a unit's clip its counts fill, on average: a text repeats some tokens."""


def forecast(recipe: DistilDp, priced: PricedPlan[DistilDpPlan], base: Path, cache: Path, prepared: float) -> Forecast:
    """Forecast a run. No party is asked, none of their data is read, and nothing is spent."""
    plan, public = recipe.plan, recipe.read
    rows = tuple(_row(priced, release) for release in priced.releases if release.form != Form.SAID)
    lengths = lengths_of(recipe)
    pace = pace_of(public.model, lengths, trained=True, sample=text_models.sampled(plan), language=True)
    looked, sums = text_models.trained_sums(plan)

    def whole(seen: float) -> float:
        """All seconds, where one text takes so many to train on."""
        trained = text_models.seconds(plan, prepared, looked * seen + pace.trial, sums + len(rows) - 1)
        return trained + _after(plan, recipe, seen) / text_models.at_once()

    spent = pace.text.through(whole)
    return Forecast(
        plan=plan,
        rows=rows,
        epsilon=priced.guarantee.epsilon if priced.private else None,
        trained=0,
        bytes=text_models.traffic(priced, public),
        seconds=spent.likely,
        between=(spent.least, spent.most),
        why=text_models.by(lengths),
        memory=memory(recipe, priced),
        clear=(_parts(plan),),
        assumptions=(text_models.supposed(plan, lengths),),
        warnings=_warnings(rows, priced),
    )


def needs(recipe: DistilDp, priced: PricedPlan[DistilDpPlan], base: Path, cache: Path) -> Needs:
    """The needs that are expected of the run: at the coordinator also the texts, and what is said of every token."""
    plan, public = recipe.plan, recipe.read
    cells = sum(release.rows * release.columns for release in priced.releases)
    written = plan.generation.texts * (plan.generation.longest or public.longest)
    stored = written * (4 + TARGET_BYTES * plan.distil.top)
    found = Needs.of(memory(recipe, priced), text_models.model_bytes(public), cells)
    return Needs(found.memory, found.disk + stored, found.party_memory, found.party_disk)


def memory(recipe: DistilDp, priced: PricedPlan[DistilDpPlan]) -> dict[str, int]:
    """Upper bounds of the peak memory of each kind of process, in bytes."""
    plan, public = recipe.plan, recipe.read
    found = text_models.memory(priced, public)
    longest = plan.generation.longest or public.longest
    logits = 4 * public.tokens * longest * max(plan.distil.micro_batch, 1)
    width = text_models.told(public.model.config, ("hidden_size", "n_embd", "d_model"), 1024)
    kept = 8 * plan.generation.batch * longest * width * public.layers[1]
    said = 4 * text_models.activations(plan, public) * public.tokens // max(1, 20 * width)
    student = 5 * text_models.model_bytes(public) * 4
    said_here = sum(release.rows * release.columns for release in priced.releases if release.form == Form.SAID)
    held = len(plan.federation.names) * HELD_BYTES * said_here
    found["coordinator"] += max(kept, text_models.LOGITS * logits + student, held)
    found["party training"] += said + (GRADED_BYTES * said_here + kept if said_here else 0)
    return found


def lengths_of(recipe: DistilDp) -> Lengths:
    """The lengths of the texts of `[evaluation]`, with their openings; without it, the most that the model reads."""
    public = recipe.read
    opening = max(map(len, public.openings))
    texts = [each.text for each in public.heldout]
    found = Lengths.of(public.tokenizer, texts, longest=public.longest)
    return found if not found.known else Lengths((found.values + opening).clip(max=public.longest), known=True)


def _after(plan: DistilDpPlan, recipe: DistilDp, seen: float) -> float:
    """Seconds of one core for texts, targets, the student and measuring, where training on one text takes `seen`."""
    reading = seen / text_models.TRAINED
    layers = recipe.read.layers[0] / recipe.read.layers[1]
    teachers = len(plan.federation.names) if plan.dp_sgd.form == "local" else 1
    taught = plan.generation.texts * (WRITES + GRADES * teachers + LEARNS * layers * plan.distil.passes)
    return reading * (taught + MEASURES * len(recipe.read.heldout))


def _row(priced: PricedPlan[DistilDpPlan], release: Release) -> Row:
    plan = priced.plan
    units = plan.privacy.declared_size or 1
    if release.name in (TOKENS, CODES):
        counts = release.under(CountsMechanism)
        noise = counts.noise_multiplier * counts.clip * math.sqrt(release.columns)
        filled = 1.0 if release.name == CODES else TYPICAL
        # Counts of texts agree at least in what all texts have in common: as if spread over all cells.
        signal = units * counts.clip * filled / (math.sqrt(release.columns) if release.name == CODES else 3.0)
        return Row(release.name, 1, counts.clip, noise, signal, at_most=True)
    mechanism = release.under(GradientMechanism)
    noise = mechanism.noise_multiplier * mechanism.sensitivity * mechanism.granularity
    batch = plan.dp_sgd.batch if release.form == Form.STEPPED else plan.dp_sgd.batch / len(plan.federation.names)
    signal = batch * mechanism.clip
    return Row(
        release.name, mechanism.steps, mechanism.clip, noise * math.sqrt(mechanism.parameters), signal, at_most=True
    )


def _parts(plan: DistilDpPlan) -> str:
    parts = [
        f"counts of {what} {epsilon:.2g}"
        for what, epsilon in (("tokens", plan.floor_epsilon), ("codes", plan.codes_epsilon))
        if epsilon
    ]
    if not parts:
        return "All of epsilon is the teacher's."
    return f"Of epsilon, alone: {', '.join(parts)}; what is left together with these is the teacher's."


def _warnings(rows: tuple[Row, ...], priced: PricedPlan[DistilDpPlan]) -> tuple[str, ...]:
    found = []
    for row in rows:
        if not row.drowned:
            continue
        if row.name in (TOKENS, CODES):
            found.append(
                f"The noise on the counts of {row.name} is {1 / (row.ratio or 1):,.0f} times all that they can say. "
                f"Give them more of epsilon ([{'floor' if row.name == TOKENS else 'codes'}] epsilon), or ask for none. "
                f"This run would cost epsilon {rounded_up(priced.guarantee.epsilon, 2)} all the same."
            )
        else:
            advice = ["more units a step ([dp_sgd] batch)", "fewer steps", "a larger epsilon"]
            found.append(text_models.drowning(row, "the sum of its gradients at the most", advice, priced))
    return tuple(found)
