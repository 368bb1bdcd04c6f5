"""Recipe `distildp`: all parties train one private teacher, which writes texts and grades every token of them; the
student learns from both (Flemings & Annavaram 2024).

Parties release counts of tokens and of control codes, and then the noisy sums of the teacher's training. What follows
is post-processing: the teacher writes texts from codes drawn by their noisy histogram, says of every token of them what
might have stood there, and a smaller student is distilled. The teacher starts from the public model tilted towards the
counts, which no paper of the five has: without any training that is the floor which every student has to beat.
"""

from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from aggregation.mechanisms.counts import CountsMechanism
from coordinator.errors import PlanError, RunError
from coordinator.federation.aside import aside
from coordinator.federation.federation import Federation
from coordinator.language_models.counts import CODES, TOKENS, count
from coordinator.language_models.floor import floor_of, read_floor, write_floor
from coordinator.language_models.students import PublicTeacher
from coordinator.pricing.release import PricedPlan, Release
from coordinator.progress.progress import Progress, Silent
from coordinator.store.store import RunStore
from coordinator.systems.distildp import releases as distildp_releases
from coordinator.systems.distildp.at_parties import said, said_by_parties, said_of
from coordinator.systems.distildp.plan import DistilDpPlan
from coordinator.systems.distildp.pooling import room
from coordinator.systems.distildp.student import PublishedLanguageModel, student_of
from coordinator.systems.distildp.teaching import Said, Teacher, taught, written
from coordinator.systems.system import Stage
from coordinator.text_models.federated_training import descend, descended, trained_alone
from coordinator.text_models.messages import provide_model
from protos.digest import artefact_digest

TEACHERS: Final = "artefacts/teachers.safetensors"

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class DistilDp:
    """A `coordinator.systems.system.Recipe`. public: None where nothing was read."""

    plan: DistilDpPlan
    public: PublicTeacher | None

    fewer_cells = "Use a larger delta, fewer steps, or train less of the model ([model] adapt)."
    finer_grid = "Leave noise out."
    labelled = None

    def doubts(self) -> list[str]:
        return []

    def total_event(self, multiplier: float) -> DpEvent:
        return distildp_releases.total_event(self.plan, multiplier, self.read.tokens, len(self.read.start))

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        read = self.read
        longest = room(self.plan, read) if self.plan.kept else 0
        return distildp_releases.releases(self.plan, multiplier, read.tokens, len(read.start), longest)

    async def collect(
        self, priced: PricedPlan[DistilDpPlan], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        plan, public = self.plan, self.read
        present = await self.counted(priced, federation, store, stage)
        tilt = b""
        if plan.floor.use:
            content = read_floor(store).tilt.astype("<f4").tobytes()
            await federation.provide("tilt", content)
            tilt = artefact_digest(content)
        with stage("aggregate") as result:
            trained = tuple(release for release in priced.releases if release.name not in (TOKENS, CODES))
            if plan.kept:
                shares, floor = self.shares(priced, present, store), read_floor(store) if plan.floor.use else None
                present |= await said_by_parties(priced, public, shares, federation, store, floor=floor, tilt=tilt)
            elif plan.dp_sgd.form == "federated":
                present |= await descend(priced, trained, public, federation, store, tilt)
            else:
                present |= await self._alone(priced, trained, federation, store, tilt)
            result |= {"parties": list(federation.present), "present": present, "bytes": federation.traffic}
        return present

    async def _alone(
        self,
        priced: PricedPlan[DistilDpPlan],
        releases: tuple[Release, ...],
        federation: Federation,
        store: RunStore,
        tilt: bytes,
    ) -> dict[str, int]:
        """Have every party train a teacher of its own, and keep each of them: the paper's form."""
        from safetensors.numpy import save

        (release,) = releases
        if not (store.folder / TEACHERS).exists():
            models = await trained_alone(priced, release, self.read, federation, self.read.start, tilt)
            store.begin_sum(release.name, list(models))
            store.write(TEACHERS, save(models))
        return {release.name: len(store.summed(release.name))}

    async def counted(
        self, priced: PricedPlan[DistilDpPlan], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        """Have the parties release their counts, and store what follows from them; how many parties are in each sum."""
        plan, public = self.plan, self.read
        with stage("provide"):
            await provide_model(public, plan, federation, store)
        with stage("train"):
            present = await count(priced, public, federation, store)
        if plan.floor.use and not store.finished("floor"):
            with stage("floor"):
                total, sigma = _counts(priced, store, present[TOKENS])
                write_floor(store, await aside(federation, lambda told: floor_of(plan, public, total, sigma, told)))
        return present

    def learn(
        self, priced: PricedPlan[DistilDpPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        shares = self.shares(priced, present, store)
        return taught(self.teacher(store), shares, store, progress, self.said(priced, shares, store))

    def student(
        self,
        content: bytes,
        priced: PricedPlan[DistilDpPlan],
        present: dict[str, int],
        store: RunStore,
        progress: Progress,
    ) -> PublishedLanguageModel:
        teacher = self.teacher(store)
        shares = self.shares(priced, present, store)
        texts, cells, _ = written(teacher, shares, store, Silent(), self.said(priced, shares, store))
        return student_of(teacher, content, texts, cells, store, progress)

    def teacher(self, store: RunStore) -> Teacher:
        """The private teacher of a run whose releases are stored; without parameters where parties keep them."""
        floor = read_floor(store) if self.plan.floor.use else None
        if self.plan.kept:
            return Teacher(self.plan, self.read, (), floor)
        if self.plan.dp_sgd.form == "federated":
            return Teacher(self.plan, self.read, (descended(self.plan, self.read, store),), floor)
        return Teacher(self.plan, self.read, _teachers(store), floor)

    def said(self, priced: PricedPlan[DistilDpPlan], shares: Floats, store: RunStore) -> Said | None:
        """What parties' teachers said; None where the coordinator has the teachers themselves."""
        if not self.plan.kept:
            return None
        parts, cells = said(priced, self.read, shares, store)
        return Said(parts, cells, lambda texts: said_of(self.plan, self.read, texts, store))

    @property
    def read(self) -> PublicTeacher:
        """The public data, where it was read. Raises `PlanError` where it was not."""
        if self.public is None:
            raise PlanError("The public model says how much is trained, and none was read.")
        return self.public

    def shares(self, priced: PricedPlan[DistilDpPlan], present: dict[str, int], store: RunStore) -> Floats:
        """The share of each control code among the texts, from their noisy histogram; all of the one where there is
        none.
        """
        release = priced.release(CODES)
        if release is None:
            return np.ones(1)
        ((_, _, total),) = store.blocks(CODES)
        counted = release.under(CountsMechanism).release(total[0], present[CODES])
        kept = np.maximum(counted.values, 0.0)
        return kept / kept.sum() if kept.sum() > 0 else np.full(len(kept), 1 / len(kept))


def _teachers(store: RunStore) -> tuple[NDArray[np.float32], ...]:
    """What each party trained alone, float32 [parameters], in the order of names. Raises `RunError`."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    path = store.folder / TEACHERS
    try:
        kept = load(path.read_bytes())
    except (SafetensorError, OSError) as error:
        raise RunError(f"{path} is damaged: {error} The run cannot go on. Run its plan again.", code="C802") from None
    return tuple(kept[name] for name in sorted(kept))


def _counts(priced: PricedPlan[DistilDpPlan], store: RunStore, present: int) -> tuple[Floats, float]:
    """The noisy counts of all tokens, float64 [codes, tokens], or [1, tokens] where codes are not counted apart, and
    the standard deviation of their noise.
    """
    release = priced.release(TOKENS)
    assert release is not None
    ((_, _, total),) = store.blocks(TOKENS)
    found = release.under(CountsMechanism).release(total[0], present)
    return found.values.reshape(max(1, priced.plan.apart), -1), found.sigma
