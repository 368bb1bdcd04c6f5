"""Votes of the parties' classifiers on public texts, and a student that learns from the resulting labels.

Private aggregation of teacher ensembles (Papernot et al. 2017, 2018) for text models.
"""

import json
import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.mechanism import Released
from aggregation.mechanisms.thresholded import thresholded_labels
from aggregation.mechanisms.votes import VotesMechanism
from coordinator.errors import PlanError
from coordinator.pricing.release import shares
from coordinator.progress.progress import Progress
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from learning.text.labelled import LabelMap

VOTES: Final = "votes"
_GRID_SIGMA: Final = 16.0
"""Standard deviation of one party's share of the noise, on the grid: fine enough, and quick to draw."""


def mechanism(plan: ClassifierPlan, multiplier: float, queries: int) -> JointMechanism:
    """The mechanism of votes on so many queries, all together one Gaussian release with that noise multiplier.

    A unit is in one teacher, which changes one vote per query: L2 sensitivity sqrt(2) a query under add-or-remove of
    one unit. Raises `PlanError`.
    """
    targets, honest = plan.text.targets, shares(plan)
    assert isinstance(targets, LabelMap)
    noise = multiplier * math.sqrt(2 * queries)
    levels = max(1, math.ceil(_GRID_SIGMA * math.sqrt(honest) / noise))
    try:
        return JointMechanism(VotesMechanism(len(targets.names), levels, noise, honest, plan.privacy.noise), None)
    except ConclaveError as error:
        raise PlanError(f"[pate] The votes cannot be released under this plan: {error}") from None


def labels_of(votes: Released, plan: ClassifierPlan) -> NDArray[np.int64]:
    """The class with the most noisy votes on each query [queries], -1 below the plan's threshold: post-processing."""
    assert plan.pate is not None
    threshold = plan.pate.threshold
    named = votes.values.argmax(axis=1) if threshold is None else thresholded_labels(votes, threshold)
    return np.asarray(named, dtype=np.int64)


def learned(
    plan: ClassifierPlan, public: PublicText, labels: NDArray[np.int64], progress: Progress
) -> NDArray[np.float32]:
    """The student's parameters, trained on the public texts that got a label.

    Raises `PlanError` where no text got a label.
    """
    import torch

    from learning.classification.training import fit, fit_head
    from learning.models.adapting import flatten, unflatten
    from learning.models.batching import encode
    from learning.models.features import features, head_alone

    kept = np.flatnonzero(labels >= 0)
    if not len(kept):
        raise PlanError(
            "[pate] threshold: no text got so many noised votes, so there is nothing to learn from. What was charged "
            "stays charged. Plan with a lower threshold, or without one.",
            code="C204",
        )
    first = [public.queries[place][0] for place in kept]
    second = [public.queries[place][1] for place in kept] if plan.text.pairs else None
    rows = encode(public.tokenizer, first, second, longest=public.longest).rows
    assert plan.pate is not None
    model, settings = public.model, plan.pate.fit()
    unflatten(model, torch.from_numpy(public.start))
    rng = np.random.default_rng(plan.run.seed)
    head = head_alone(model)
    if head is not None:
        fit_head(head, features(model, rows), labels[kept], settings, rng)
    else:
        fit(
            model,
            rows,
            labels[kept],
            settings,
            rng,
            lambda done: progress.bar("student", round(100 * done), 100, "percent"),
        )
    return np.asarray(flatten(model).numpy())


def texts_of(public: PublicText) -> bytes:
    """The public texts as parties are sent them: a JSON list of texts, or of lists of two."""
    asked = [list(each) if len(each) > 1 else each[0] for each in public.queries]
    return json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode()
