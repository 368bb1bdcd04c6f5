"""Forecasts what a run of `dped` will cost and what its releases will show.

Only the plan and public data are used: `coordinator.systems.dped.stand_in` stands in for the parties' text,
`coordinator.systems.dped.cost` counts bytes and seconds, and `coordinator.systems.dped.advice` says what to change
where a signal is below its noise. Epsilon is exact; everything else assumes that the parties' text is like the public
text.
"""

import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.joint import JointMechanism, TeacherSignal
from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.thresholded import ThresholdedVotes
from aggregation.mechanisms.vectors import VectorMechanism
from coordinator.forecasting.cost import VALUE_BYTES
from coordinator.forecasting.forecast import Forecast, Row
from coordinator.forecasting.needs import Needs
from coordinator.pricing.release import PricedPlan, Release
from coordinator.systems.dped import advice, cost, releases
from coordinator.systems.dped import stand_in as expected
from coordinator.systems.dped.advice import Outlook
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.recipe import Dped
from coordinator.systems.dped.releases import MOMENTS
from coordinator.systems.dped.spectra import ExpectedSum, expected_counts, expected_moments


def forecast(recipe: Dped, priced: PricedPlan[DpedPlan], base: Path, cache: Path, prepared: float) -> Forecast:
    """Forecast a run. No party is asked, none of their data is read, and nothing is spent.

    base: the folder against which the plan's paths are resolved. Trains up to `expected.FEW_TEACHERS` teachers.
    """
    plan, public = recipe.plan, recipe.read
    stand_in = expected.StandIn.of(plan, public, base, cache)
    begun = time.monotonic()
    counts = expected_counts(stand_in, public, advice.clipping(priced), plan.dped.window)
    counting = (time.monotonic() - begun) / max(1, counts.here)
    signal, teaching, work = None, 0.0, 0.0
    if plan.dped.teaches and plan.dped.private_training is None:
        begun, worked = time.monotonic(), time.process_time()
        signal = expected.teach(plan, public, stand_in, counts.here)
        assert signal.votes is not None
        teaching = (time.monotonic() - begun) / len(signal.votes)
        work = (time.process_time() - worked) / len(signal.votes)
    outlook = outlook_of(priced, counts, signal)
    if isinstance(moments := _mechanism(priced, MOMENTS), VectorMechanism):
        outlook.moments = expected_moments(stand_in, public, moments, plan.dped.window)
    rows = sorted(
        (row for release in priced.releases for row in _rows(release, plan, outlook)),
        key=lambda row: ["training", "votes", "hidden", "moments", "counts"].index(row.name),
    )
    step = cost.step_seconds(public, plan.dped.dimension)
    pace = cost.Pace(prepared, counting, teaching, work, step, cost.start_seconds())
    trained = 0 if signal is None or signal.votes is None else len(signal.votes)
    return Forecast(
        plan=plan,
        rows=tuple(rows),
        epsilon=priced.guarantee.epsilon if priced.private else None,
        trained=trained,
        bytes=cost.traffic(priced, public),
        seconds=cost.seconds(priced, pace, counts.units),
        memory=cost.memory(priced, counts.units, counts.pairs),
        assumptions=_assumptions(stand_in, counts, plan, trained),
        warnings=(
            *recipe.doubts(),
            *advice.warnings({row.name for row in rows if row.drowned}, outlook, stand_in.size is None),
        ),
        clear=_clear(rows, plan),
        teachers=plan.dped.teachers_per_party if plan.dped.teaches else 0,
    )


def _mechanism(priced: PricedPlan[DpedPlan], name: str) -> object:
    release = priced.release(name)
    return None if release is None else release.mechanism


def outlook_of(priced: PricedPlan[DpedPlan], counts: ExpectedSum, signal: TeacherSignal | None) -> Outlook:
    """The expected signal and noise of the plan's releases."""
    plan, outlook = priced.plan, Outlook(priced, counts)
    parties = len(plan.federation.names)
    for release in priced.releases:
        match release.name:
            case releases.COUNTS:
                mechanism = release.under(CountsMechanism)
                outlook.counts_noise = mechanism.release(np.zeros(1, dtype=np.int64), parties).sigma
            case releases.MOMENTS:
                moments = release.under(VectorMechanism)
                outlook.moments_noise = moments.release(np.zeros(1, dtype=np.int64), parties).sigma
            case releases.VOTES:
                tested = release.under(ThresholdedVotes)
                outlook.voting = expected.Voting(tested.classes, tested.noise, tested=tested)
            case releases.ANSWERS if release.form == Form.SUMMED:
                joint = release.under(JointMechanism)
                nothing = joint.release(np.zeros((1, joint.columns), dtype=np.int64), parties)
                if nothing.votes is not None:
                    outlook.voting = expected.Voting(joint.classes, nothing.votes.sigma, plan.dped.threshold)
                if nothing.hidden is not None and joint.hidden is not None and signal is not None:
                    assert signal.states is not None
                    outlook.hidden_noise = nothing.hidden.sigma
                    outlook.hidden = expected.hidden_signal(signal.states, joint.hidden, plan.teachers)
    if outlook.voting is not None and signal is not None:
        outlook.votes = signal.votes
    return outlook


def _rows(release: Release, plan: DpedPlan, outlook: Outlook) -> list[Row]:
    match release.name:
        case releases.TRAINING:
            gradients = release.under(GradientMechanism)
            assert plan.dped.private_training is not None
            noise = gradients.noise_multiplier * gradients.clip * math.sqrt(gradients.parameters)
            most = plan.dped.private_training.batch * gradients.clip
            free = [Row(name, plan.queries, None, None, None) for name in plan.dped.signals]
            return [Row("training", gradients.steps, gradients.clip, noise, most, at_most=True), *free]
        case releases.COUNTS:
            counts = release.under(CountsMechanism)
            clear = outlook.counts.directions(outlook.counts_noise, plan.dped.dimension)
            signal = outlook.counts.signal()
            return [Row("counts", 1, counts.clip, outlook.counts_noise, signal, directions=clear)]
        case releases.MOMENTS:
            vectors = release.under(VectorMechanism)
            assert outlook.moments is not None
            clear = outlook.moments.directions(outlook.moments_noise, plan.dped.dimension)
            signal = outlook.moments.signal()
            return [Row("moments", 1, vectors.clip, outlook.moments_noise, signal, directions=clear)]
        case releases.VOTES:
            return [_votes_row(plan, outlook)]
        case releases.ANSWERS if release.form == Form.SUMMED:
            joint = release.under(JointMechanism)
            rows = [] if joint.votes is None else [_votes_row(plan, outlook)]
            if joint.hidden is not None:
                sensitivity = 2 * joint.hidden.clip * math.sqrt(joint.hidden.layers)
                signal = math.sqrt(float((outlook.hidden**2).mean()))
                rows.append(Row("hidden", plan.queries, sensitivity, outlook.hidden_noise, signal))
            return rows
    return []


def _votes_row(plan: DpedPlan, outlook: Outlook) -> Row:
    assert outlook.voting is not None
    ranked = outlook.ranked()
    accuracy, answered = outlook.voting.labels(ranked, plan.run.seed)
    favourite = float(ranked[:, 0].mean())
    return Row("votes", plan.queries, math.sqrt(2), outlook.voting.noise, favourite, accuracy, answered)


def _assumptions(stand_in: expected.StandIn, counts: ExpectedSum, plan: DpedPlan, trained: int) -> tuple[str, ...]:
    unit = "pair" if stand_in.pairs else "user" if plan.privacy.unit == "user" else plan.privacy.record
    size = f"{counts.units:,} {unit}s in all, " + (
        f"as many as {stand_in.source} has: set [privacy] declared_size if it is not so"
        if stand_in.size is None
        else "as the plan declares"
    )
    found = [f'supposing that the parties\' text is like the public text of "{stand_in.source}", {size}']
    if 0 < trained < plan.teachers and not plan.dped.private_training:
        found.append(f"votes and hidden states of {plan.teachers} teachers are extrapolated from {trained}")
    return tuple(found)


def _clear(rows: Sequence[Row], plan: DpedPlan) -> tuple[str, ...]:
    """Which part of the counts is above the noise, in words."""
    sentences = []
    for row in rows:
        if row.directions:
            most = " or more" if row.directions >= plan.dped.dimension else ""
            what = "direction of the text stands" if row.directions == 1 else "directions of the text stand"
            sentences.append(f"of the {row.name}, about {row.directions}{most} {what} above the noise")
    return tuple(sentences)


def needs(recipe: Dped, priced: PricedPlan[DpedPlan], base: Path, cache: Path) -> Needs:
    """What the run is expected to need (`coordinator.systems.dped.cost`) if the parties' text is like the public
    text.
    """
    plan, public = recipe.plan, recipe.read
    stand_in = expected.StandIn.of(plan, public, base, cache)
    counts = expected_counts(stand_in, public, advice.clipping(priced), plan.dped.window)
    memory = cost.memory(priced, counts.units, counts.pairs)
    cells = sum(release.rows * release.columns for release in priced.releases)
    artefacts = cost.traffic(priced, public) // len(plan.federation.names) - cells * VALUE_BYTES
    return Needs.of(memory, artefacts, cells)
