"""The releases of a plan of `dped`, and the noise of each when all together have one noise multiplier."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent

from aggregation.errors import ConclaveError
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.thresholded import ThresholdedVotes
from aggregation.mechanisms.vectors import VectorMechanism
from aggregation.mechanisms.votes import VotesMechanism
from aggregation.noise.shares import GAUSSIAN
from coordinator.errors import PlanError
from coordinator.pricing.release import Release, shares
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.public import Public

COUNTS = "counts"
MOMENTS = "moments"
ANSWERS = "answers"
VOTES = "votes"
TRAINING = "training"

FREE_LEVELS = 2**20
LARGEST_SUM = 2**31 - 1
_HIDDEN_SIGMA = 4096.0
_VOTES_SIGMA = 16.0
"""Standard deviation, in grid units, of one share of the noise, for which levels are chosen: fine enough, and quick to
draw.
"""
_FINEST_SIGMA = 16_384.0
"""The same at most for vectors: under such noise a finer grid shows nothing more."""
_USUAL_MULTIPLIER = 4.0
_MOMENT_LEVELS, _PAIR_LEVELS = 4096, 32768  # a pair is one count, which a coarse grid would round by much
_THRESHOLD_PART = 1 / 3
"""The part of the cost of a query that passes its threshold which goes to the test."""

Made = TypeVar("Made")


def parts(plan: DpedPlan) -> dict[str, float]:
    """Each signal's part of the budget, as a share of the total 1 / noise^2; the parts add up to 1."""
    weights = {signal: getattr(plan.dped.budget, signal) for signal in plan.dped.signals}
    return {signal: weight / sum(weights.values()) for signal, weight in weights.items()}


def total_event(plan: DpedPlan, multiplier: float) -> DpEvent:
    """The event of the whole plan at one noise multiplier: one Gaussian that joins all releases, or DP-SGD."""
    privately = plan.dped.private_training
    if privately is not None:
        return _gradients(plan, multiplier).event()
    once = GaussianDpEvent(multiplier)
    return once if plan.privacy.attempts == 1 else SelfComposedDpEvent(once, plan.privacy.attempts)


def releases(plan: DpedPlan, whole: float, public: Public | None) -> tuple[Release, ...]:
    """The releases whose joint noise multiplier is this one."""
    settings, size = plan.dped, plan.vocabulary.size
    if settings.private_training is not None:
        training = Release(
            TRAINING, _sized("private_training", lambda: _gradients(plan, whole)), 0, 0, form=Form.TRAINING
        )
        free = FreeAnswers(
            TRAINING,
            plan.classes if "votes" in settings.signals else 0,
            len(settings.layers) if "hidden" in settings.signals else 0,
            settings.dimension,
            settings.hidden_clip,
            min(FREE_LEVELS, LARGEST_SUM // plan.teachers),
        )
        return training, Release(ANSWERS, free, plan.queries, free.columns, form=Form.FREE)
    made = []
    part, noise = parts(plan), plan.privacy.noise
    if "counts" in part:
        # A pair counts one: a larger clip would only cost more noise.
        clip = min(settings.clip, 1.0) if plan.privacy.record == "pair" else settings.clip
        multiplier = whole / math.sqrt(part["counts"])
        counts = _sized("counts", lambda: CountsMechanism(clip, settings.levels, multiplier, shares(plan), noise))
        made.append(Release(COUNTS, counts, size, size))
    if "moments" in part:
        suggested = public.moments[1] if public is not None and public.moments is not None else settings.moments_clip
        if suggested is None:
            raise PlanError("[dped] moments_clip is missing, and no public text was read that would suggest one.")
        rank, bound = min(settings.dimension, size), suggested
        moments = _sized("moments", lambda: vectors_mechanism(plan, bound, whole / math.sqrt(part["moments"]), noise))
        made.append(Release(MOMENTS, moments, 1, size + (rank + 1) * (rank + 2) // 2))
    if "votes" in part and settings.noise_at == "coordinator":
        votes = _sized("votes", lambda: _thresholded(plan, whole / math.sqrt(part["votes"])))
        made.append(Release(VOTES, votes, plan.queries, settings.teachers_per_party, form=Form.CLEAR_VOTES))
        del part["votes"]
    if "votes" in part or "hidden" in part:
        joint = _sized("votes and hidden states", lambda: _joint(plan, whole, part))
        made.append(Release(ANSWERS, joint, plan.queries, joint.columns, plan.queries))
    return tuple(replace(release, attempts=plan.privacy.attempts) for release in made)


def vectors_mechanism(plan: DpedPlan, clip: float, multiplier: float, distribution: str = GAUSSIAN) -> VectorMechanism:
    """The mechanism of a vector release: its grid keeps a unit's small numbers, and a sum of all units fits 32 bits."""
    finest = _PAIR_LEVELS if plan.privacy.record == "pair" else _MOMENT_LEVELS
    # The same grid at every usual epsilon, so that a party's bounded sum is also the same.
    levels = max(1, min(finest, int(_FINEST_SIGMA * math.sqrt(shares(plan)) / max(multiplier, _USUAL_MULTIPLIER))))
    return VectorMechanism(clip, levels, multiplier, shares(plan), distribution)


def _joint(plan: DpedPlan, whole: float, part: dict[str, float]) -> JointMechanism:
    """Votes and hidden states of a query as one Gaussian on the joined vector, charged once a query."""
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


def _thresholded(plan: DpedPlan, multiplier: float) -> ThresholdedVotes:
    """Noise at which every query can be tested, and the expected share of them answered, within the budget."""
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


def _gradients(plan: DpedPlan, multiplier: float) -> GradientMechanism:
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
