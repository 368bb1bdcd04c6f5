"""What a run will cost and what its releases will show, said before a budget is spent.

From the plan and public data alone: `coordinator.expected` supposes, `coordinator.cost` counts, `coordinator.advice`
says what to change where a signal drowns. Epsilon is exact; the rest supposes that parties' text is like the public.
"""

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from aggregation.counts import CountsMechanism
from aggregation.gradients import GradientMechanism
from aggregation.joint import JointMechanism, TeacherSignal
from aggregation.thresholded import ThresholdedVotes
from aggregation.vectors import VectorMechanism
from coordinator import advice, cost, expected
from coordinator.advice import Outlook
from coordinator.directions import ExpectedSum, expected_counts, expected_moments
from coordinator.plan import Plan
from coordinator.public import prepare
from coordinator.terms import MOMENTS, Bound, Release, bind, rounded_up, shares

DROWNED_RATIO, DROWNED_ACCURACY = 1 / 3, 0.2
"""Below either, or where counts have no direction above the noise, a signal is said to drown."""


@dataclass(frozen=True, slots=True)
class Row:
    """One signal of a release, as a person judges it. Lengths are in the signal's own units, None where there are none.

    votes: signal is the mean number of votes for a query's favourite; noise is on a class.
    hidden: signal is the root mean square of a number of the sum of clipped vectors, the public reference's part in it.
    counts: signal is the root mean square of the 1 percent largest cells; directions are those of the residual against
    independence that stand above the noise's edge (`coordinator.directions`).
    moments: signal is the root mean square of second moments along public directions; directions likewise.
    training: signal is the norm that a batch's clipped gradients would have if they all agreed, at most; noise is that
    of the whole gradient.

    queries: how often something is asked of all parties. sensitivity: L2, of one unit. ratio: signal over noise.
    accuracy: the expected share of right labels among those answered, a share `answered` of the queries.
    """

    name: str
    queries: int
    sensitivity: float | None
    noise: float | None
    signal: float | None
    accuracy: float | None = None
    answered: float | None = None
    directions: int | None = None

    @property
    def ratio(self) -> float | None:
        """Signal over noise, None where nothing is noised."""
        return None if not self.noise or self.signal is None else self.signal / self.noise

    @property
    def drowned(self) -> bool:
        """Whether a student would learn next to nothing from it."""
        low = self.ratio is not None and self.ratio < DROWNED_RATIO
        wrong = self.accuracy is not None and self.accuracy < DROWNED_ACCURACY
        return low or wrong or self.directions == 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is to be expected of a run. epsilon: None where the plan's noise can be reproduced. trained: stand-in
    teachers. bytes: exchanged with all parties. seconds: of a machine like this one. memory: bytes of each kind of
    process. assumptions, warnings: sentences.
    """

    plan: Plan
    rows: tuple[Row, ...]
    epsilon: float | None
    trained: int
    bytes: int
    seconds: float
    memory: dict[str, int]
    assumptions: tuple[str, ...]
    warnings: tuple[str, ...]

    def row(self, name: str) -> Row:
        """The row of that name. Raises `KeyError`."""
        return {row.name: row for row in self.rows}[name]


def forecast(plan: Plan, base: Path, cache: Path) -> Forecast:
    """Forecast a run; nothing of the parties is read or asked, and nothing is spent.

    base: the folder that the plan's paths start at. Takes about as long as preparing the run, and up to
    `expected.FEW_TEACHERS` teachers more. Raises `PlanError` and `DataError` as the run itself would.
    """
    begun = time.monotonic()
    public = prepare(plan, base, cache)
    prepared = time.monotonic() - begun
    bound = bind(plan, public)
    stand_in = expected.StandIn.of(plan, public, base, cache)
    begun = time.monotonic()
    counts = expected_counts(stand_in, public, advice.clipping(bound), plan.dped.window)
    counting = (time.monotonic() - begun) / max(1, counts.here)
    signal, teaching, work = None, 0.0, 0.0
    if plan.dped.teaches and plan.dped.private_training is None:
        begun, worked = time.monotonic(), time.process_time()
        signal = expected.teach(plan, public, stand_in, counts.here)
        assert signal.votes is not None
        teaching = (time.monotonic() - begun) / len(signal.votes)
        work = (time.process_time() - worked) / len(signal.votes)
    outlook = outlook_of(bound, counts, signal)
    if isinstance(moments := _mechanism(bound, MOMENTS), VectorMechanism):
        outlook.moments = expected_moments(stand_in, public, moments, plan.dped.window)
    rows = sorted(
        (row for release in bound.releases for row in _rows(release, plan, outlook)),
        key=lambda row: ["training", "votes", "hidden", "moments", "counts"].index(row.name),
    )
    step = cost.step_seconds(public, plan.dped.dimension)
    pace = cost.Pace(prepared, counting, teaching, work, step, cost.start_seconds())
    trained = 0 if signal is None or signal.votes is None else len(signal.votes)
    return Forecast(
        plan=plan,
        rows=tuple(rows),
        epsilon=bound.guarantee.epsilon if bound.private else None,
        trained=trained,
        bytes=cost.traffic(bound, public),
        seconds=cost.seconds(bound, pace, counts.units),
        memory=cost.memory(bound, counts.units, counts.pairs),
        assumptions=_assumptions(stand_in, counts, plan, trained),
        warnings=advice.warnings({row.name for row in rows if row.drowned}, outlook, stand_in.size is None),
    )


def _mechanism(bound: Bound, name: str) -> object:
    release = bound.release(name)
    return None if release is None else release.mechanism


def outlook_of(bound: Bound, counts: ExpectedSum, signal: TeacherSignal | None) -> Outlook:
    """What the plan's releases are expected to be made of."""
    plan, outlook = bound.plan, Outlook(bound, counts)
    parties = len(plan.federation.names)
    for release in bound.releases:
        match release.mechanism:
            case CountsMechanism() as mechanism:
                outlook.counts_noise = mechanism.release(np.zeros(1, dtype=np.int64), parties).sigma
            case VectorMechanism() as moments:
                outlook.moments_noise = moments.release(np.zeros(1, dtype=np.int64), parties).sigma
            case ThresholdedVotes() as tested:
                outlook.voting = expected.Voting(tested.classes, tested.noise, tested=tested)
            case JointMechanism() as joint:
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


def _rows(release: Release, plan: Plan, outlook: Outlook) -> list[Row]:
    match release.mechanism:
        case GradientMechanism() as gradients:
            assert plan.dped.private_training is not None
            noise = gradients.noise_multiplier * gradients.clip * math.sqrt(gradients.parameters)
            most = plan.dped.private_training.batch * gradients.clip
            free = [Row(name, plan.queries, None, None, None) for name in plan.dped.signals]
            return [Row("training", gradients.steps, gradients.clip, noise, most), *free]
        case CountsMechanism() as counts:
            clear = outlook.counts.directions(outlook.counts_noise, plan.dped.dimension)
            signal = outlook.counts.signal()
            return [Row("counts", 1, counts.clip, outlook.counts_noise, signal, directions=clear)]
        case VectorMechanism() as vectors:
            assert outlook.moments is not None
            clear = outlook.moments.directions(outlook.moments_noise, plan.dped.dimension)
            signal = outlook.moments.signal()
            return [Row("moments", 1, vectors.clip, outlook.moments_noise, signal, directions=clear)]
        case ThresholdedVotes():
            return [_votes_row(plan, outlook)]
        case JointMechanism() as joint:
            rows = [] if joint.votes is None else [_votes_row(plan, outlook)]
            if joint.hidden is not None:
                sensitivity = 2 * joint.hidden.clip * math.sqrt(joint.hidden.layers)
                signal = math.sqrt(float((outlook.hidden**2).mean()))
                rows.append(Row("hidden", plan.queries, sensitivity, outlook.hidden_noise, signal))
            return rows
    return []


def _votes_row(plan: Plan, outlook: Outlook) -> Row:
    assert outlook.voting is not None
    ranked = outlook.ranked()
    accuracy, answered = outlook.voting.labels(ranked, plan.run.seed)
    favourite = float(ranked[:, 0].mean())
    return Row("votes", plan.queries, math.sqrt(2), outlook.voting.noise, favourite, accuracy, answered)


def _assumptions(stand_in: expected.StandIn, counts: ExpectedSum, plan: Plan, trained: int) -> tuple[str, ...]:
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


def headline(found: Forecast) -> str:
    """One line on what the run is."""
    plan = found.plan
    parties = len(plan.federation.names)
    who = f"{parties} {'party' if parties == 1 else 'parties'}"
    if plan.dped.teaches:
        who += f" x {plan.dped.teachers_per_party} teachers"
    unit = "unit = user" if plan.privacy.unit == "user" else f"record = {plan.privacy.record}"
    trust = plan.privacy.trust.replace("-", " ")
    return f"{plan.run.recipe} · {who} · {unit} · {trust}, {shares(plan)} noise shares of {parties}"


def table(found: Forecast) -> tuple[list[str], list[list[str]]]:
    """Headings and cells for a person, one row a signal."""
    heads = ["release", "queries", "sensitivity", "noise", "signal/noise", "expected label accuracy", ""]
    return heads, [
        [
            row.name,
            f"{row.queries:,}",
            _figure(row.sensitivity),
            _figure(row.noise),
            ("at most " if row.name == "training" else "") + _figure(row.ratio),
            _accuracy(row),
            "<- drowned" if row.drowned else "free" if row.noise is None else "",
        ]
        for row in found.rows
    ]


def summary(found: Forecast) -> list[str]:
    """What stands below the table: the price, the costs, what was supposed, and warnings, a paragraph each."""
    plan = found.plan
    price = "no guarantee: the plan's noise can be reproduced"
    if found.epsilon is not None:
        price = f"epsilon {rounded_up(found.epsilon, 2)} of {plan.privacy.epsilon:g} at delta {plan.privacy.delta:g}"
    costs = f"about {_duration(found.seconds)}, {_size(found.bytes)} over the wire"
    held = ", ".join(f"{_size(amount)} a {who}" for who, amount in found.memory.items() if who != "coordinator")
    memory = f"memory up to {_size(found.memory['coordinator'])} for the coordinator, {held} process"
    return [f"{price}        {costs}", memory, *_clear(found), *found.assumptions, *found.warnings]


def record(found: Forecast) -> dict[str, Any]:
    """The same for programs."""
    return {
        "releases": [asdict(row) | {"ratio": row.ratio, "drowned": row.drowned} for row in found.rows],
        "epsilon": found.epsilon,
        "delta": None if found.epsilon is None else found.plan.privacy.delta,
        "bytes": found.bytes,
        "seconds": found.seconds,
        "memory": found.memory,
        "assumptions": list(found.assumptions),
        "warnings": list(found.warnings),
    }


def _accuracy(row: Row) -> str:
    if row.accuracy is None:
        return "-"
    share = "" if row.answered is None or row.answered > 0.999 else f" of {100 * row.answered:.0f}% answered"
    return f"{100 * row.accuracy:.{0 if row.accuracy >= 0.1 else 1}f}%{share}"


def _clear(found: Forecast) -> list[str]:
    """What of the counts stands above the noise, in words."""
    sentences = []
    for row in found.rows:
        if row.directions:
            most = " or more" if row.directions >= found.plan.dped.dimension else ""
            what = "direction of the text stands" if row.directions == 1 else "directions of the text stand"
            sentences.append(f"of the {row.name}, about {row.directions}{most} {what} above the noise")
    return sentences


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _size(amount: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if amount >= size:
            return f"{amount / size:.{0 if amount >= 10 * size else 1}f} {unit}"
    return f"{max(1, round(amount / 1e3))} kB"
