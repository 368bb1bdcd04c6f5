"""Recipe `dped`: multi-layer noise distillation for embeddings (DPED, algorithm 1), and its form with counts.

Teachers trained on disjoint units answer every public query word with a vote for its context and with their hidden
vectors; the noisy sums of these teach a student. Beside this, or instead, every unit's clipped (word, context) counts
are summed once under noise, and a student is fitted to the sum.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from dp_accounting import DpEvent

from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.thresholded import ThresholdedVotes
from aggregation.noise.stream import NoiseStream
from coordinator.federation.federation import Federation
from coordinator.pricing.release import PricedPlan, Release, unpromised
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.dped import releases as terms
from coordinator.systems.dped.paper_claim import paper_claim
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.dped.public import Public, doubts_of_text
from coordinator.systems.dped.releases import COUNTS, MOMENTS
from coordinator.systems.dped.signals import LABELS, Signals, signals_of
from coordinator.systems.dped.student import EmbeddingStudent, measured
from coordinator.systems.system import Stage
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest

if TYPE_CHECKING:
    from learning.embeddings.skipgram import SkipGram

_ALIGNMENT = {
    "initialisation": party_pb2.ALIGNMENT_INITIALISATION,
    "procrustes": party_pb2.ALIGNMENT_PROCRUSTES,
}
_LAYER = {"centre": party_pb2.LAYER_CENTRE, "context": party_pb2.LAYER_CONTEXT}
_VOTE = {"probable": party_pb2.VOTE_PROBABLE, "lift": party_pb2.VOTE_LIFT}


@dataclass(frozen=True, slots=True)
class Dped:
    """A `coordinator.systems.system.Recipe`. The student's parameters are those of a skip-gram.

    public: None where nothing was read; then only the releases can be asked for.
    """

    plan: DpedPlan
    public: Public | None

    fewer_cells = "Use a larger delta, more [dped] levels, or fewer words."
    finer_grid = "Use more [dped] levels, or leave noise out."
    labelled = None

    def total_event(self, multiplier: float) -> DpEvent:
        return terms.total_event(self.plan, multiplier)

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        return terms.releases(self.plan, multiplier, self.public)

    def doubts(self) -> list[str]:
        return doubts_of_text(self.plan, self.read)

    async def collect(
        self, priced: PricedPlan[DpedPlan], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        return await collect(priced, self.read, federation, store, stage)

    def learn(
        self, priced: PricedPlan[DpedPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        from learning.embeddings.weights import to_bytes

        return to_bytes(learned(self.plan, self.read, signals_of(priced, self.read, present, store), progress))

    def student(
        self, content: bytes, priced: PricedPlan[DpedPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> EmbeddingStudent:
        from learning.embeddings.weights import from_bytes

        signals = signals_of(priced, self.read, present, store)
        student = measured(from_bytes(content), self.plan, self.read, signals)
        return replace(student, claimed=paper_claim(priced) if priced.private else None)

    @property
    def read(self) -> Public:
        """The public data, where it was read."""
        assert self.public is not None
        return self.public


async def collect(
    priced: PricedPlan[DpedPlan], public: Public, federation: Federation, store: RunStore, stage: Stage
) -> dict[str, int]:
    """The private half: parties learn, bound and add noise. Returns how many parties are in the sum of each release.

    When it is run again after a stop, it asks for nothing that is already stored, and parties keep what they trained.
    """
    from learning.embeddings.weights import to_bytes

    plan = priced.plan
    with stage("provide"):
        vocabulary = public.vocabulary.to_bytes()
        store.write("artefacts/vocabulary.json", vocabulary)
        await federation.provide("vocabulary", vocabulary)
        if public.reference is not None:
            reference = to_bytes(public.reference)
            store.write("artefacts/reference.safetensors", reference)
            if plan.dped.teaches:
                await federation.provide("reference", reference)
        if public.moments is not None:
            directions = public.moments[0].to_bytes()
            store.write("artefacts/directions.safetensors", directions)
            await federation.provide("directions", directions)
    asked = [release for release in priced.releases if release.form.gives]
    with stage("train"):
        for release in asked:
            request = _request(release, plan, public)
            doing = "counting" if release.name in (COUNTS, MOMENTS) else "teaching"
            await federation.train(request, doing)
    present: dict[str, int] = {}
    with stage("aggregate") as result:
        for release in asked:
            note = unpromised(plan)
            rows = plan.rows_at_once(release.rows, release.columns)
            if release.form == Form.CLEAR_VOTES and store.block_counts().get(LABELS):
                present[release.name] = len(store.summed(LABELS))  # drawn once: new noise would be a second answer
            elif release.form == Form.CLEAR_VOTES:
                votes = await federation.gather(release.name, release.rows, release.columns, rows, note)
                clear = np.hstack(list(votes.values()))
                labels = release.under(ThresholdedVotes).answer(clear, stream_of(plan, release.name)).labels
                for name in (release.name, LABELS):
                    store.begin_sum(name, list(votes))
                store.put_block(LABELS, 0, 0, release.rows, labels[:, None])
                present[release.name] = len(votes)
            elif plan.privacy.trust == "secure-sum":
                present[release.name] = await federation.sum_securely(release, priced.binding.terms, rows, store)
            else:
                present[release.name] = await federation.aggregate(
                    release.name, release.rows, release.columns, rows, store, note
                )
        result |= {"parties": list(federation.present), "present": present, "bytes": federation.traffic}
    return present


def stream_of(plan: DpedPlan, release: str) -> NoiseStream:
    """The coordinator's own noise stream, where the plan trusts it to add the noise."""
    if plan.privacy.insecure_reproducible_noise:
        return NoiseStream.insecure(plan.run.seed, "coordinator", release)
    return NoiseStream.from_system()


def learned(plan: DpedPlan, public: Public, signals: Signals, progress: Progress) -> "SkipGram":
    """The student, by post-processing alone.

    The student is first fitted to the counts. Votes and hidden states then train it, or the public reference where
    there are no counts, by the paper's loss or by the likelihood of what was released.
    """
    from learning.embeddings import skipgram
    from learning.embeddings.distilling import distil
    from learning.embeddings.prior import fit_moments
    from learning.embeddings.released_answers import ReleasedAnswers
    from learning.embeddings.teachers import align

    def shown(done: float) -> None:
        progress.bar("student", round(100 * done), 100, "percent")

    start = public.reference
    if signals.counts is not None:
        counts, sigma = signals.counts.values, signals.counts.sigma
        fitted = skipgram.fit_noisy(counts, sigma, dimension=plan.dped.dimension, seed=plan.run.seed, on_step=shown)
        start = fitted if start is None else align(fitted, start)
    assert start is not None
    if signals.moments is not None:
        assert public.moments is not None
        fitted = fit_moments(signals.moments, public.moments[0], on_step=shown)
        start = align(fitted, start) if plan.dped.teaches and start is not None else fitted
    if signals.labels is None and signals.histogram is None and signals.hidden is None:
        return start
    answers = ReleasedAnswers(
        queries=public.queries,
        weights=public.weights,
        labels=signals.labels,
        histogram=signals.histogram,
        classes=public.classes,
        histogram_noise=signals.histogram_noise,
        hidden=signals.hidden,
        layers=plan.dped.layers,
        hidden_noise=signals.hidden_noise,
    )
    return distil(start, answers, weighting=plan.dped.loss, on_step=shown)


def _request(release: Release, plan: DpedPlan, public: Public) -> party_pb2.TrainRequest:
    """The training request that parties are sent for a release."""
    from learning.embeddings.weights import to_bytes

    settings = plan.dped
    request = party_pb2.TrainRequest(operation_id=f"{release.name}-0")
    task: party_pb2.CooccurrenceTask | party_pb2.MomentsTask | party_pb2.TeachersTask
    match release.name:
        case terms.COUNTS:
            task = request.cooccurrence
        case terms.MOMENTS:
            task = request.moments
        case _:
            task = request.teachers
    task.release, task.vocabulary_sha256, task.window = release.name, public.vocabulary.sha256, settings.window
    if public.moments is not None and release.name == MOMENTS:
        request.moments.directions_sha256 = artefact_digest(public.moments[0].to_bytes())
    if release.name in (COUNTS, MOMENTS):
        return request
    assert public.reference is not None
    request.teachers.MergeFrom(
        party_pb2.TeachersTask(
            reference_sha256=artefact_digest(to_bytes(public.reference)),
            teachers=settings.teachers_per_party,
            alignment=_ALIGNMENT[settings.alignment],
            queries=public.queries.tolist(),
            classes=public.classes.tolist(),
            layers=[_LAYER[layer] for layer in settings.layers],
            vote=_VOTE[settings.vote],
        )
    )
    privately = settings.private_training
    if privately is not None:
        request.teachers.expected_batch = privately.batch
        request.teachers.learning_rate = privately.learning_rate
    return request
