"""Recipe `swing`: parties that have much text teach whoever has little (Li et al., swing distillation).

Every party trains language models on its own text. Whoever has little text asks what they would say in the place of
every token of theirs, and a student learns from the tokens and from the answers. What is heuristic in the paper, hotter
answers near words that announce something private, has here a form with a guarantee: the clipped differences between
the teachers' probabilities and a public model's, summed over all teachers under noise, each token charged.
"""

from dataclasses import dataclass

from dp_accounting import DpEvent

from coordinator.errors import PlanError
from coordinator.federation.aside import aside
from coordinator.federation.federation import Federation
from coordinator.pricing.release import PricedPlan, Release, budget
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.swing import releases as swing_releases
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import PublicSwing
from coordinator.systems.swing.questions import outcomes_content, public_outcomes, written_content
from coordinator.systems.swing.releases import DIFFERENCES
from coordinator.systems.swing.student import PublishedSwing, student_of
from coordinator.systems.swing.teaching import corrected, taught
from coordinator.systems.system import Stage
from coordinator.text_models.messages import descent_message, model_message, provide_model
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest

ROWS_AT_ONCE = 1 << 20
"""Numbers of a block of a sum."""


@dataclass(frozen=True, slots=True)
class Swing:
    """A `coordinator.systems.system.Recipe`. public: None where nothing was read."""

    plan: SwingPlan
    public: PublicSwing | None

    fewer_cells = "Use a larger delta, fewer [queries], or fewer outcomes ([distil] top)."
    finer_grid = "Leave noise out."
    labelled = None

    def doubts(self) -> list[str]:
        return []

    def total_event(self, multiplier: float) -> DpEvent:
        return swing_releases.total_event(self.plan, multiplier)

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        return swing_releases.releases(self.plan, multiplier, len(self.read.queries.ids))

    async def collect(
        self, priced: PricedPlan[SwingPlan], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        plan, public, (release,) = self.plan, self.read, priced.releases
        if not store.finished("ask"):
            with stage("ask"):
                await aside(federation, lambda told: public_outcomes(plan, public, store, told))
        written, outcomes = written_content(public), outcomes_content(plan, public, store)
        with stage("provide"):
            await provide_model(public, plan, federation, store)
            await federation.provide("written", written)
            await federation.provide("outcomes", outcomes)
        with stage("train"):
            await federation.train(_request(plan, public, written, outcomes), doing="teaching")
        with stage("aggregate") as result:
            rows = max(1, ROWS_AT_ONCE // release.columns)
            if plan.privacy.trust == "secure-sum":
                present = await federation.sum_securely(release, priced.binding.terms, rows, store)
            else:
                note = budget(priced.guarantee, plan)
                present = await federation.aggregate(release.name, release.rows, release.columns, rows, store, note)
            found = {DIFFERENCES: present}
            result |= {"parties": list(federation.present), "present": found, "bytes": federation.traffic}
        return found

    def learn(
        self, priced: PricedPlan[SwingPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        targets = corrected(priced, self.read, present[DIFFERENCES], store)
        return taught(self.plan, self.read, targets, store, progress)

    def student(
        self, content: bytes, priced: PricedPlan[SwingPlan], present: dict[str, int], store: RunStore
    ) -> PublishedSwing:
        return student_of(self.plan, self.read, content, store)

    @property
    def read(self) -> PublicSwing:
        """The public data, where it was read. Raises `PlanError` where it was not."""
        if self.public is None:
            raise PlanError("The public model says how many tokens are asked, and none was read.")
        return self.public


def _request(plan: SwingPlan, public: PublicSwing, written: bytes, outcomes: bytes) -> party_pb2.TrainRequest:
    settings = plan.teachers
    request = party_pb2.TrainRequest(operation_id=f"{DIFFERENCES}-0")
    request.language_teachers.CopyFrom(
        party_pb2.LanguageTeachersTask(
            release=DIFFERENCES,
            model=model_message(plan, public),
            teachers=settings.per_party,
            descent=descent_message(settings, epochs=settings.epochs, batch=settings.batch),
            written_sha256=artefact_digest(written),
            outcomes_sha256=artefact_digest(outcomes),
        )
    )
    return request
