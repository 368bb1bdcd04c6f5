"""A forecast: what a run will cost and what its releases will show, before a budget is spent.

Each system's own `forecast` makes it from the plan and public data alone. Epsilon is exact; everything else assumes
that the parties' text is like the public text.
"""

from dataclasses import asdict, dataclass
from typing import Any, Final

from aggregation.mechanisms.mechanism import HEURISTIC
from coordinator.plan.plan import Plan
from coordinator.pricing.release import rounded_up, shares

DROWNED_RATIO, DROWNED_ACCURACY = 1 / 3, 0.2
"""A signal counts as drowned below either, or where counts have no direction above the noise."""

ACCURACY: Final = "expected label accuracy"
"""The heading of a column that only a plan with labels has."""


@dataclass(frozen=True, slots=True)
class Row:
    """One signal of a release with its noise. Lengths are in the signal's own units, None where there are none.

    votes: signal is the mean number of votes for the class with most votes; noise is on one class. hidden: signal is
    the root mean square of a number in the sum of clipped vectors, with the public reference's part in it. counts:
    signal is the root mean square of the largest 1 percent of cells; directions are those of the residual against
    independence that are above the noise's edge. moments: signal is the root mean square of second moments along public
    directions; directions likewise. training: signal is the norm that a batch's clipped gradients would have if all
    agreed, an upper bound; noise is the norm of the whole gradient's noise.

    queries: how many times something is asked of all parties. sensitivity: L2, of one unit. ratio: signal over noise.
    at_most: the signal may be smaller. accuracy: the expected share of right labels among those answered; `answered`:
    the share of queries answered.
    """

    name: str
    queries: int
    sensitivity: float | None
    noise: float | None
    signal: float | None
    accuracy: float | None = None
    answered: float | None = None
    directions: int | None = None
    at_most: bool = False

    @property
    def ratio(self) -> float | None:
        """Signal over noise, None where no noise is added."""
        return None if not self.noise or self.signal is None else self.signal / self.noise

    @property
    def drowned(self) -> bool:
        """Whether the signal is so far below the noise that a student would learn next to nothing from it."""
        low = self.ratio is not None and self.ratio < DROWNED_RATIO
        wrong = self.accuracy is not None and self.accuracy < DROWNED_ACCURACY
        return low or wrong or self.directions == 0


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of a run.

    epsilon: None where the plan's noise can be reproduced, and where it has no guarantee. trained: number of stand-in
    teachers. bytes: exchanged with all parties. seconds: on a machine like this one. between: the least and the most
    seconds that it may come to, None where they are not known; why: by what they differ. memory: bytes, for each kind
    of process. clear, assumptions, warnings: sentences on what is above the noise, on what was assumed, on what to
    change. teachers: of one party, where it has any.
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
    clear: tuple[str, ...] = ()
    teachers: int = 0
    between: tuple[float, float] | None = None
    why: str = ""

    def __repr__(self) -> str:
        price = "no guarantee" if self.epsilon is None else f"epsilon {rounded_up(self.epsilon)}"
        names = ", ".join(f"{row.name}{' (drowned)' if row.drowned else ''}" for row in self.rows)
        return f"<forecast of {self.plan.run.name}: {price}, about {_duration(self.seconds)}; {names}>"

    def row(self, name: str) -> Row:
        """The row with that name. Raises `KeyError`."""
        return {row.name: row for row in self.rows}[name]


def headline(found: Forecast) -> str:
    """One line that describes the run."""
    plan = found.plan
    parties = len(plan.federation.names)
    who = f"{parties} {'party' if parties == 1 else 'parties'}"
    if found.teachers:
        own = len(plan.summing)
        who += f"{f', {own} of them' if own < parties else ''} x {found.teachers} teachers"
    unit = "unit = user" if plan.privacy.unit == "user" else f"record = {plan.privacy.record}"
    trust = plan.privacy.trust.replace("-", " ")
    return f"{plan.run.recipe} · {who} · {unit} · {trust}, {shares(plan)} noise shares of {len(plan.summing)}"


def table(found: Forecast) -> tuple[list[str], list[list[str]]]:
    """Headings and cells to be shown, one row a signal."""
    labelled = any(row.accuracy is not None for row in found.rows)  # else a column would hold nothing
    heads = ["release", "queries", "sensitivity", "noise", "signal/noise", *[ACCURACY] * labelled, ""]
    return heads, [
        [
            row.name,
            f"{row.queries:,}",
            _figure(row.sensitivity),
            _figure(row.noise),
            ("at most " if row.at_most else "") + _figure(row.ratio),
            *[_accuracy(row)] * labelled,
            "<- drowned" if row.drowned else "free" if row.noise is None else "",
        ]
        for row in found.rows
    ]


def summary(found: Forecast) -> list[str]:
    """The paragraphs below the table: the price, the costs, the assumptions, and the warnings."""
    plan = found.plan
    price = "no guarantee: the plan's noise can be reproduced" if plan.privacy.guarantee else HEURISTIC
    if found.epsilon is not None:
        price = f"epsilon {rounded_up(found.epsilon, 2)} of {plan.privacy.epsilon:g} at delta {plan.privacy.delta:g}"
    costs = f"about {_duration(found.seconds)}{_between(found)}, {_size(found.bytes)} over the wire"
    held = ", ".join(f"{_size(amount)} a {who}" for who, amount in found.memory.items() if who != "coordinator")
    memory = f"memory up to {_size(found.memory['coordinator'])} for the coordinator, {held} process"
    return [f"{price}        {costs}", memory, *found.clear, *found.assumptions, *found.warnings]


def record(found: Forecast) -> dict[str, Any]:
    """The forecast for other programs, as JSON values."""
    return {
        "releases": [asdict(row) | {"ratio": row.ratio, "drowned": row.drowned} for row in found.rows],
        "epsilon": found.epsilon,
        "heuristic": not found.plan.privacy.guarantee,
        "delta": None if found.epsilon is None else found.plan.privacy.delta,
        "bytes": found.bytes,
        "seconds": found.seconds,
        "between": found.between,
        "memory": found.memory,
        "assumptions": list(found.assumptions),
        "warnings": list(found.warnings),
    }


def _accuracy(row: Row) -> str:
    if row.accuracy is None:
        return "no labels"
    share = "" if row.answered is None or row.answered > 0.999 else f" of {100 * row.answered:.0f}% answered"
    return f"{100 * row.accuracy:.{0 if row.accuracy >= 0.1 else 1}f}%{share}"


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _between(found: Forecast) -> str:
    ends = [] if found.between is None else list(dict.fromkeys(map(_duration, found.between)))
    return f" ({ends[0]} to {ends[1]}, {found.why})" if len(ends) == 2 else ""


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def _size(amount: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6)):
        if amount >= size:
            return f"{amount / size:.{0 if amount >= 10 * size else 1}f} {unit}"
    return f"{max(1, round(amount / 1e3))} kB"
