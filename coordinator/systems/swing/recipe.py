"""Recipe `swing`: parties that have much text teach whoever has little (Li et al., swing distillation).

Every party trains language models on its own text. Whoever has little text asks what they would say in the place of
every token of theirs, and a student learns from the tokens and from the answers. The paper's answers are softened:
hotter near words that announce something private, with noise on the likeliest few. That is a heuristic. The form with a
guarantee releases the clipped differences between the teachers' probabilities and a public model's, summed over all
teachers under noise, each token charged.

Where whoever has little text is a party, too, the asked texts are public, and the student is trained on privately.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from dp_accounting import DpEvent

from coordinator.errors import PlanError
from coordinator.federation.aside import aside
from coordinator.federation.federation import Federation
from coordinator.pricing.release import PricedPlan, Release, unpromised
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.swing import releases as swing_releases
from coordinator.systems.swing.learning import Aside, learn_on, learned, packed, text_of
from coordinator.systems.swing.plan import SwingPlan
from coordinator.systems.swing.public import PublicSwing, cut_doubts, temperature_doubts
from coordinator.systems.swing.questions import outcomes_content, public_outcomes, written_content
from coordinator.systems.swing.releases import DIFFERENCES
from coordinator.systems.swing.softened import softened_by_parties, softened_of
from coordinator.systems.swing.student import TAUGHT, PublishedSwing, model_of, student_of
from coordinator.systems.swing.teaching import corrected, taught
from coordinator.systems.system import Stage
from coordinator.text_models.messages import descent_message, model_message, provide_model
from coordinator.text_models.public import PublicModel
from protos.conclave.v1 import party_pb2
from protos.digest import artefact_digest

NUMBERS_AT_ONCE = 1 << 20
"""Numbers of a block of a sum."""


@dataclass(frozen=True, slots=True)
class Swing:
    """A `coordinator.systems.system.Recipe`. public: None where nothing was read."""

    plan: SwingPlan
    public: PublicSwing | None

    fewer_cells = "Use a larger delta, fewer [queries], fewer outcomes ([distil] top), or fewer [learner] steps."
    finer_grid = "Leave noise out."
    labelled = None

    def doubts(self) -> list[str]:
        return [*cut_doubts(self.plan, self.read), *temperature_doubts(self.plan, self.read)]

    def total_event(self, multiplier: float) -> DpEvent:
        return swing_releases.total_event(self.plan, multiplier)

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        return swing_releases.releases(self.plan, multiplier, self.read)

    async def collect(
        self, priced: PricedPlan[SwingPlan], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        if self.plan.learner is None:
            present = await self._answers(priced, federation, store, stage, "aggregate")
            return {priced.releases[0].name: present}
        if not store.finished("answer"):
            with federation.among(self.plan.teaching):
                await self._answers(priced, federation, store, stage, "answer")
        present = len(store.summed(DIFFERENCES))
        if not (store.folder / TAUGHT).exists():
            content = await aside(federation, lambda told: self._taught(priced, present, store, Aside(told)))
            store.write(TAUGHT, content)
        text = await asyncio.to_thread(self._text, store)
        with stage("aggregate") as result:
            found = {DIFFERENCES: present} | await learn_on(priced, text, federation, store)
            result |= {"parties": list(federation.present), "present": found, "bytes": federation.traffic}
        return found

    async def _answers(
        self, priced: PricedPlan[SwingPlan], federation: Federation, store: RunStore, stage: Stage, last: str
    ) -> int:
        """Have teachers trained and asked, and what they say stored; how many parties are in it. last: the name of the
        stage that stores it.
        """
        plan, public, release = self.plan, self.read, priced.releases[0]
        content = {"written": written_content(public)}
        if plan.published:
            content |= {"clues": public.clues} if plan.swing.strength else {}
        else:
            if not store.finished("ask"):
                with stage("ask"):
                    await aside(federation, lambda told: public_outcomes(plan, public, store, told))
            content["outcomes"] = outcomes_content(plan, public, store)
        with stage("provide"):
            await provide_model(public, plan, federation, store)
            for kind, each in content.items():
                await federation.provide(kind, each)
        with stage("train"):
            await federation.train(_request(plan, public, release.name, content), doing="teaching")
        with stage(last) as result:
            present = await self._released(priced, release, federation, store)
            found = {release.name: present}
            result |= {"parties": list(federation.present), "present": found, "bytes": federation.traffic}
        return present

    async def _released(
        self, priced: PricedPlan[SwingPlan], release: Release, federation: Federation, store: RunStore
    ) -> int:
        """Have the release made and stored; how many parties are in it."""
        plan, note = self.plan, unpromised(self.plan)
        if plan.published:
            await softened_by_parties(plan, self.read, release, federation, store, note)
            return len(store.summed(release.name))
        rows = max(1, NUMBERS_AT_ONCE // release.columns)
        if plan.privacy.trust == "secure-sum":
            return await federation.sum_securely(release, priced.binding.terms, rows, store)
        return await federation.aggregate(release.name, release.rows, release.columns, rows, store, note)

    def learn(
        self, priced: PricedPlan[SwingPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        if self.plan.learner is None:
            return self._taught(priced, present[priced.releases[0].name], store, progress)
        return packed(learned(self._text(store), store))

    def _taught(self, priced: PricedPlan[SwingPlan], present: int, store: RunStore, progress: Progress) -> bytes:
        """The parameters of the student that teachers taught, as safetensors. present: parties in what they say."""
        plan, public = self.plan, self.read
        targets = softened_of(plan, public, store) if plan.published else corrected(priced, public, present, store)
        return taught(plan, public, targets, store, progress)

    def _text(self, store: RunStore) -> PublicModel:
        """The taught student as learners are sent it."""
        student = model_of(self.plan, self.read, (store.folder / TAUGHT).read_bytes())
        return text_of(self.plan, self.read, student)

    def student(
        self,
        content: bytes,
        priced: PricedPlan[SwingPlan],
        present: dict[str, int],
        store: RunStore,
        progress: Progress,
    ) -> PublishedSwing:
        return student_of(self.plan, self.read, content, store, progress)

    @property
    def read(self) -> PublicSwing:
        """The public data, where it was read. Raises `PlanError` where it was not."""
        if self.public is None:
            raise PlanError("The public model says how many tokens are asked, and none was read.")
        return self.public


def _request(
    plan: SwingPlan, public: PublicSwing, release: str, content: Mapping[str, bytes]
) -> party_pb2.TrainRequest:
    settings = plan.teachers
    request = party_pb2.TrainRequest(operation_id=f"{release}-0")
    request.language_teachers.CopyFrom(
        party_pb2.LanguageTeachersTask(
            release=release,
            model=model_message(plan, public),
            teachers=settings.per_party,
            descent=descent_message(settings, epochs=settings.epochs, batch=settings.batch),
            **{f"{kind}_sha256": artefact_digest(each) for kind, each in content.items()},
        )
    )
    return request
