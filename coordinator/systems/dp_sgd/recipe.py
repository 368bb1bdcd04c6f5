"""Recipe `dp_sgd`: one text classifier learned by all parties under DP-SGD (Abadi et al. 2016).

Federated: at every step each party sums the clipped gradients of a secret sample of its units; the sums are added under
noise, and the coordinator's optimiser takes a step down what comes out. Local: each party trains alone from the common
start under noise of its own, and the models are averaged, round after round.
"""

from dp_accounting import DpEvent

from coordinator.errors import PlanError
from coordinator.federation.federation import Federation
from coordinator.pricing.release import Bound, Release
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.system import Stage
from coordinator.text_models.federated_training import (
    descend,
    descended,
    descended_parties,
    descent_event,
    descent_releases,
)
from coordinator.text_models.messages import provide_model
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.public import PublicText
from coordinator.text_models.recipe import ClassifierRecipe


class DpSgd(ClassifierRecipe):
    """The recipe."""

    fewer_cells = "Use a larger delta, fewer steps, or train less of the model ([model] adapt)."
    finer_grid = "Leave noise out."

    def whole(self, plan: ClassifierPlan, multiplier: float, public: PublicText | None) -> DpEvent:
        return descent_event(plan, multiplier, _parameters(public))

    def releases(self, plan: ClassifierPlan, multiplier: float, public: PublicText | None) -> tuple[Release, ...]:
        return descent_releases(plan, multiplier, _parameters(public))

    async def collect(
        self, bound: Bound[ClassifierPlan], public: PublicText, federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        with stage("provide"):
            await provide_model(public, bound.plan, federation, store)
        with stage("aggregate") as result:
            present = await descend(bound, bound.releases, public, federation, store)
            result |= {"parties": list(federation.present), "present": present, "bytes": federation.traffic}
        return present

    def parties_of(self, bound: Bound[ClassifierPlan], store: RunStore) -> dict[str, tuple[str, ...]]:
        return descended_parties(bound.releases, store)

    def made_once(self, plan: ClassifierPlan) -> bool:
        return True

    def learn(
        self,
        bound: Bound[ClassifierPlan],
        public: PublicText,
        present: dict[str, int],
        store: RunStore,
        progress: Progress,
    ) -> bytes:
        from safetensors.numpy import save

        content: bytes = save({"point": descended(bound.plan, public, store)})
        return content


def _parameters(public: PublicText | None) -> int:
    if public is None:
        raise PlanError("The public model says how much is trained, and none was read.")
    return len(public.start)
