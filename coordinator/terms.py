"""From a plan to what binds both ends: mechanisms calibrated to the budget, priced before anything runs."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias, TypeVar

from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent
from google.protobuf.message import Message

from aggregation.accounting import Guarantee, calibrate, price
from aggregation.calibration import honest_shares
from aggregation.counts import CountsMechanism
from aggregation.errors import ConclaveError
from aggregation.free import FreeAnswers
from aggregation.gradients import GradientMechanism, fine_levels
from aggregation.hidden import HiddenMechanism
from aggregation.joint import JointMechanism
from aggregation.noise import LARGEST_SIGMA
from aggregation.secure_sum.context import Context
from aggregation.secure_sum.graph import shape
from aggregation.shares import GAUSSIAN
from aggregation.thresholded import ThresholdedVotes
from aggregation.vectors import VectorMechanism
from aggregation.votes import VotesMechanism
from coordinator.errors import PlanError
from coordinator.plan import Plan
from coordinator.public import Public
from protos.conclave.v1 import plan_pb2

COUNTS = "counts"
MOMENTS = "moments"
ANSWERS = "answers"
VOTES = "votes"
TRAINING = "training"
SAMPLER_SHARE = 1e-3
"""The part of a plan's delta that is kept for the noise sampler's distance from its ideal."""

FREE_LEVELS = 2**20
LARGEST_SUM = 2**31 - 1
_HIDDEN_SIGMA = 4096.0
_VOTES_SIGMA = 16.0
"""Standard deviations of one share on the grid that levels are chosen for: fine enough, and quick to draw."""
_USUAL_MULTIPLIER = 4.0
_STEPS, _MOST_TIMES = 1024, 16
"""Skellam and discrete Gaussian noise: sought in such parts of the Gaussian's, up to so many times it."""
_MOMENT_LEVELS, _PAIR_LEVELS = 4096, 32768  # a pair is one count, which a coarse grid would round by much
_THRESHOLD_PART = 1 / 3
"""Of what a query that passes its threshold costs, the part that testing costs."""

_UNIT = {"record": plan_pb2.UNIT_RECORD, "user": plan_pb2.UNIT_USER}
_RECORD = {
    "document": plan_pb2.RECORD_DOCUMENT,
    "sentence": plan_pb2.RECORD_SENTENCE,
    "pair": plan_pb2.RECORD_PAIR,
}
_TRUST = {
    "trusted-aggregator": plan_pb2.TRUST_TRUSTED_AGGREGATOR,
    "secure-sum": plan_pb2.TRUST_SECURE_SUM,
}

Chosen: TypeAlias = (
    CountsMechanism | VectorMechanism | JointMechanism | ThresholdedVotes | GradientMechanism | FreeAnswers
)
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Release:
    """One thing that parties release together, as the plan's budget allows it.

    rows, columns: shape of the released matrix; [0, 0] where nothing travels. charges: how often the mechanism's event
    is paid. attempts: how often all of it may be.
    """

    name: str
    mechanism: Chosen
    rows: int
    columns: int
    charges: int = 1
    attempts: int = 1

    @property
    def event(self) -> DpEvent:
        """What all of it costs, made once."""
        event = self.mechanism.event()
        return event if self.charges == 1 else SelfComposedDpEvent(event, self.charges)

    @property
    def at_most(self) -> DpEvent:
        """What it costs when every attempt that the plan allows is made: what the plan's epsilon has to pay for."""
        return self.event if self.attempts == 1 else SelfComposedDpEvent(self.event, self.attempts)

    def slack(self, epsilon: float) -> float:
        """Delta that the noise sampler's distance from its ideal takes."""
        mechanism = self.mechanism
        if isinstance(mechanism, GradientMechanism):
            return mechanism.slack(mechanism.steps * mechanism.parameters, epsilon)
        if isinstance(mechanism, ThresholdedVotes):
            return mechanism.slack(self.rows, epsilon)
        return mechanism.slack(self.rows * self.columns * self.attempts, epsilon)


@dataclass(frozen=True, slots=True)
class Bound:
    """A plan with its mechanisms chosen.

    guarantee: what the run costs at every party, delta being the plan's; slack of the noise sampler is inside it.
    binding: the message that every party is asked to join under.
    """

    plan: Plan
    releases: tuple[Release, ...]
    guarantee: Guarantee
    binding: plan_pb2.Plan

    @property
    def private(self) -> bool:
        """Whether the guarantee holds: never when the noise can be reproduced from the plan."""
        return not self.plan.privacy.insecure_reproducible_noise

    def release(self, name: str) -> Release | None:
        """The release of that name, or None where the plan has no use for it."""
        return next((release for release in self.releases if release.name == name), None)


def bind(plan: Plan, public: Public | None = None) -> Bound:
    """Choose the noise and price it. Raises `PlanError` when the plan cannot be paid from its own budget.

    public: needed where moments are released and the plan does not set their clip.
    """
    privacy = plan.privacy
    spare = privacy.delta * (1 - SAMPLER_SHARE)
    releases = _releases(plan, privacy.noise_multiplier or _calibrated(plan, spare, public), public)
    slack = sum(release.slack(privacy.epsilon) for release in releases) + _graph_failure(plan, releases)
    if slack > privacy.delta * SAMPLER_SHARE:
        cells = sum(release.rows * release.columns for release in releases)
        raise PlanError(
            f"[privacy] delta = {privacy.delta:g} is too small for {cells:,} noisy cells: the noise sampler's own "
            f"error takes {slack:.1e} of it. Use a larger delta, more [dped] levels, or fewer words. Nothing ran."
        )
    guarantee = price([release.at_most for release in releases], spare)
    if guarantee.epsilon > privacy.epsilon:
        assert privacy.noise_multiplier is not None
        needed = _calibrated(plan, spare, public)
        raise PlanError(
            f"[privacy] noise_multiplier = {privacy.noise_multiplier:g} costs epsilon {rounded_up(guarantee.epsilon)} "
            f"at delta {privacy.delta:g}, over the plan's {privacy.epsilon:g}. Use at least {needed:g}, or leave it "
            "out and it is calibrated. Nothing ran."
        )
    guarantee = Guarantee(guarantee.epsilon, privacy.delta, guarantee.accountant, guarantee.rdp_epsilon)
    return Bound(plan, releases, guarantee, _message(plan, releases))


def _graph_failure(plan: Plan, releases: tuple[Release, ...]) -> float:
    """Delta for a secure sum over a graph whose neighbourhoods might hold too few honest parties; usually none."""
    privacy = plan.privacy
    if privacy.trust != "secure-sum":
        return 0.0
    context = Context.of(
        run="",
        plan_hash="",
        sum="",
        attempt=0,
        parties=plan.federation.names,
        length=1,
        dropouts=privacy.dropouts,
        colluders=privacy.colluders,
    )
    try:
        failure = shape(context).failure
    except ConclaveError as error:
        raise PlanError(f"[privacy] {error}") from None
    return failure * privacy.attempts * sum(1 for release in releases if release.rows)


def rounded_up(epsilon: float, decimals: int = 3) -> str:
    """An epsilon as a person reads it, never less than it is."""
    grid = 10**decimals
    return "infinity" if math.isinf(epsilon) else f"{math.ceil(epsilon * grid) / grid:.{decimals}f}"


def shares(plan: Plan) -> int:
    """How many parties' noise the guarantee counts on: not of those that may be lost, nor that know their own."""
    return honest_shares(len(plan.federation.names), plan.privacy.dropouts, plan.privacy.colluders)


def parts(plan: Plan) -> dict[str, float]:
    """Which part of the budget each signal gets, 1 / noise^2 being what adds up; together 1."""
    weights = {signal: getattr(plan.dped.budget, signal) for signal in plan.dped.signals}
    return {signal: weight / sum(weights.values()) for signal, weight in weights.items()}


def _whole(plan: Plan, multiplier: float) -> DpEvent:
    """The whole plan's event at one noise multiplier: of the one Gaussian that all its releases are, or of DP-SGD."""
    privately = plan.dped.private_training
    if privately is not None:
        return _gradients(plan, multiplier).event()
    once = GaussianDpEvent(multiplier)
    return once if plan.privacy.attempts == 1 else SelfComposedDpEvent(once, plan.privacy.attempts)


def _calibrated(plan: Plan, delta: float, public: Public | None) -> float:
    epsilon = plan.privacy.epsilon
    if plan.dped.private_training is None and plan.privacy.attempts == 1:
        gaussian = gaussian_multiplier(epsilon, delta)
    else:
        gaussian = calibrate(lambda z: _whole(plan, z), epsilon, delta)
    if plan.privacy.noise == GAUSSIAN:
        return gaussian
    # No other noise costs less than a Gaussian of its variance, and on a fine grid little more: a little more of it is
    # enough. On a coarse grid, which has no room for the share that a party would draw, the search says so.
    refused: list[PlanError] = []

    def affordable(steps: int) -> bool:
        try:
            made = _releases(plan, gaussian * steps / _STEPS, public)
        except PlanError as error:
            refused.append(error)
            return False
        return price([release.at_most for release in made], delta).epsilon <= epsilon

    low, high = _STEPS - 1, _STEPS
    while not affordable(high):
        low, high = high, 2 * high
        if high > _STEPS * _MOST_TIMES:
            raise (
                refused[-1]
                if refused
                else PlanError(
                    f'[privacy] noise = "{plan.privacy.noise}" costs over epsilon {epsilon:g} on this grid even at '
                    f"{_MOST_TIMES} times the Gaussian noise. Use more [dped] levels, or leave noise out."
                )
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if affordable(middle) else (middle, high)
    return math.ceil(gaussian * high / _STEPS * 1000) / 1000


@lru_cache(maxsize=64)
def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """The noise multiplier of one Gaussian release of that price."""
    return calibrate(GaussianDpEvent, epsilon, delta)


def _releases(plan: Plan, whole: float, public: Public | None) -> tuple[Release, ...]:
    """What is released where all of it together has this noise multiplier."""
    settings, size = plan.dped, plan.vocabulary.size
    if settings.private_training is not None:
        training = Release(TRAINING, _sized("private_training", lambda: _gradients(plan, whole)), 0, 0)
        free = FreeAnswers(
            TRAINING,
            plan.classes if "votes" in settings.signals else 0,
            len(settings.layers) if "hidden" in settings.signals else 0,
            settings.dimension,
            settings.hidden_clip,
            min(FREE_LEVELS, LARGEST_SUM // plan.teachers),
        )
        return training, Release(ANSWERS, free, plan.queries, free.columns)
    releases = []
    part, noise = parts(plan), plan.privacy.noise
    if "counts" in part:
        # A pair counts one: a wider clip would only buy more noise.
        clip = min(settings.clip, 1.0) if plan.privacy.record == "pair" else settings.clip
        multiplier = whole / math.sqrt(part["counts"])
        counts = _sized("counts", lambda: CountsMechanism(clip, settings.levels, multiplier, shares(plan), noise))
        releases.append(Release(COUNTS, counts, size, size))
    if "moments" in part:
        suggested = public.moments[1] if public is not None and public.moments is not None else settings.moments_clip
        if suggested is None:
            raise PlanError("[dped] moments_clip is missing, and no public text was read that would suggest one.")
        rank, bound = min(settings.dimension, size), suggested
        moments = _sized("moments", lambda: vectors_mechanism(plan, bound, whole / math.sqrt(part["moments"]), noise))
        releases.append(Release(MOMENTS, moments, 1, size + (rank + 1) * (rank + 2) // 2))
    if "votes" in part and settings.noise_at == "coordinator":
        votes = _sized("votes", lambda: _thresholded(plan, whole / math.sqrt(part["votes"])))
        releases.append(Release(VOTES, votes, plan.queries, settings.teachers_per_party))
        del part["votes"]
    if "votes" in part or "hidden" in part:
        joint = _sized("votes and hidden states", lambda: _joint(plan, whole, part))
        releases.append(Release(ANSWERS, joint, plan.queries, joint.columns, plan.queries))
    return tuple(replace(release, attempts=plan.privacy.attempts) for release in releases)


def vectors_mechanism(plan: Plan, clip: float, multiplier: float, distribution: str = GAUSSIAN) -> VectorMechanism:
    """A grid fine enough that a unit's many small numbers are not rounded away, and a sum of all units fits 32 bits."""
    finest = _PAIR_LEVELS if plan.privacy.record == "pair" else _MOMENT_LEVELS
    # The same grid at every usual epsilon, so that a party's bounded sum is too.
    levels = max(1, min(finest, int(LARGEST_SIGMA * math.sqrt(shares(plan)) / max(multiplier, _USUAL_MULTIPLIER))))
    return VectorMechanism(clip, levels, multiplier, shares(plan), distribution)


def _joint(plan: Plan, whole: float, part: dict[str, float]) -> JointMechanism:
    """Votes and hidden states of a query as one Gaussian on the joined vector, a query paid once."""
    settings, n, kind = plan.dped, shares(plan), plan.privacy.noise
    votes = hidden = None
    if "votes" in part:
        noise = whole * math.sqrt(plan.queries / part["votes"]) * math.sqrt(2)
        levels = max(1, math.ceil(_VOTES_SIGMA * math.sqrt(n) / noise))
        votes = VotesMechanism(plan.classes, levels, noise, n, kind)
    if "hidden" in part:
        layers = len(settings.layers)
        noise = whole * math.sqrt(plan.queries / part["hidden"]) * 2 * settings.hidden_clip * math.sqrt(layers)
        levels = max(1, int(_HIDDEN_SIGMA * math.sqrt(n) * settings.hidden_clip / noise))
        hidden = HiddenMechanism(layers, settings.dimension, settings.hidden_clip, levels, noise, n, kind)
    return JointMechanism(votes, hidden)


def _thresholded(plan: Plan, multiplier: float) -> ThresholdedVotes:
    """Noise such that every query can be tested, and the expected share of them answered, within the cap."""
    settings, cap = plan.dped, 1 / multiplier**2
    assert settings.threshold is not None
    larger = settings.below_threshold == "larger-noise"
    # With d = 1/threshold_noise^2 and a = 2/noise^2, d + answered a + (1 - answered) a/4 = cap / queries.
    answered = settings.answered + (1 - settings.answered) / 4 if larger else settings.answered
    per_query = cap / plan.queries * (1 - 1e-9)
    testing = per_query * _THRESHOLD_PART
    answering = (per_query - testing) / answered
    noise = math.sqrt(2 / answering)
    return ThresholdedVotes(
        classes=plan.classes,
        teachers=plan.teachers,
        threshold=settings.threshold,
        threshold_noise=1 / math.sqrt(testing),
        noise=noise,
        larger_noise=2 * noise if larger else None,
        cap=cap,
    )


def _gradients(plan: Plan, multiplier: float) -> GradientMechanism:
    privately = plan.dped.private_training
    assert privately is not None
    parameters = plan.vocabulary.size * (2 * plan.dped.dimension + 1)
    return GradientMechanism(
        clip=privately.clip,
        levels=fine_levels(multiplier, parameters),
        noise_multiplier=multiplier,
        sampling_probability=privately.batch / privately.units_per_teacher,
        steps=privately.steps,
        parameters=parameters,
    )


def _sized(what: str, make: Callable[[], Made]) -> Made:
    try:
        return make()
    except ConclaveError as error:
        raise PlanError(f"[dped] The {what} cannot be released under this plan: {error}") from None


def _message(plan: Plan, releases: tuple[Release, ...]) -> plan_pb2.Plan:
    privacy = plan.privacy
    return plan_pb2.Plan(
        document=plan.document(),
        terms=plan_pb2.Terms(
            recipe=plan.run.recipe,
            seed=plan.run.seed,
            parties=plan.federation.names,
            minimum_parties=plan.minimum_parties,
            privacy=plan_pb2.Privacy(
                epsilon=privacy.epsilon,
                delta=privacy.delta,
                unit=_UNIT[privacy.unit],
                record=_RECORD[privacy.record],
                trust=_TRUST[privacy.trust],
                dropouts=privacy.dropouts,
                colluders=privacy.colluders,
                insecure_reproducible_noise=privacy.insecure_reproducible_noise,
                attempts=privacy.attempts,
            ),
            releases=[_release(each) for each in releases],
        ),
    )


def _release(release: Release) -> plan_pb2.Release:
    """The message of a release, its mechanism field by field."""
    message = plan_pb2.Release(name=release.name, charges=release.charges)
    match release.mechanism:
        case CountsMechanism() as counts:
            _fill(message.counts, counts)
        case VectorMechanism() as vectors:
            _fill(message.vectors, vectors)
        case JointMechanism() as joint:
            if joint.votes is not None:
                _fill(message.joint.votes, joint.votes)
            if joint.hidden is not None:
                _fill(message.joint.hidden, joint.hidden)
        case ThresholdedVotes() as votes:
            _fill(message.thresholded, votes)
        case GradientMechanism() as training:
            _fill(message.gradients, training)
        case FreeAnswers() as free:
            _fill(message.free, free)
    return message


def _fill(message: Message, mechanism: object) -> None:
    """Every field of the mechanism into the field of that name; None is a number's 0."""
    for name in message.DESCRIPTOR.fields_by_name:
        value = getattr(mechanism, name)
        setattr(message, name, 0.0 if value is None else value)
