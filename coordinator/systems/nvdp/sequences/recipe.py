"""Recipe `nvdp` in the published form: each party samples its texts by the paper's layer, and nothing is promised.

The layer is trained with its head on public text and does not change afterwards; its head goes on learning from what
parties released. The form with a proof is `coordinator.systems.nvdp.recipe`.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from dp_accounting import DpEvent, NonPrivateDpEvent

from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.sequences import Sequences, SequencesMechanism
from coordinator.errors import PlanError
from coordinator.federation.aside import aside
from coordinator.federation.federation import Federation
from coordinator.pricing.release import PricedPlan, Release, unpromised
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.nvdp.plan import NvdpPlan
from coordinator.systems.nvdp.pooling import keep_matrices, kept_parts, odd_matrix
from coordinator.systems.nvdp.sequences import public as public_data
from coordinator.systems.nvdp.sequences.public import LAYER, PublicSequences
from coordinator.systems.nvdp.sequences.student import PublishedSequences, student_of
from coordinator.systems.system import Stage
from coordinator.text_models.messages import model_message, provide_model
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.digest import artefact_digest

SEQUENCES: Final = "sequences"
LEVELS: Final = 4096
"""Grid steps in 1: far finer than the least noise that a layer can add."""
KEPT: Final = "artefacts/sequences.safetensors"
_NUMBERS_AT_ONCE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class SampledByLayer:
    """A `coordinator.systems.system.Recipe`. public: None where nothing was read."""

    plan: NvdpPlan
    public: PublicSequences | None

    fewer_cells = "Use fewer [samples] rows."
    finer_grid = "Leave noise out."

    @property
    def labelled(self) -> plan_pb2.LabelledText:
        return self.plan.labelled

    @property
    def read(self) -> PublicSequences:
        """The public data, where it was read. Raises `PlanError` where it was not."""
        if self.public is None:
            raise PlanError("The layer is trained on public text, and none was read.")
        return self.public

    def doubts(self) -> list[str]:
        return []

    def total_event(self, multiplier: float) -> DpEvent:
        return NonPrivateDpEvent()

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        """The one release of the run, which has no noise that is calibrated. Raises `PlanError`."""
        plan, table = self.plan, self.plan.layer
        try:
            mechanism = SequencesMechanism(
                rows=plan.samples.rows,
                layer=table.kind,
                tokens=table.tokens,
                width=table.width,
                sigma=table.sigma if table.kind == "vib-fixed" else 0.0,
                levels=LEVELS,
                classes=plan.classes,
            )
        except ConclaveError as error:
            raise PlanError(f"[samples] {error}") from None
        return (Release(SEQUENCES, mechanism, mechanism.rows, mechanism.columns, form=Form.SAMPLES),)

    async def collect(
        self, priced: PricedPlan[NvdpPlan], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        plan, public, (release,) = self.plan, self.read, priced.releases
        if not (store.folder / LAYER).exists():
            with stage("learn"):
                await aside(federation, lambda told: public_data.keep(store, public_data.trained(plan, public)))
        layer = public_data.layer_content(public_data.kept(plan, public, store))
        with stage("provide"):
            await provide_model(public, plan, federation, store)
            await federation.provide("layer", layer)
        with stage("train"):
            request = party_pb2.TrainRequest(operation_id=f"{SEQUENCES}-0")
            request.samples.release = SEQUENCES
            request.samples.model.CopyFrom(model_message(plan, public))
            request.samples.model.longest = plan.layer.tokens
            request.samples.layer_sha256 = artefact_digest(layer)
            await federation.train(request, doing="sampling")
        with stage("aggregate") as result:
            mechanism = release.under(SequencesMechanism)
            if not store.summed(SEQUENCES):
                rows = max(1, _NUMBERS_AT_ONCE // release.columns)
                note = unpromised(plan)
                matrices = await federation.gather(
                    SEQUENCES, release.rows, release.columns, rows, note, odd=odd_matrix(mechanism, "sequences")
                )
                keep_matrices(store, KEPT, SEQUENCES, matrices)
            present = {SEQUENCES: len(store.summed(SEQUENCES))}
            result |= {"parties": list(federation.present), "present": present, "bytes": federation.traffic}
        return present

    def learn(
        self, priced: PricedPlan[NvdpPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        """The layer as it was, and the head after what parties released."""
        import torch
        from safetensors.torch import save

        from learning.bottleneck.fitting import refitted
        from learning.bottleneck.posterior import Sample

        plan, public = self.plan, self.read
        mechanism = priced.releases[0].under(SequencesMechanism)
        rows, model = sequences_of(store, mechanism), public_data.kept(plan, public, store)
        vectors = torch.from_numpy(rows.vectors)
        sample = Sample(vectors, torch.from_numpy(rows.log_weights), torch.ones(vectors.shape[:2], dtype=torch.bool))
        targets = public_data.released_targets(plan, mechanism, rows.labels)
        refitted(model, sample, targets, public_data.fitting_of(plan), plan.run.seed)
        content: bytes = save({name: tensor.contiguous() for name, tensor in model.state_dict().items()})
        return content

    def student(
        self, content: bytes, priced: PricedPlan[NvdpPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> PublishedSequences:
        mechanism = priced.releases[0].under(SequencesMechanism)
        return student_of(self.plan, self.read, content, mechanism, sequences_of(store, mechanism))


def sequences_of(store: RunStore, mechanism: SequencesMechanism) -> Sequences:
    """The stored rows, party after party. Raises `RunError` where they are damaged."""
    vectors, logs, labels = zip(*kept_parts(store, KEPT, mechanism), strict=True)
    return Sequences(np.concatenate(vectors), np.concatenate(logs), np.concatenate(labels))
