"""What a run costs besides privacy: bytes over the wire, time on machines like this one, memory. From its plan alone.

Bytes are exact but for the frames around them, if no party is lost. Times are those of this machine just now: one step
of a fit, one stand-in teacher and a piece of each release's noise are timed, and counted as often as the run does them.
"""

import math
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aggregation.gradients import GradientMechanism
from aggregation.noise import NoiseStream
from aggregation.thresholded import ThresholdedVotes
from coordinator.plan import Plan
from coordinator.public import Public
from coordinator.terms import COUNTS, MOMENTS, Bound, Release

if TYPE_CHECKING:
    pass

VALUE_BYTES = 4
"""A number of a release travels as an int32."""
RAY_SECONDS = 14.0
"""Starting an embedded Ray and its parties' nodes."""
TRAINING_SECONDS, TORCH_SECONDS = 2.0, 3.5
"""Processor time until a training process has imported what it needs, without torch and with it."""
FINISHING_SECONDS = 4.0
"""Joining, measuring and publishing, for vocabularies of some thousand words."""

NODE_MEMORY = 150 * 2**20
TRAINING_MEMORY, TORCH_MEMORY = 150 * 2**20, 370 * 2**20
COORDINATOR_MEMORY = 600 * 2**20

_FIT_STEPS = 4
_COUNTS_STEPS, _ANSWERS_STEPS = 100, 75  # evaluations that fitting counts, and distilling answers, take at most
_TIMED_CELLS = 100_000


@dataclass(frozen=True, slots=True)
class Pace:
    """What was timed, in seconds: preparing what is public, counting a unit, one teacher, one step of a fit."""

    public: float
    unit: float
    teacher: float
    step: float


def traffic(bound: Bound, public: Public) -> int:
    """Bytes of artefacts to, and of releases from, all parties: what a run without losses stores as its traffic."""
    from learning.weights import to_bytes

    artefacts = len(public.vocabulary.to_bytes())
    if public.reference is not None and bound.plan.dped.teaches:
        artefacts += len(to_bytes(public.reference))
    if public.moments is not None:
        artefacts += len(public.moments[0].to_bytes())
    released = sum(release.rows * release.columns * VALUE_BYTES for release in bound.releases)
    return len(bound.plan.federation.names) * (artefacts + released)


def step_seconds(public: Public, dimension: int) -> float:
    """One evaluation of the softmax over the whole vocabulary, as every fit of a run makes them."""
    from learning.skipgram import SkipGram, fit

    size = len(public.vocabulary)
    nothing = np.zeros((size, dimension), dtype=np.float32)
    start: SkipGram = SkipGram(nothing, nothing, np.zeros(size, dtype=np.float32))
    begun = time.monotonic()
    fit(public.counts, dimension=dimension, seed=0, steps=_FIT_STEPS, start=start)
    return (time.monotonic() - begun) / (_FIT_STEPS + _FIT_STEPS // 4)


def seconds(bound: Bound, pace: Pace, units: int) -> float:
    """How long the run takes from its command to the published student; `units` are all parties' together.

    Parties that are launched share this machine's cores; parties elsewhere are taken to have a core each, as fast.
    """
    plan = bound.plan
    parties = len(plan.federation.names)
    launched = plan.federation.shards is not None
    rounds = math.ceil(parties / (os.cpu_count() or 1)) if launched else 1
    total = pace.public + FINISHING_SECONDS + (RAY_SECONDS if launched else 0.0)
    for release in bound.releases:
        if not release.rows:
            continue
        counting = pace.unit * units / parties
        if release.name in (COUNTS, MOMENTS):
            starting = TRAINING_SECONDS if release.name == COUNTS else TORCH_SECONDS
            total += rounds * (starting + counting) + pace.step * _COUNTS_STEPS
        else:
            teaching = _teaching_seconds(plan, pace)
            total += rounds * (TORCH_SECONDS + counting + teaching)
            total += pace.step * _ANSWERS_STEPS * plan.queries / plan.vocabulary.size
        total += rounds * _noise_seconds(release)
    return total


def _teaching_seconds(plan: Plan, pace: Pace) -> float:
    """A party's teachers, one after the other. A step of DP-SGD is taken for two of a fit."""
    privately = plan.dped.private_training
    if privately is not None:
        return plan.dped.teachers_per_party * privately.steps * 2 * pace.step
    return plan.dped.teachers_per_party * pace.teacher


def _noise_seconds(release: Release) -> float:
    """One party's share of a release's noise."""
    mechanism = release.mechanism
    if isinstance(mechanism, (ThresholdedVotes, GradientMechanism)):
        return 0.0
    rows = max(1, min(release.rows, _TIMED_CELLS // release.columns))
    begun = time.monotonic()
    mechanism.noise_share((rows, release.columns), NoiseStream.from_system())
    return (time.monotonic() - begun) * release.rows / rows


def memory(bound: Bound, units: int, pairs: float) -> dict[str, int]:
    """Upper estimates of each kind of process' memory at its fullest, in bytes.

    units: all parties' together; pairs: distinct (word, context) pairs of a unit. The coordinator holds what was
    released as 64-bit numbers, with a copy to fit to; a training process the counts of its units, 12 bytes a distinct
    pair, and one model with the memory of its fit.
    """
    plan = bound.plan
    size, width, parties = plan.vocabulary.size, plan.dped.dimension, len(plan.federation.names)
    model = 4 * size * (2 * width + 1)
    coordinator, training = COORDINATOR_MEMORY + 30 * model, TRAINING_MEMORY
    block = 0
    for release in bound.releases:
        cells = release.rows * release.columns
        block = max(block, plan.rows_at_once(max(1, release.rows), max(1, release.columns)) * release.columns)
        coordinator += cells * (16 if release.name == COUNTS else 32)
        if release.name in (COUNTS, MOMENTS):
            started = TRAINING_MEMORY if release.name == COUNTS else TORCH_MEMORY
            training = max(training, started + 3 * 12 * min(size**2, int(units / parties * pairs)))
        elif release.rows:
            states = 4 * plan.dped.teachers_per_party * plan.queries * len(plan.dped.layers) * width
            seen = 12 * min(plan.dped.teachers_per_party * size**2, int(units / parties * pairs))
            training = max(training, TORCH_MEMORY + 30 * model + states + 8 * cells + 2 * seen)
    return {
        "coordinator": coordinator + parties * block * VALUE_BYTES,
        "party node": NODE_MEMORY + 5 * block * VALUE_BYTES,
        "party training": training,
    }
