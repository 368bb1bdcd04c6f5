"""Recipe `pate`: private aggregation of teacher ensembles (Papernot et al. 2017, 2018) for text classifiers.

Every party trains classifiers on disjoint parts of its units, without noise. They vote on public texts, and the votes
are summed under noise. The student learns from the noisy labels: it sees public texts only.
"""

from dataclasses import dataclass

import numpy as np

from aggregation.mechanisms.joint import JointMechanism
from coordinator.federation.federation import Federation
from coordinator.pricing.release import PricedPlan, unpromised
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.system import Stage
from coordinator.text_models.messages import descent_message, model_message, provide_model
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.text_models.recipe import Voted
from coordinator.text_models.votes import VOTES, labels_of, learned, texts_of
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest


@dataclass(frozen=True, slots=True)
class Pate(Voted):
    """A `coordinator.systems.system.Recipe`."""

    async def collect(
        self, priced: PricedPlan[ClassifierPlan], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        plan, public, (release,) = self.plan, self.read, priced.releases
        texts = texts_of(public)
        with stage("provide"):
            await provide_model(public, plan, federation, store)
            await federation.provide("texts", texts)
        with stage("train"):
            await federation.train(_request(plan, public, texts), doing="teaching")
        with stage("aggregate") as result:
            rows = max(1, release.rows // 16)
            if plan.privacy.trust == "secure-sum":
                present = await federation.sum_securely(release, priced.binding.terms, rows, store)
            else:
                note = unpromised(plan)
                present = await federation.aggregate(VOTES, release.rows, release.columns, rows, store, note)
            found = {VOTES: present}
            result |= {"parties": list(federation.present), "present": found, "bytes": federation.traffic}
        return found

    def learn(
        self, priced: PricedPlan[ClassifierPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        from safetensors.numpy import save

        (release,) = priced.releases
        total = np.concatenate([block for _, _, block in store.blocks(VOTES)])
        votes = release.under(JointMechanism).release(total, present[VOTES]).votes
        assert votes is not None
        content: bytes = save({"point": learned(self.plan, self.read, labels_of(votes, self.plan), progress)})
        return content


def _request(plan: ClassifierPlan, public: PublicText, texts: bytes) -> party_pb2.TrainRequest:
    assert plan.pate is not None
    request = party_pb2.TrainRequest(operation_id=f"{VOTES}-0")
    request.ensemble.release, request.ensemble.teachers = VOTES, plan.pate.teachers_per_party
    request.ensemble.model.CopyFrom(model_message(plan, public))
    request.ensemble.texts_sha256 = artefact_digest(texts)
    request.ensemble.descent.CopyFrom(descent_message(plan.pate, epochs=plan.pate.epochs, batch=plan.pate.batch))
    return request
