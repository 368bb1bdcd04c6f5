"""Recipe `nvdp`: noisy vectors of texts, after "Differential Privacy for Transformer Embeddings with Nonparametric
Variational Information Bottleneck", in the form that has a proof.

Each party maps its texts by a public encoder and a public projection to vectors of few dimensions and of norm 1 at
most, adds Gaussian noise of one fixed variance, and releases them with their labels. All that follows is
post-processing: the rows are published, and the student is a linear rule that was learned with the noise in mind.
"""

from dataclasses import dataclass

from dp_accounting import DpEvent

from coordinator.errors import PlanError
from coordinator.federation.federation import Federation
from coordinator.pricing.release import PricedPlan, Release, unpromised
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.nvdp import releases as nvdp_releases
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.pooling import keep_rows, odd_rows, rows_of
from coordinator.systems.nvdp.public import PublicVectors
from coordinator.systems.nvdp.releases import SAMPLES, mechanism_of
from coordinator.systems.nvdp.rules import point_of, rule_of
from coordinator.systems.nvdp.student import PublishedSamples, student_of
from coordinator.systems.system import Stage
from coordinator.text_models.messages import model_message, provide_model
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest

ROWS_AT_ONCE = 4096


@dataclass(frozen=True, slots=True)
class Nvdp:
    """A `coordinator.systems.system.Recipe`. public: None where nothing was read."""

    plan: NvdpPlan
    public: PublicVectors | None

    fewer_cells = "Use a larger delta, or fewer [samples] rows or dimensions."
    finer_grid = "Leave noise out."

    @property
    def labelled(self) -> plan_pb2.LabelledText:
        return self.plan.labelled

    @property
    def read(self) -> PublicVectors:
        """The public data, where it was read. Raises `PlanError` where it was not."""
        if self.public is None:
            raise PlanError("The public text gives the projection, and none was read.")
        return self.public

    def doubts(self) -> list[str]:
        return []

    def total_event(self, multiplier: float) -> DpEvent:
        return nvdp_releases.total_event(self.plan, multiplier)

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        return nvdp_releases.releases(self.plan, multiplier)

    async def collect(
        self, priced: PricedPlan[NvdpPlan], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        plan, public, (release,) = self.plan, self.read, priced.releases
        projection = public.projection.to_bytes()
        with stage("provide"):
            await provide_model(public, plan, federation, store)
            await federation.provide("projection", projection)
        with stage("train"):
            request = party_pb2.TrainRequest(operation_id=f"{SAMPLES}-0")
            request.samples.release = SAMPLES
            request.samples.model.CopyFrom(model_message(plan, public))
            request.samples.projection_sha256 = artefact_digest(projection)
            await federation.train(request, doing="encoding")
        with stage("aggregate") as result:
            mechanism = mechanism_of(priced.releases)
            if not store.summed(SAMPLES):
                matrices = await federation.gather(
                    SAMPLES,
                    release.rows,
                    release.columns,
                    ROWS_AT_ONCE,
                    unpromised(plan),
                    odd=odd_rows(mechanism),
                )
                keep_rows(store, matrices)
            present = {SAMPLES: len(store.summed(SAMPLES))}
            result |= {"parties": list(federation.present), "present": present, "bytes": federation.traffic}
        return present

    def learn(
        self, priced: PricedPlan[NvdpPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        from safetensors.numpy import save

        mechanism = mechanism_of(priced.releases)
        rule = rule_of(self.plan, self.read, mechanism, rows_of(store, mechanism))
        # Of two texts no standard class is a linear map: the student is the rule itself.
        point = {} if self.plan.text.pairs else {"point": point_of(self.plan, self.read, rule)}
        content: bytes = save(rule | point)
        return content

    def student(
        self, content: bytes, priced: PricedPlan[NvdpPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> PublishedSamples:
        mechanism = mechanism_of(priced.releases)
        return student_of(self.plan, self.read, content, mechanism, rows_of(store, mechanism))
