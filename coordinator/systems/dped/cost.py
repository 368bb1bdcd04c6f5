"""Forecasts the time, memory and traffic of a run of `dped` from its plan.

Bytes are exact except for the frames around them, if no party is lost. Times are measured on this machine now: one step
of a fit, one stand-in teacher, the start of a training process and a piece of each release's noise are timed, and
multiplied by how often the run does them.
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np

from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.mechanism import Form
from aggregation.noise.stream import NoiseStream
from coordinator.forecasting.cost import (
    COMMAND_SECONDS,
    COORDINATOR_MEMORY,
    FINISHING_SECONDS,
    NODE_MEMORY,
    NODE_SECONDS,
    RAY_SECONDS,
    START_SECONDS,
    VALUE_BYTES,
)
from coordinator.pricing.release import PricedPlan, Release
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.public import Public
from coordinator.systems.dped.releases import COUNTS, MOMENTS
from learning.text import documentation

PLAIN_START = 0.3
"""The part of START_SECONDS that a training process without torch takes: to count, or to sum moments."""
LIBRARY_SECONDS = 1.5
"""Seconds to read the documentation of Python's library; every process that reads a part of it reads it all."""
CROWDING = 0.07
"""Processor time that each launched party adds to all others': they share caches, and Ray manages one more."""

TRAINING_MEMORY, TORCH_MEMORY = 150 * 2**20, 200 * 2**20
FIT_MEMORY = 300 * 2**10
"""Bytes for each word of the vocabulary: of a fit to public text at the coordinator, of a teacher's fit at a party."""

_FIT_STEPS = 4
_COUNTS_STEPS, _ANSWERS_STEPS = 100, 75  # evaluations that fitting counts, and distilling answers, take at most
_TIMED_CELLS = 100_000


@dataclass(frozen=True, slots=True)
class Pace:
    """Times measured on this machine, in seconds.

    They are the times to prepare what is public, to count a unit, to train one teacher, to take one step of a fit, and
    to start a training process. teacher_work: processor time of one teacher over all its threads.
    """

    public: float
    unit: float
    teacher: float
    teacher_work: float
    step: float
    start: float


def traffic(priced: PricedPlan[DpedPlan], public: Public) -> int:
    """Bytes of artefacts sent to all parties and of releases sent by them; a run without losses stores the same
    figure.
    """
    from learning.embeddings.weights import to_bytes

    artefacts = len(public.vocabulary.to_bytes())
    if public.reference is not None and priced.plan.dped.teaches:
        artefacts += len(to_bytes(public.reference))
    if public.moments is not None:
        artefacts += len(public.moments[0].to_bytes())
    released = sum(release.rows * release.columns * VALUE_BYTES for release in priced.releases)
    return len(priced.plan.federation.names) * (artefacts + released)


def step_seconds(public: Public, dimension: int) -> float:
    """Seconds for one evaluation of the softmax over the whole vocabulary, as in every fit of a run."""
    from learning.embeddings.skipgram import SkipGram, fit

    size = len(public.vocabulary)
    nothing = np.zeros((size, dimension), dtype=np.float32)
    start: SkipGram = SkipGram(nothing, nothing, np.zeros(size, dtype=np.float32))
    fit(public.counts, dimension=dimension, seed=0, steps=1, start=start)  # the first imports what a fit needs
    begun = time.monotonic()
    fit(public.counts, dimension=dimension, seed=0, steps=_FIT_STEPS, start=start)
    return (time.monotonic() - begun) / (_FIT_STEPS + _FIT_STEPS // 4)


def start_seconds() -> float:
    """Seconds for a process to import what a training process imports."""
    first_fit = "import numpy, scipy.sparse, torch, learning.embeddings.skipgram; torch.optim.LBFGS([torch.zeros(1)])"
    begun = time.monotonic()
    subprocess.run([sys.executable, "-P", "-c", first_fit], check=False, capture_output=True)
    return time.monotonic() - begun


def seconds(priced: PricedPlan[DpedPlan], pace: Pace, units: int) -> float:
    """Seconds from the run's command to its end; `units` counts all parties' units together.

    Parties that the coordinator launches share this machine's cores; parties elsewhere are assumed to have one equally
    fast core each. A time that cannot be measured beforehand is taken from another machine, and scaled by how long a
    process takes to start.
    """
    plan = priced.plan
    parties = len(plan.federation.names)
    shards, cores = plan.federation.shards, os.cpu_count() or 1
    crowd = 1.0 if shards is None else (1 + CROWDING * parties) * max(1.0, parties / cores)
    reading = LIBRARY_SECONDS if shards is not None and shards.source in documentation.NAMES else 0.0
    constant = COMMAND_SECONDS + FINISHING_SECONDS + (0.0 if shards is None else RAY_SECONDS + crowd * NODE_SECONDS)
    slow = pace.start / START_SECONDS
    total = pace.public + slow * constant
    for release in priced.releases:
        if not release.rows:
            continue
        work = slow * reading + pace.unit * units / parties + _noise_seconds(release)
        if release.name in (COUNTS, MOMENTS):
            total += crowd * (work + PLAIN_START * pace.start)
            total += pace.step * _COUNTS_STEPS
        else:
            alone, shared = _teaching_seconds(plan, pace)
            total += crowd * (work + pace.start)
            total += alone if shards is None else max(alone, shared * crowd)
            total += pace.step * _ANSWERS_STEPS * plan.queries / plan.vocabulary.size
    return total


def _teaching_seconds(plan: DpedPlan, pace: Pace) -> tuple[float, float]:
    """Seconds to train a party's teachers one after the other: on its own machine, and on one core that it shares.

    A step of DP-SGD is counted as two steps of a fit.
    """
    privately = plan.dped.private_training
    if privately is not None:
        once = plan.dped.teachers_per_party * privately.steps * 2 * pace.step
        return once, once
    return plan.dped.teachers_per_party * pace.teacher, plan.dped.teachers_per_party * pace.teacher_work


def _noise_seconds(release: Release) -> float:
    """Seconds for one party's share of a release's noise."""
    mechanism = release.mechanism
    if release.form not in (Form.SUMMED, Form.FREE):
        return 0.0
    rows = max(1, min(release.rows, _TIMED_CELLS // release.columns))
    mechanism.noise_share((1, release.columns), NoiseStream.from_system())  # the first makes tables
    begun = time.monotonic()
    mechanism.noise_share((rows, release.columns), NoiseStream.from_system())
    return (time.monotonic() - begun) * release.rows / rows


def memory(priced: PricedPlan[DpedPlan], units: int, pairs: float) -> dict[str, int]:
    """Upper estimates of the peak memory of each kind of process, in bytes.

    units: of all parties together; pairs: distinct (word, context) pairs of a unit. The coordinator holds what was
    released as 64-bit numbers, with the copies that fitting needs. A training process holds the counts of its units, 12
    bytes per distinct pair, and one model with the memory of its fit.
    """
    plan = priced.plan
    size, width, parties = plan.vocabulary.size, plan.dped.dimension, len(plan.federation.names)
    coordinator, training = COORDINATOR_MEMORY + FIT_MEMORY * size, TRAINING_MEMORY
    block = 0
    for release in priced.releases:
        cells = release.rows * release.columns
        block = max(block, plan.rows_at_once(max(1, release.rows), max(1, release.columns)) * release.columns)
        coordinator += cells * (120 if release.name == COUNTS else 60)
        if release.name in (COUNTS, MOMENTS):
            training = max(training, TRAINING_MEMORY + 3 * 12 * min(size**2, int(units / parties * pairs)))
        elif release.form.gives:
            states = 4 * plan.dped.teachers_per_party * plan.queries * len(plan.dped.layers) * width
            seen = 12 * min(plan.dped.teachers_per_party * size**2, int(units / parties * pairs))
            hidden = 8 * cells if release.form == Form.SUMMED and release.under(JointMechanism).hidden else 0
            training = max(training, TORCH_MEMORY + FIT_MEMORY * size + states + hidden + 2 * seen)
    return {
        "coordinator": coordinator + parties * block * VALUE_BYTES,
        "party node": NODE_MEMORY + 5 * block * VALUE_BYTES,
        "party training": training,
    }
