"""Advice for plans whose signal is below its noise. Every change that is named was first tried on the expected
signal.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from dp_accounting import GaussianDpEvent
from numpy.typing import NDArray

from aggregation.accounting.price import price
from aggregation.arrays import IntArray
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.vectors import VectorMechanism
from coordinator.errors import PlanError
from coordinator.pricing.priced_plan import price_plan
from coordinator.pricing.release import SAMPLER_SHARE, PricedPlan
from coordinator.systems.dped.methods import changed
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.recipe import Dped
from coordinator.systems.dped.releases import COUNTS, TRAINING, parts
from coordinator.systems.dped.spectra import ExpectedSum, edge
from coordinator.systems.dped.stand_in import Voting, ranked_votes

MOST_TEACHERS = 5000
LARGEST_EPSILON = 100.0
SMALLEST_VOCABULARY = 50

_HALF, _MOST = 0.5, 0.9
_SOME_QUERIES = 400  # enough to estimate the accuracy of all
_GROWTH = 1.2
_SIGMA = 1000.0  # grid units: noise that is never drawn


@dataclass(slots=True)
class Outlook:
    """The expected signal and noise of a plan's releases.

    counts: expected also where the plan does not release any, for comparison; counts_noise: standard deviation on a
    cell. moments, moments_noise: likewise, but only where they are released. votes: those of the stand-in teachers,
    [trained, queries]. hidden: of the sum, as `hidden_signal` says, [queries]; hidden_noise: on one number.
    """

    priced: PricedPlan[DpedPlan]
    counts: ExpectedSum
    counts_noise: float = math.nan
    moments: ExpectedSum | None = None
    moments_noise: float = math.nan
    voting: Voting | None = None
    votes: IntArray | None = None
    hidden: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))
    hidden_noise: float = math.nan

    def ranked(self, teachers: int | None = None, every: int = 1) -> IntArray:
        """Expected votes [queries, teachers], most first, of the plan's teachers or of the given number, on every n-th
        query.
        """
        assert self.votes is not None
        plan = self.priced.plan
        return ranked_votes(self.votes[:, ::every], teachers or plan.teachers, plan.classes, plan.run.seed)

    def accuracy(self, queries: int) -> float:
        """Expected accuracy of the labels if only the plan's first queries, so many, were asked at the same price."""
        assert self.voting is not None
        plan = self.priced.plan
        quieter = self.voting.louder(math.sqrt(queries / plan.queries))
        return quieter.labels(self.ranked()[:queries], plan.run.seed)[0]

    def hidden_ratio(self, queries: int) -> float:
        """Signal over noise of the hidden states if only the first queries, so many, were asked at the same price."""
        signal = math.sqrt(float((self.hidden[:queries] ** 2).mean()))
        return signal / (self.hidden_noise * math.sqrt(queries / self.priced.plan.queries))


def clipping(priced: PricedPlan[DpedPlan]) -> CountsMechanism:
    """How counts are clipped under the plan, or would be if it released any."""
    release = priced.release(COUNTS)
    if release is not None:
        return release.under(CountsMechanism)
    settings = priced.plan.dped
    clip = min(settings.clip, 1.0) if priced.plan.privacy.record == "pair" else settings.clip
    return CountsMechanism(clip, settings.levels, _SIGMA / settings.levels, 1)


def warnings(drowned: set[str], outlook: Outlook, guessed: bool) -> tuple[str, ...]:
    """For each signal below its noise, one sentence that says so and one that says what would help.

    drowned: names of the forecast's rows whose signal is below the noise. guessed: whether the size of the parties'
    text is a guess.
    """
    found = []
    if "votes" in drowned:
        found.append(_votes(outlook))
    if "hidden" in drowned:
        found.append(_hidden(outlook))
    if drowned & {"votes", "hidden"}:
        found.append(_instead(outlook))
    if "counts" in drowned:
        found.append(_company("counts", outlook.counts, outlook.counts_noise, outlook, guessed))
    if "moments" in drowned and outlook.moments is not None:
        found.append(_company("moments", outlook.moments, outlook.moments_noise, outlook, guessed))
    if "training" in drowned:
        found.append(_training(outlook.priced))
    return tuple(sentence for sentence in found if sentence)


def _votes(outlook: Outlook) -> str:
    plan, voting = outlook.priced.plan, outlook.voting
    assert voting is not None
    now = outlook.accuracy(plan.queries)
    aim = _HALF if now < _HALF - 0.1 else _MOST
    ways = []
    queries = fewer(plan.queries, lambda number: outlook.accuracy(number) >= aim)
    if queries:
        ways.append(f"about {_counted(queries)} would give {100 * outlook.accuracy(queries):.0f}%")
    own = parts(plan).get("votes", 1.0)
    alone = voting.louder(math.sqrt(own)).labels(outlook.ranked(), plan.run.seed)[0]
    if own < 1 and alone >= aim:
        ways.append(f'signals = ["votes"] would give {100 * alone:.0f}%')
    every = max(1, plan.queries // _SOME_QUERIES)
    teachers = _more(
        plan.teachers,
        lambda number: voting.labels(outlook.ranked(number, every), plan.run.seed)[0] >= aim,
    )
    if teachers:
        each = "each with as much text as now"
        ways.append(f"about {teachers:,} teachers in all, {each}, would give {100 * aim:.0f}%")
    return _said(f"votes drown in this noise: {100 * now:.{0 if now >= 0.1 else 1}f}% of labels would be right.", ways)


def _counted(queries: int) -> str:
    return "1 query" if queries == 1 else f"{queries:,} queries"


def _hidden(outlook: Outlook) -> str:
    plan = outlook.priced.plan
    now = outlook.hidden_ratio(plan.queries)
    ways = []
    queries = fewer(plan.queries, lambda number: outlook.hidden_ratio(number) >= 1)
    if queries:
        ways.append(f"about {_counted(queries)} would make them equal")
    if now > 0 and plan.teachers / now <= MOST_TEACHERS:
        teachers = _readable(math.ceil(plan.teachers / now), up=True)
        ways.append(f"about {teachers:,} teachers in all, each with as much text as now, would make them equal")
    return _said(f"hidden states drown in this noise: they are {now:.2f} times as large.", ways)


def _instead(outlook: Outlook) -> str:
    """Whether counts alone would show more than the teachers do, at the same budget."""
    plan = outlook.priced.plan
    try:
        wanted = changed(plan, signals=["counts"], threshold=None, noise_at="parties", private_training=None)
        alone = price_plan(Dped(wanted, None))
    except (PlanError, ValueError):
        return ""
    mechanism = clipping(alone)
    parties = len(plan.federation.names)
    sigma = mechanism.release(np.zeros(1, dtype=np.int64), parties).sigma
    clear = outlook.counts.directions(sigma, plan.dped.dimension)
    if not clear:
        return ""
    what = "direction" if clear == 1 else "directions"
    return (
        f'In place of teachers, signals = ["counts"] would show about {clear} {what} of the text, and ["moments"] says '
        "the same in far fewer numbers: forecast it."
    )


def _company(name: str, company: ExpectedSum, noise: float, outlook: Outlook, guessed: bool) -> str:
    """Advice for counts or moments without a direction above the noise."""
    priced = outlook.priced
    plan = priced.plan
    strengths = company.strengths(1)
    first, needed = float(strengths[0]) if strengths.size else 0.0, edge(noise, company.size)
    ways = []
    own = parts(plan)[name]
    alone = company.directions(noise * math.sqrt(own), plan.dped.dimension)
    if own < 1 and alone:
        ways.append(f'signals = ["{name}"] would show about {alone}')
    if 0 < first < needed:
        more = _readable(math.ceil(company.units * needed / first), up=True)
        ways.append(f"about {more:,} units in place of {company.units:,} would show the first")
        release = priced.release(name)
        assert release is not None
        mechanism = release.under(CountsMechanism) if name == COUNTS else release.under(VectorMechanism)
        dearer = GaussianDpEvent(mechanism.noise_multiplier * math.sqrt(own) * first / needed)
        epsilon = price([dearer], plan.privacy.delta * (1 - SAMPLER_SHARE)).epsilon
        if epsilon <= LARGEST_EPSILON:
            ways.append(f"so would epsilon = {math.ceil(10 * epsilon) / 10:g}")
    words = 0 if company.centred else company.size // 2
    while words >= SMALLEST_VOCABULARY:
        clear = company.first(words).directions(noise, plan.dped.dimension)
        if clear:
            ways.append(f"[vocabulary] size = {words} would show about {clear}")
            break
        words //= 2
    said = f"{name} drown in this noise: no direction of the text stands above it."
    if guessed:
        said += " That is for as little text as the public text; if parties hold more, set [privacy] declared_size."
    return _said(said, ways)


def _training(priced: PricedPlan[DpedPlan]) -> str:
    """Advice for DP-SGD whose noise is larger than all gradients together: fewer parameters take less noise."""
    plan = priced.plan
    release, privately = priced.release(TRAINING), plan.dped.private_training
    assert release is not None
    assert privately is not None
    parameters = (3 * privately.batch / release.under(GradientMechanism).noise_multiplier) ** 2
    dimension = int((parameters / plan.vocabulary.size - 1) / 2)
    words = int(parameters / (2 * plan.dped.dimension + 1))
    ways = []
    if dimension >= 2:
        ways.append(f"[dped] dimension = {dimension} would bring the noise down to three times the gradients")
    if words >= SMALLEST_VOCABULARY:
        ways.append(f"[vocabulary] size = {_readable(words)} would, too" if ways else f"[vocabulary] size = {words}")
    return _said("training drowns in this noise, which is more than three times all gradients of a batch.", ways)


def fewer(now: int, good: Callable[[int], bool]) -> int:
    """The largest number below `now` that is good, to two digits; 0 where 1 is not. Assumes that good is monotone."""
    low, high = 0, now
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return _readable(low)


def _more(now: int, good: Callable[[int], bool]) -> int:
    """A number above `now` that is good, within a fifth of the smallest such; 0 where `MOST_TEACHERS` are not
    enough.
    """
    number = now
    while number < MOST_TEACHERS:
        number = _readable(math.ceil(number * _GROWTH), up=True)
        if good(number):
            return number
    return 0


def _readable(number: int, *, up: bool = False) -> int:
    """A whole number rounded down or up to two digits."""
    grid = int(10 ** max(0, len(str(number)) - 2))
    rounded = -(-number // grid) if up else number // grid
    return rounded * grid


def _said(what: str, ways: list[str]) -> str:
    if not ways:
        return f"{what} Nothing that was tried changes that but a much larger epsilon."
    return f"{what} What would help: {'; '.join(ways)}."
