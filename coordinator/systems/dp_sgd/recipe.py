"""Recipe `dp_sgd`: all parties train one text classifier under DP-SGD (Abadi et al. 2016, algorithm 1).

Federated: at every step each party sums the clipped gradients of a secret random sample of its units; the sums are
added up with noise, and the coordinator's optimiser takes one step with the result. Local: each party trains alone from
the common start under noise of its own, and the models are averaged after every round.
"""

from dataclasses import dataclass

from coordinator.federation.federation import Federation
from coordinator.pricing.release import PricedPlan
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.system import Stage
from coordinator.text_models.federated_training import descend, descended
from coordinator.text_models.messages import provide_model
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.recipe import Trained


@dataclass(frozen=True, slots=True)
class DpSgd(Trained):
    """A `coordinator.systems.system.Recipe`."""

    async def collect(
        self, priced: PricedPlan[ClassifierPlan], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        with stage("provide"):
            await provide_model(self.read, self.plan, federation, store)
        with stage("aggregate") as result:
            present = await descend(priced, priced.releases, self.read, federation, store)
            result |= {"parties": list(federation.present), "present": present, "bytes": federation.traffic}
        return present

    def learn(
        self, priced: PricedPlan[ClassifierPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        from safetensors.numpy import save

        content: bytes = save({"point": descended(self.plan, self.read, store)})
        return content
