"""The linear rule that is learned from released rows, and the same rule as a classifier's last layer."""

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.samples import SamplesMechanism
from coordinator.systems.nvdp.pairs import cosines
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.pooling import Rows
from coordinator.systems.nvdp.public import PublicVectors
from learning.text.labelled import LabelMap

if TYPE_CHECKING:
    from learning.noisy_vectors.noise import Noise
    from learning.noisy_vectors.public import Public

Tensors: TypeAlias = dict[str, NDArray[np.float64]]
"""weights: [dimensions, outputs]. bias: [outputs]. Outputs are classes, or one score in the declared range."""


def noise_of(mechanism: SamplesMechanism) -> "Noise":
    """What is known of the rows' noise."""
    from learning.noisy_vectors.noise import Noise

    return Noise(mechanism.sigma, mechanism.label_epsilon or math.inf, mechanism.classes)


def rule_of(plan: NvdpPlan, public: PublicVectors, mechanism: SamplesMechanism, rows: Rows) -> Tensors:
    """The rule that makes most of the rows and of the public text."""
    from learning.noisy_vectors.regression import centres, learned_scores
    from learning.noisy_vectors.training import learned

    noise, targets = noise_of(mechanism), plan.text.targets
    if isinstance(targets, LabelMap):
        rule = learned(rows.vectors, rows.labels, noise, public.statistics)
        return {"weights": rule.weights, "bias": rule.bias}
    middles = centres(targets.low, targets.high, mechanism.classes)
    found = learned_scores(rows.vectors, rows.labels, noise, public.statistics, middles)
    return {"weights": found.weights[:, None], "bias": np.array([found.bias])}


def floor_of(plan: NvdpPlan, public: PublicVectors) -> Tensors | None:
    """The rule of public text alone; None where it has no labels, and is no pairs whose cosine tells the classes."""
    return _floor(plan, public.statistics)


def cosine_said(plan: NvdpPlan, public: PublicVectors) -> NDArray[np.float32] | None:
    """What the cosine of held-out pairs says by itself, as `said_by`; None of single texts or where it says nothing."""
    rule = None if public.cosine is None else _floor(plan, public.cosine)
    return None if rule is None else _said(plan, cosines(public.vectors), rule)


def _floor(plan: NvdpPlan, statistics: "Public") -> Tensors | None:
    from learning.noisy_vectors.regression import floor_scores
    from learning.noisy_vectors.training import floor

    targets = plan.text.targets
    if isinstance(targets, LabelMap):
        if statistics.class_means is None:
            return None
        rule = floor(statistics)
        return {"weights": rule.weights, "bias": rule.bias}
    if statistics.with_scores is None:
        return None
    found = floor_scores(statistics, targets.middle)
    return {"weights": found.weights[:, None], "bias": np.array([found.bias])}


def said_by(plan: NvdpPlan, public: PublicVectors, rule: Tensors) -> NDArray[np.float32]:
    """What a rule says of the held-out texts: logits [examples, classes], or standard scores [examples, 1]."""
    return _said(plan, public.projection.applied(public.vectors), rule)


def _said(plan: NvdpPlan, vectors: NDArray[np.float64], rule: Tensors) -> NDArray[np.float32]:
    said, targets = vectors @ rule["weights"] + rule["bias"], plan.text.targets
    if not isinstance(targets, LabelMap):
        said = (said - targets.middle) / targets.half
    return np.asarray(said, np.float32)


def point_of(plan: NvdpPlan, public: PublicVectors, rule: Tensors) -> NDArray[np.float32]:
    """The rule as the trained parameters of the public classifier: its last layer's bias, then its weights.

    The layer takes what the projection takes, so that both together are one linear map. What a projection clips, it
    does not.
    """
    weights, bias, projection, targets = rule["weights"], rule["bias"], public.projection, plan.text.targets
    if not isinstance(targets, LabelMap):
        weights, bias = weights / targets.half, (bias - targets.middle) / targets.half
    whole = projection.scale * projection.matrix @ weights
    return np.concatenate([bias - projection.centre @ whole, whole.T.ravel()]).astype(np.float32)


def naive_of(plan: NvdpPlan, public: PublicVectors, mechanism: SamplesMechanism, rows: Rows) -> Tensors:
    """The rule of ordinary training on the rows, as if they were clean: a control."""
    from learning.noisy_vectors.regression import centres, plain_scores
    from learning.noisy_vectors.training import plain

    noise, targets = noise_of(mechanism), plan.text.targets
    if isinstance(targets, LabelMap):
        rule = plain(rows.vectors, rows.labels, noise, public.statistics)
        return {"weights": rule.weights, "bias": rule.bias}
    middles = centres(targets.low, targets.high, mechanism.classes)
    found = plain_scores(rows.vectors, rows.labels, noise, public.statistics, middles)
    return {"weights": found.weights[:, None], "bias": np.array([found.bias])}
