"""The methods that a comparison of text classifiers has as rows, each on the same simulated text.

A row that is a system runs that system's recipe over simulated parties, on the plan at the row's epsilon.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.joint import JointMechanism
from coordinator.comparing.comparable import Method, Outcome, SeedData, changed, composed
from coordinator.comparing.simulated_run import Collecting, SimulatedRun, driven
from coordinator.errors import PlanError
from coordinator.progress.progress import Progress
from coordinator.text_models import non_private, votes
from coordinator.text_models.non_private import SimulatedText
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TextData(SeedData):
    """The data of one seed: the public data, and the simulated parties with their text.

    public: every method trains its model in place, from the model's start. recipe: as in
    `coordinator.comparing.comparable.ComparisonRequest`.
    """

    plan: ClassifierPlan
    public: PublicText
    text: SimulatedText
    progress: Progress
    recipe: Callable[[str, Any, Any], Collecting[ClassifierPlan]]


ALONE: Final[Mapping[str, Mapping[str, Any]]] = {
    "dp_sgd": {"form": "local"},
    "privacy": {"trust": "trusted-aggregator", "dropouts": 0, "colluders": 0},
}
"""What a plan's tables say where every party trains alone, under noise of its own."""


def federated(data: TextData, epsilon: float) -> Outcome:
    """Federated DP-SGD: every step sums the gradients of all parties, each with its share of the noise.

    Source: Abadi et al. 2016, algorithm 1.
    """
    return descended(data, epsilon, {"dp_sgd": {"form": "federated", "rounds": 1}})


def _local(data: TextData, epsilon: float) -> Outcome:
    """Local DP-SGD: each party trains alone under its own noise, and the models are averaged."""
    return descended(data, epsilon, ALONE)


def descended(data: TextData, epsilon: float, tables: Mapping[str, Mapping[str, Any]]) -> Outcome:
    """Run the recipe `dp_sgd` on the plan with other settings in some tables. Raises `PlanError` where they clash."""
    plan = changed(data.plan, {**tables, "run": {"recipe": "dp_sgd"}}, epsilon=epsilon)
    checked(plan.check_descent)
    with driven(data.recipe("dp_sgd", plan, data.public), data.text.shards, data.progress) as run:
        return spent(run)


def spent(run: SimulatedRun[Any]) -> Outcome:
    """A run's outcome: its trained parameters [parameters], the cost of its releases, and its noise multiplier."""
    (*_, last) = run.priced.releases
    paid = composed([release.event for release in run.priced.releases])
    noise = {"noise_multiplier": last.under(GradientMechanism).noise_multiplier}
    return Outcome(_point(run), paid, notes=noise)


def _point(run: SimulatedRun[ClassifierPlan]) -> Floats:
    """The trained parameters, float32 [parameters]."""
    from safetensors.numpy import load

    found: Floats = load(run.content)["point"]
    return found


def by_votes(data: TextData, epsilon: float) -> Outcome:
    """Run the recipe `pate`: the student learns from noisy votes of the parties' classifiers on public texts.

    Source: Papernot et al. 2018.
    """
    plan = changed(data.plan, {"run": {"recipe": "pate"}}, epsilon=epsilon)
    checked(plan.check_votes)
    with driven(data.recipe("pate", plan, data.public), data.text.shards, data.progress) as run:
        (release,) = run.priced.releases
        total = np.concatenate([block for _, _, block in run.store.blocks(votes.VOTES)])
        released = release.under(JointMechanism).release(total, run.present[votes.VOTES]).votes
        assert released is not None
        labels = votes.labels_of(released, plan)
        clear = data.text.shards.bounded(votes.VOTES)
        tally = np.sum([part.toarray() if isinstance(part, sparse.csr_array) else part for part in clear], axis=0)
        kept = np.flatnonzero(labels >= 0)
        notes = {"answered": len(kept) / len(labels)}
        if len(kept):
            notes["label_accuracy"] = float((tally[kept, labels[kept]] == tally[kept].max(axis=1)).mean())
        return Outcome(_point(run), release.event, notes=notes)


def _fine_tune(data: TextData, epsilon: float) -> Outcome:
    """Without privacy: ordinary training on all parties' text together."""
    return Outcome(in_clear(data), None)


def in_clear(data: TextData) -> Floats:
    """Train without privacy on all parties' text together; returns the parameters, float32 [parameters]."""
    examples, vectors = non_private.pooled(data.text.parts), data.text.vectors(data.public)
    seen = None if vectors is None else np.concatenate(vectors)
    return non_private.trained(data.plan, data.public, examples, seen, data.progress)


METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method("dp_sgd", "federated DP-SGD", federated),
        Method("local", "each party alone, averaged", _local),
        Method("pate", "teachers' votes (PATE)", by_votes),
        Method("fine_tune", "no privacy", _fine_tune, private=False),
    )
}


VOTING: Final = next(name for name, method in METHODS.items() if method.make is by_votes)
"""The name of the row that needs classes, and public texts to vote on."""


def methods_of(plan: ClassifierPlan) -> dict[str, Method]:
    """The methods that a plan allows, by name: votes need classes, and public texts to vote on."""
    votes = plan.pate is not None and plan.text.kind != "regression"
    return {name: method for name, method in METHODS.items() if votes or name != VOTING}


def checked(check: Callable[[], None]) -> None:
    """Run a check of a changed plan. Raises `PlanError` where it fails."""
    try:
        check()
    except ValueError as error:
        raise PlanError(f"the plan: {error}") from None
