"""The released signals, rescaled to their own units: what a student learns from."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.free import FreeAnswers
from aggregation.mechanisms.joint import JointMechanism, JointReleased
from aggregation.mechanisms.mechanism import Form, Released
from aggregation.mechanisms.thresholded import thresholded_labels
from aggregation.mechanisms.vectors import VectorMechanism
from coordinator.pricing.release import PricedPlan, Release
from coordinator.store.store import RunStore
from coordinator.systems.dped import releases
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.public import Public
from coordinator.systems.dped.releases import COUNTS, MOMENTS

LABELS = "labels"


@dataclass(frozen=True, slots=True)
class Signals:
    """The released signals, ready to learn from; all of them are public now.

    counts: the noisy sum [words, words]. moments: noisy frequencies and moments along public directions. labels: int64
    [queries], the word that teachers named, -1 where they abstain. histogram: float64 [queries, classes], the noisy
    votes as shares of the teachers; histogram_noise: the standard deviation of its noise. hidden: float64 [queries,
    layers, width], the noisy mean over teachers; hidden_noise: the standard deviation of its noise.
    """

    counts: Released | None = None
    moments: Released | None = None
    labels: NDArray[np.int64] | None = None
    histogram: NDArray[np.float64] | None = None
    histogram_noise: float = 0.0
    hidden: NDArray[np.float64] | None = None
    hidden_noise: float = 0.0


def signals_of(priced: PricedPlan[DpedPlan], public: Public, present: dict[str, int], store: RunStore) -> Signals:
    """The signals of a run's stored releases, in their own units."""
    found = Signals()
    for release in priced.releases:
        match release.name:
            case releases.COUNTS:
                found = replace(found, counts=_counts(release.under(CountsMechanism), present[COUNTS], store, release))
            case releases.MOMENTS:
                (block,) = (values for _, _, values in store.blocks(MOMENTS))
                found = replace(found, moments=release.under(VectorMechanism).release(block[0], present[MOMENTS]))
            case releases.VOTES:
                (block,) = (values for _, _, values in store.blocks(LABELS))
                found = replace(found, labels=named(block[:, 0], public))
            case releases.ANSWERS:
                total = np.concatenate([block for _, _, block in store.blocks(release.name)])
                free = release.form == Form.FREE
                mechanism = release.under(FreeAnswers) if free else release.under(JointMechanism)
                answered = mechanism.release(total, present[release.name])
                found = with_answers(found, answered, priced.plan, public, present[release.name])
    return found


def with_answers(signals: Signals, answered: JointReleased, plan: DpedPlan, public: Public, present: int) -> Signals:
    """The signals with the released answers of the teachers of `present` parties: means over the teachers, and labels.

    Labels are free post-processing: every query was charged, whether it passes the threshold or not.
    """
    teachers = present * plan.dped.teachers_per_party
    if answered.votes is not None and plan.dped.loss == "likelihood" and plan.dped.threshold is None:
        votes = answered.votes
        signals = replace(signals, histogram=votes.values / teachers, histogram_noise=votes.sigma / teachers)
    elif answered.votes is not None:
        signals = replace(signals, labels=labels_of(answered.votes, plan, public))
    if answered.hidden is not None:
        shape = (plan.queries, len(plan.dped.layers), plan.dped.dimension)
        hidden = answered.hidden
        signals = replace(signals, hidden=hidden.values.reshape(shape) / teachers, hidden_noise=hidden.sigma / teachers)
    return signals


def labels_of(votes: Released, plan: DpedPlan, public: Public) -> NDArray[np.int64]:
    """The word with the most noisy votes on each query, or -1 below the plan's threshold."""
    threshold = plan.dped.threshold
    classes = votes.values.argmax(axis=1) if threshold is None else thresholded_labels(votes, threshold)
    return named(np.asarray(classes, dtype=np.int64), public)


def named(classes: NDArray[np.int64], public: Public) -> NDArray[np.int64]:
    """Vocabulary positions of class positions; -1 for anything below 0."""
    return np.where(classes >= 0, public.classes[np.maximum(classes, 0)], -1)


def _counts(mechanism: CountsMechanism, present: int, store: RunStore, release: Release) -> Released:
    """The whole count matrix, read block by block."""
    values, sigma = np.empty((release.rows, release.columns)), 0.0
    for start, stop, block in store.blocks(COUNTS):
        part = mechanism.release(block, present)
        values[start:stop], sigma = part.values, part.sigma
    return Released(values, sigma)
