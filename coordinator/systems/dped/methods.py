"""The methods that a comparison of DPED has as rows: each makes a student from the same simulated text and epsilon.

Every private method is one Gaussian mechanism, or one DP-SGD run, calibrated to the epsilon by the accountant that runs
use. Noise comes in the parties' shares where it does in a run. Baselines follow their papers as far as our guarantee
allows; the docstring of each says where it departs from its paper.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
from dp_accounting import SelfComposedDpEvent
from numpy.typing import NDArray
from scipy import sparse

from aggregation.accounting.price import calibrate
from aggregation.arrays import IntArray
from aggregation.mechanisms.counts import CountsMechanism
from aggregation.mechanisms.gradients import GradientMechanism, fine_levels
from aggregation.mechanisms.hidden import HiddenMechanism
from aggregation.mechanisms.joint import JointMechanism, TeacherSignal
from aggregation.mechanisms.mechanism import Contribution
from aggregation.mechanisms.vectors import VectorMechanism
from coordinator.comparing import comparable
from coordinator.comparing.comparable import Method, Outcome, SeedData, composed
from coordinator.comparing.simulated_run import SimulatedRun, driven
from coordinator.pricing.release import gaussian_multiplier, shares
from coordinator.progress.progress import Progress
from coordinator.systems.dped import recipe, releases
from coordinator.systems.dped.paper_claim import paper_claim
from coordinator.systems.dped.plan import DpedPlan, PrivateTrainingTable
from coordinator.systems.dped.public import Public
from coordinator.systems.dped.recipe import Dped
from coordinator.systems.dped.releases import vectors_mechanism
from coordinator.systems.dped.signals import LABELS, Signals
from coordinator.transport.launchers import Simulation, TeachersWanted

if TYPE_CHECKING:
    from learning.embeddings.skipgram import SkipGram

SKETCH_WIDTH, SKETCH_CLIP = 64, 10.0
"""Random features, and the L2 norm of one unit's embedding; chosen on WikiText-2's sentences."""
OPEN_STEPS = 100
QUIET = 0.7
"""Above this noise multiplier z, DP-SGD takes shorter steps, by (QUIET / z)^2: the noise in a step is public."""
NEIGHBOURS = 10
"""A word's radius is the distance to this nearest public neighbour."""
RADII = 1.0
"""L2 norm, in radii, to which a teacher's difference from the public reference is clipped."""


@dataclass(slots=True)
class EmbeddingData(SeedData):
    """The data of one seed: the public data, the parties' units, and their teachers' answers once these are needed."""

    plan: DpedPlan
    public: Public
    shards: Simulation
    progress: Progress
    _units: tuple[sparse.csr_array, ...] | None = None
    _answers: dict[tuple[Any, ...], tuple[TeacherSignal, ...]] = field(default_factory=dict)
    _bounded: dict[tuple[Any, ...], list[Contribution]] = field(default_factory=dict)

    def units(self) -> tuple[sparse.csr_array, ...]:
        """Each party's pair counts, [units, words * words]."""
        if self._units is None:
            self._units = self.shards.counts()
        return self._units

    def exact(self) -> sparse.csr_array:
        """The sum of all parties' counts, [words, words], without noise."""
        size = self.plan.vocabulary.size
        sums = [np.asarray(units.sum(axis=0)).reshape(size, size) for units in self.units()]
        return sparse.csr_array(sum(sums[1:], sums[0]))

    def answers(self) -> tuple[TeacherSignal, ...]:
        """The answers of each party's teachers, which are trained at the first call."""
        from learning.embeddings.weights import to_bytes

        settings = self.plan.dped
        key = (settings.teachers_per_party, settings.alignment, settings.vote, tuple(settings.layers), self.seed)
        if key not in self._answers:
            assert self.public.reference is not None
            wanted = TeachersWanted(
                teachers_per_party=settings.teachers_per_party,
                alignment=settings.alignment,
                queries=self.public.queries.tolist(),
                classes=self.public.classes.tolist(),
                layers=settings.layers,
                vote=settings.vote,
                seed=self.seed,
            )
            self._answers[key] = self.shards.answers(to_bytes(self.public.reference), wanted)
        return self._answers[key]

    def bounded(
        self, what: str, mechanism: Any, bound: Callable[[sparse.csr_array], Contribution]
    ) -> list[Contribution]:
        """Each party's bounded sum, made once for each clip and grid: between epsilons only the noise differs."""
        key = (what, mechanism.clip, mechanism.levels)
        if key not in self._bounded:
            self._bounded[key] = [bound(units) for units in self.units()]
        return self._bounded[key]


def changed(plan: DpedPlan, *, epsilon: float | None = None, seed: int | None = None, **settings: Any) -> DpedPlan:
    """Copy a plan with another epsilon, seed or `[dped]` settings, and check it. Raises `PlanError` where it fails."""
    return comparable.changed(plan, {"dped": settings}, epsilon=epsilon, seed=seed)


def summed(
    data: EmbeddingData,
    mechanism: CountsMechanism | JointMechanism | VectorMechanism,
    contributions: Sequence[Contribution],
) -> IntArray:
    """The sum that a coordinator would get: each party's bounded part plus its share of the noise."""
    total: IntArray | None = None
    for number, contribution in enumerate(contributions):
        dense = contribution.toarray() if isinstance(contribution, sparse.csr_array) else contribution
        noisy = mechanism.noise_share(dense.shape, data.stream("compare", repr(mechanism), number)) + dense
        total = noisy if total is None else total + noisy
    assert total is not None
    return total


Make: TypeAlias = Callable[[EmbeddingData, float], Outcome]


def _dped(*signals: str, **settings: Any) -> Make:
    """A method that runs DPED's own recipe with these signals over the simulated parties."""

    def make(data: EmbeddingData, epsilon: float) -> Outcome:
        from learning.embeddings.weights import from_bytes

        plan = changed(data.plan, epsilon=epsilon, signals=list(signals), private_training=None, **settings)
        with driven(Dped(plan, data.public), data.shards, data.progress) as run:
            events = [release.event for release in run.priced.releases]
            notes = _of_labels(data, run)
            return Outcome(from_bytes(run.content), composed(events), paper_claim(run.priced), notes)

    return make


def _of_labels(data: EmbeddingData, run: SimulatedRun[DpedPlan]) -> dict[str, float]:
    """The share of labels that got the most votes; with a threshold, the share of queries with a label, too."""
    for release in run.priced.releases:
        clear = data.shards.bounded(release.name) if release.name in (releases.VOTES, releases.ANSWERS) else ()
        if release.name == releases.VOTES:
            ((_, _, labels),) = run.store.blocks(LABELS)
            votes = np.hstack([_dense(each) for each in clear])
            tally = np.stack([(votes == place).sum(axis=1) for place in range(run.priced.plan.classes)], axis=1)
            return {"answered": float((labels >= 0).mean()), "label_accuracy": _accuracy(labels[:, 0], tally)}
        if release.name == releases.ANSWERS and (joint := release.under(JointMechanism)).votes is not None:
            total = np.concatenate([block for _, _, block in run.store.blocks(release.name)])
            noised = joint.release(total, run.present[release.name]).votes
            assert noised is not None
            tally = sum((_dense(each)[:, : joint.classes] for each in clear), np.zeros_like(noised.values, np.int64))
            return {"label_accuracy": _accuracy(noised.values.argmax(axis=1), tally)}
    return {}


def _dense(part: sparse.csr_array | NDArray[np.int32]) -> IntArray:
    return np.asarray(part.toarray() if isinstance(part, sparse.csr_array) else part, np.int64)


def _accuracy(labels: NDArray[np.integer[Any]], sums: IntArray) -> float:
    """Share of the answered queries whose label got the most votes: labels [queries], sums [queries, classes]."""
    answered = np.flatnonzero(labels >= 0)
    if not answered.size:
        return math.nan
    return float((sums[answered, labels[answered]] == sums[answered].max(axis=1)).mean())


def _unigram(data: EmbeddingData, epsilon: float) -> Outcome:
    """The floor: the whole budget goes to word frequencies, shrunk to the public ones; nothing else is learned."""
    from learning.embeddings.moments import contribute
    from learning.embeddings.prior import frequencies_of

    assert data.public.frequencies is not None
    directions, clip = data.public.frequencies
    multiplier = gaussian_multiplier(epsilon, data.delta)
    mechanism = vectors_mechanism(data.plan, clip, multiplier)
    bounding = partial(contribute, directions=directions, mechanism=mechanism)
    total = summed(data, mechanism, data.bounded("frequencies", mechanism, bounding))
    released = mechanism.release(total, len(data.units()))
    return Outcome(flat(frequencies_of(released, directions)), mechanism.event())


def flat(probabilities: NDArray[np.float64]) -> "SkipGram":
    """A model that predicts the same contexts for every centre: probabilities [words]."""
    from learning.embeddings.skipgram import SkipGram

    nothing = np.zeros((len(probabilities), 1), dtype=np.float32)
    return SkipGram(nothing, nothing, np.log(probabilities).astype(np.float32))


def _private_skipgram(data: EmbeddingData, epsilon: float) -> Outcome:
    """DP-SGD (Abadi et al. 2016) from the public reference, in its best case: one curator holds all parties' units."""
    from learning.embeddings.dp_sgd import train_private

    units = sparse.csr_array(sparse.vstack(data.units(), format="csr"))
    reference = data.public.reference
    assert reference is not None
    settings = data.plan.dped.private_training or PrivateTrainingTable(units_per_teacher=512)
    declared = declared_units(data.plan, units.shape[0])
    batch = min(settings.batch, declared)
    parameters = data.plan.vocabulary.size * (2 * data.plan.dped.dimension + 1)
    probability = batch / declared

    def mechanism(multiplier: float) -> GradientMechanism:
        levels = fine_levels(multiplier, parameters)
        return GradientMechanism(settings.clip, levels, multiplier, probability, settings.steps, parameters)

    multiplier = calibrate(lambda z: mechanism(z).event(), epsilon, data.delta)
    chosen = mechanism(multiplier)
    model = train_private(
        units,
        chosen,
        start=reference,
        expected_batch=batch,
        learning_rate=settings.learning_rate * min(1.0, QUIET / multiplier) ** 2,
        stream=data.stream("compare", "gradients", repr(epsilon)),
        on_step=lambda done: data.progress.bar("training", round(100 * done), 100, "percent"),
    )
    return Outcome(model, chosen.event(), notes={"noise_multiplier": multiplier})


def declared_units(plan: DpedPlan, counted: int) -> int:
    """The public number of units: the plan's, or else the count to two digits, which a simulation may publish."""
    privately = plan.dped.private_training
    if plan.privacy.declared_size is not None:
        return plan.privacy.declared_size
    if privately is not None:
        return privately.units_per_teacher * plan.teachers
    digits: int = 10 ** max(0, len(str(counted)) - 2)
    return max(2, (counted + digits // 2) // digits * digits)


def _sketch(data: EmbeddingData, epsilon: float) -> Outcome:
    """In the style of DP-MERF (Harder et al. 2021): a noisy embedding of all pairs, and a model fitted to it."""
    from learning.embeddings.dp_merf import Features, contribute, fit_sketch

    plan = data.plan
    features = Features.from_seed(plan.vocabulary.size, SKETCH_WIDTH, data.seed)
    multiplier = gaussian_multiplier(epsilon, data.delta)
    mechanism = vectors_mechanism(plan, 1.0 if plan.privacy.record == "pair" else SKETCH_CLIP, multiplier)
    bounding = partial(contribute, features=features, mechanism=mechanism)
    total = summed(data, mechanism, data.bounded("sketch", mechanism, bounding))
    released = mechanism.release(total, len(data.units()))
    model = fit_sketch(
        released.values,
        released.sigma,
        features,
        start=data.public.reference,
        dimension=plan.dped.dimension,
        seed=data.seed,
    )
    return Outcome(model, mechanism.event())


def _neighbours(data: EmbeddingData, epsilon: float) -> Outcome:
    """In the style of neighbour-aware noise (Bollegala et al. 2023): hidden states scaled by public neighbour radii."""
    from learning.embeddings.neighbour_noise import from_local, radii, to_local
    from learning.embeddings.teachers import hidden_states

    plan, public = data.plan, data.public
    assert public.reference is not None
    layers, width, queries = plan.dped.layers, plan.dped.dimension, len(public.queries)
    near = radii(public.reference.inputs, NEIGHBOURS)[public.queries]
    home = hidden_states(public.reference, public.queries, layers)
    whole = gaussian_multiplier(epsilon, data.delta)
    noise = whole * math.sqrt(queries) * 2 * RADII * math.sqrt(len(layers))
    levels = max(1, int(2048 * math.sqrt(shares(plan)) * RADII / noise))
    joint = JointMechanism(None, HiddenMechanism(len(layers), width, RADII, levels, noise, shares(plan)))
    moves = [to_local(cast(NDArray[np.float32], each.states), home, near) for each in data.answers()]
    total = summed(data, joint, [joint.contribute(TeacherSignal(None, each)) for each in moves])
    released = joint.release(total, len(moves)).hidden
    assert released is not None
    teachers = plan.teachers
    mean = released.values.reshape(queries, len(layers), width) / teachers
    # The likelihood takes one noise for all words: that of the typical radius.
    found = Signals(
        hidden=from_local(mean, home, near), hidden_noise=released.sigma / teachers * float(np.sqrt(np.mean(near**2)))
    )
    quiet = changed(plan, epsilon=epsilon, signals=["hidden"], private_training=None, threshold=None)
    return Outcome(recipe.learned(quiet, public, found, data.progress), SelfComposedDpEvent(joint.event(), queries))


def _open(data: EmbeddingData, epsilon: float) -> Outcome:
    """Without privacy: the full softmax on the exact counts of all parties."""
    from learning.embeddings.skipgram import fit

    return Outcome(fit(data.exact(), dimension=data.plan.dped.dimension, seed=data.seed), None)


def _open_from_public(data: EmbeddingData, epsilon: float) -> Outcome:
    """Without privacy, started from and regularised to the public reference, as teachers are: what public text adds."""
    from learning.embeddings.teachers import train_teacher

    assert data.public.reference is not None
    model = train_teacher(
        data.exact(), data.public.reference, alignment="initialisation", seed=data.seed, steps=OPEN_STEPS
    )
    return Outcome(model, None)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("dped", "DPED: votes and hidden states", _dped("votes", "hidden")),
        Method("dped-paper", "DPED with the paper's loss", _dped("votes", "hidden", loss="paper")),
        Method("pate", "output only (PATE)", _dped("votes")),
        Method("hidden", "hidden states only", _dped("hidden", threshold=None, noise_at="parties")),
        Method("counts", "counts", _dped("counts", threshold=None, noise_at="parties")),
        Method("moments", "moments along public directions", _dped("moments", threshold=None, noise_at="parties")),
        Method("dp-sgd", "DP-SGD skip-gram", _private_skipgram),
        Method("dp-merf", "DP-MERF style", _sketch),
        Method("neighbour", "neighbour style", _neighbours),
        Method("unigram", "noised unigram (the floor)", _unigram, plain=True),
        Method("non-private", "no privacy", _open, private=False),
        Method("non-private-public", "no privacy, from the public start", _open_from_public, private=False),
    )
}
