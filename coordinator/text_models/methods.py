"""The methods that a comparison of text classifiers sets side by side, each on the same simulated text.

Rows that are systems drive the recipe itself over simulated parties, on the plan at that epsilon.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from aggregation.mechanisms.gradients import GradientMechanism
from aggregation.mechanisms.joint import JointMechanism
from aggregation.noise.stream import NoiseStream
from coordinator.comparing.comparable import Method, Outcome, changed, composed
from coordinator.comparing.simulated_run import Collecting, SimulatedRun, driven
from coordinator.errors import PlanError
from coordinator.pricing.release import SAMPLER_SHARE
from coordinator.progress.progress import Progress
from coordinator.text_models import non_private, votes
from coordinator.text_models.non_private import Pooled
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.transport.launchers import LabelledPart, Simulation

if TYPE_CHECKING:
    from learning.private_training.optimisation import Optimisation
    from learning.private_training.units import Losses, MicroBatch, Units

Floats: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ReadText:
    """All parties' text, read once for all cells.

    vectors: what the last layer sees of each party's examples [examples, width], where that alone is trained; heldout:
    of the held-out examples. None where more is trained.
    """

    parts: tuple[LabelledPart, ...]
    examples: Pooled
    vectors: tuple[Floats, ...] | None
    heldout: Floats | None


@dataclass(slots=True)
class TextBench:
    """The data of one seed: its public side, and the parties, asked or in clear.

    public: its model is trained in place, from its start, by every method. recipe: as of
    `coordinator.comparing.comparable.Comparable`.
    """

    plan: ClassifierPlan
    public: PublicText
    read: ReadText
    shards: Simulation
    progress: Progress
    recipe: Callable[[str, Any, Any], Collecting[ClassifierPlan]]

    @property
    def seed(self) -> int:
        """The plan's seed."""
        return self.plan.run.seed

    @property
    def delta(self) -> float:
        """Delta that events are priced at; the rest is the noise sampler's."""
        return self.plan.privacy.delta * (1 - SAMPLER_SHARE)

    def stream(self, *labels: str | int) -> NoiseStream:
        """Noise of its own for these labels; from the seed only where the plan says so."""
        if self.plan.privacy.insecure_reproducible_noise:
            return NoiseStream.insecure(self.seed, *labels)
        return NoiseStream.from_system()

    def trainable(self, soft: Sequence[Floats] | None = None) -> "Trainable":
        """What is trained, at its public start, and each party's units of it, with other targets than their labels."""
        import torch

        from learning.models.adapting import unflatten
        from learning.models.batching import losses
        from learning.models.features import head_alone
        from learning.private_training.feature_units import FeatureUnits, head_losses
        from learning.private_training.text_units import TextUnits, probe_of

        model, read = self.public.model, self.read
        unflatten(model, torch.from_numpy(self.public.start))
        targets = [part.labels for part in read.parts] if soft is None else soft
        labels = [torch.from_numpy(np.ascontiguousarray(each)) for each in targets]
        if read.vectors is not None:
            head = head_alone(model)
            assert head is not None
            units: list[Units] = [
                FeatureUnits(vectors, label, members=part.members)
                for part, vectors, label in zip(read.parts, read.vectors, labels, strict=True)
            ]
            return Trainable(head, units, head_losses, None)
        units = [
            TextUnits(model.config, part.rows, label, members=part.members)
            for part, label in zip(read.parts, labels, strict=True)
        ]
        return Trainable(model, units, losses, probe_of(model.config, len(self.plan.text.labels)))


@dataclass(frozen=True, slots=True)
class Trainable:
    """What `party.tasks.text.model.ready` gives, of all parties: a module at its public start, and their units."""

    module: Any
    units: "list[Units]"
    losses: "Losses"
    probe: "MicroBatch | None"


def _dp_sgd(bench: TextBench, epsilon: float) -> Outcome:
    """The recipe, federated: every step's sum is of all parties, each with its share of the noise."""
    return descended(bench, epsilon, {"dp_sgd": {"form": "federated", "rounds": 1}})


def _local(bench: TextBench, epsilon: float) -> Outcome:
    """The recipe's other form: each party trains alone under noise of its own, and the models are averaged."""
    alone: dict[str, Any] = {"trust": "trusted-aggregator", "dropouts": 0, "colluders": 0}
    return descended(bench, epsilon, {"dp_sgd": {"form": "local"}, "privacy": alone})


def descended(bench: TextBench, epsilon: float, tables: Mapping[str, Mapping[str, Any]]) -> Outcome:
    """The recipe `dp_sgd` on the plan with other settings in some tables."""
    plan = changed(bench.plan, {**tables, "run": {"recipe": "dp_sgd"}}, epsilon=epsilon)
    checked(plan.check_descent)
    with driven(bench.recipe("dp_sgd", plan, bench.public), bench.shards, bench.progress) as run:
        events = [release.event for release in run.priced.releases]
        (*_, last) = run.priced.releases
        return Outcome(_point(run), composed(events), notes=_noise(last.under(GradientMechanism)))


def _point(run: SimulatedRun[ClassifierPlan]) -> Floats:
    """What was trained [parameters]."""
    from safetensors.numpy import load

    found: Floats = load(run.content)["point"]
    return found


def federated(
    bench: TextBench,
    mechanism: GradientMechanism,
    optimisation: "Optimisation",
    purpose: tuple[str, ...],
    soft: Sequence[Floats] | None = None,
) -> Floats:
    """What comes of so many federated steps from the public start, [parameters].

    purpose: labels of its noise. soft: what each party's examples are to be told to say, in place of their labels.
    """
    import torch

    from learning.models.adapting import unflatten
    from learning.private_training.clipped_sum import clipped_sum
    from learning.private_training.optimisation import Training
    from learning.private_training.per_example import PerExample

    work = bench.trainable(soft)
    gradients = PerExample(work.module)
    descent = Training(torch.from_numpy(bench.public.start), optimisation, mechanism.steps)
    while descent.done < mechanism.steps:
        total = np.zeros(mechanism.parameters, np.int64)
        for number, units in enumerate(work.units):
            labels: tuple[str | int, ...] = (*purpose, descent.done, number)
            taken = mechanism.batch(len(units), bench.stream(*labels, "batch"))
            part = clipped_sum(gradients, units.micro_batches(taken), work.losses, mechanism)
            share = mechanism.noise_share(part.shape, bench.stream(*labels, "noise"))
            total += mechanism.contribute(part) + share
        descent.step(mechanism.release(total, len(work.units)).values.astype(np.float32))
        unflatten(work.module, descent.point)
        bench.progress.bar("training", descent.done, mechanism.steps)
    return np.array(descent.point.numpy())


def by_votes(bench: TextBench, epsilon: float) -> Outcome:
    """The recipe `pate`: noisy votes of the parties' classifiers on public texts, from which the student learns."""
    plan = changed(bench.plan, {"run": {"recipe": "pate"}}, epsilon=epsilon)
    checked(plan.check_votes)
    with driven(bench.recipe("pate", plan, bench.public), bench.shards, bench.progress) as run:
        (release,) = run.priced.releases
        total = np.concatenate([block for _, _, block in run.store.blocks(votes.VOTES)])
        released = release.under(JointMechanism).release(total, run.present[votes.VOTES]).votes
        assert released is not None
        labels = votes.labels_of(released, plan)
        clear = bench.shards.bounded(votes.VOTES)
        tally = np.sum([part.toarray() if isinstance(part, sparse.csr_array) else part for part in clear], axis=0)
        kept = np.flatnonzero(labels >= 0)
        notes = {"answered": len(kept) / len(labels)}
        if len(kept):
            notes["label_accuracy"] = float((tally[kept, labels[kept]] == tally[kept].max(axis=1)).mean())
        return Outcome(_point(run), release.event, notes=notes)


def _fine_tune(bench: TextBench, epsilon: float) -> Outcome:
    """No privacy: ordinary training on all parties' text together."""
    read = bench.read
    vectors = None if read.vectors is None else np.concatenate(read.vectors)
    return Outcome(non_private.trained(bench.plan, bench.public, read.examples, vectors, bench.progress), None)


def _noise(mechanism: GradientMechanism) -> dict[str, float]:
    return {"noise_multiplier": mechanism.noise_multiplier}


METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method("dp_sgd", "federated DP-SGD", _dp_sgd),
        Method("local", "each party alone, averaged", _local),
        Method("pate", "teachers' votes (PATE)", by_votes),
        Method("fine_tune", "no privacy", _fine_tune, private=False),
    )
}


VOTING: Final = next(name for name, method in METHODS.items() if method.make is by_votes)
"""The row that wants classes, and public texts to vote on."""


def methods_of(plan: ClassifierPlan) -> dict[str, Method]:
    """Those that go with a plan: votes want classes, and public texts to vote on."""
    votes = plan.pate is not None and plan.text.kind != "regression"
    return {name: method for name, method in METHODS.items() if votes or name != VOTING}


def checked(check: Callable[[], None]) -> None:
    """Raises `PlanError` where a check of a plan that was changed says what is wrong."""
    try:
        check()
    except ValueError as error:
        raise PlanError(f"the plan: {error}") from None
