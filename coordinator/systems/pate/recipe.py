"""Recipe `pate`: private aggregation of teacher ensembles (Papernot et al. 2017, 2018) for text classifiers.

Every party trains classifiers on units of its own, without noise; they vote on public texts, and the votes are summed
under noise. The student learns the labels that come out: public texts with noisy labels are all that it sees.
"""

import json
import math
from typing import Final

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent
from numpy.typing import NDArray

from aggregation.errors import ConclaveError
from aggregation.mechanisms.joint import JointMechanism
from aggregation.mechanisms.mechanism import Released
from aggregation.mechanisms.thresholded import thresholded_labels
from aggregation.mechanisms.votes import VotesMechanism
from coordinator.errors import PlanError
from coordinator.federation.federation import Federation
from coordinator.pricing.release import Bound, Release, budget, shares
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.system import Stage
from coordinator.text_models.messages import descent_message, model_message, provide_model
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.text_models.recipe import ClassifierRecipe
from learning.text.labelled import LabelMap
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest

VOTES: Final = "votes"
_GRID_SIGMA: Final = 16.0
"""Standard deviation of one party's share of the noise, on the grid: fine enough, and quick to draw."""


class Pate(ClassifierRecipe):
    """The recipe."""

    fewer_cells = "Use a larger delta, or fewer [pate] queries."
    finer_grid = "Leave noise out."

    def whole(self, plan: ClassifierPlan, multiplier: float, public: PublicText | None) -> DpEvent:
        once = GaussianDpEvent(multiplier)
        return once if plan.privacy.attempts == 1 else SelfComposedDpEvent(once, plan.privacy.attempts)

    def releases(self, plan: ClassifierPlan, multiplier: float, public: PublicText | None) -> tuple[Release, ...]:
        assert plan.pate is not None
        queries = plan.pate.queries if public is None else len(public.queries)
        votes = mechanism(plan, multiplier, queries)
        return (Release(VOTES, votes, queries, votes.columns, queries, attempts=plan.privacy.attempts),)

    async def collect(
        self, bound: Bound[ClassifierPlan], public: PublicText, federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        plan, (release,) = bound.plan, bound.releases
        texts = texts_of(public)
        with stage("provide"):
            await provide_model(public, plan, federation, store)
            await federation.provide("texts", texts)
        with stage("train"):
            await federation.train(_request(plan, public, texts), doing="teaching")
        with stage("aggregate") as result:
            rows = max(1, release.rows // 16)
            if plan.privacy.trust == "secure-sum":
                present = await federation.sum_securely(release, bound.binding.terms, rows, store)
            else:
                note = budget(bound.guarantee, plan)
                present = await federation.aggregate(VOTES, release.rows, release.columns, rows, store, note)
            found = {VOTES: present}
            result |= {"parties": list(federation.present), "present": found, "bytes": federation.traffic}
        return found

    def parties_of(self, bound: Bound[ClassifierPlan], store: RunStore) -> dict[str, tuple[str, ...]]:
        return {VOTES: store.summed(VOTES)}

    def made_once(self, plan: ClassifierPlan) -> bool:
        return False

    def learn(
        self,
        bound: Bound[ClassifierPlan],
        public: PublicText,
        present: dict[str, int],
        store: RunStore,
        progress: Progress,
    ) -> bytes:
        from safetensors.numpy import save

        (release,) = bound.releases
        total = np.concatenate([block for _, _, block in store.blocks(VOTES)])
        votes = release.under(JointMechanism).release(total, present[VOTES]).votes
        assert votes is not None
        content: bytes = save({"point": learned(bound.plan, public, labels_of(votes, bound.plan), progress)})
        return content


def mechanism(plan: ClassifierPlan, multiplier: float, queries: int) -> JointMechanism:
    """Votes on so many queries, as noisy together as one Gaussian release of that multiplier. Raises `PlanError`.

    A unit is in one teacher, which changes one vote a query: L2 sensitivity sqrt(2) under add-or-remove of one unit.
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
    """The class that the noisy votes name on each query [queries], -1 below the plan's threshold: post-processing."""
    assert plan.pate is not None
    threshold = plan.pate.threshold
    named = votes.values.argmax(axis=1) if threshold is None else thresholded_labels(votes, threshold)
    return np.asarray(named, dtype=np.int64)


def learned(
    plan: ClassifierPlan, public: PublicText, labels: NDArray[np.int64], progress: Progress
) -> NDArray[np.float32]:
    """The student's parameters: trained on the public texts that got a label; the start where none did.

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
            "stays charged. Plan with a lower threshold, or without one."
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
        fit(model, rows, labels[kept], settings, rng, lambda done: progress.bar("student", round(100 * done), 100))
    return np.asarray(flatten(model).numpy())


def texts_of(public: PublicText) -> bytes:
    """The public texts as parties are sent them: JSON, a list of texts, or of lists of two."""
    asked = [list(each) if len(each) > 1 else each[0] for each in public.queries]
    return json.dumps(asked, ensure_ascii=False, separators=(",", ":")).encode()


def _request(plan: ClassifierPlan, public: PublicText, texts: bytes) -> party_pb2.TrainRequest:
    assert plan.pate is not None
    request = party_pb2.TrainRequest(operation_id=f"{VOTES}-0")
    request.ensemble.release, request.ensemble.teachers = VOTES, plan.pate.teachers_per_party
    request.ensemble.model.CopyFrom(model_message(plan, public))
    request.ensemble.texts_sha256 = artefact_digest(texts)
    request.ensemble.descent.CopyFrom(descent_message(plan.pate, epochs=plan.pate.epochs, batch=plan.pate.batch))
    return request
