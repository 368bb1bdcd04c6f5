"""The methods that a comparison of DistilDP has as rows, each on the same simulated text.

Rows that differ only in how the student learns share one private teacher and its texts, which is charged to each.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent
from numpy.typing import NDArray

from aggregation.mechanisms.gradients import GradientMechanism
from coordinator.comparing.comparable import Method, Outcome, SeedData, changed, composed
from coordinator.comparing.simulated_run import driven
from coordinator.federation.federation import Federation
from coordinator.language_models.counts import TOKENS, counts_under
from coordinator.language_models.floor import read_floor
from coordinator.pricing.release import PricedPlan, Release
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.distildp.plan import DistilDpPlan
from coordinator.systems.distildp.public import PublicTeacher, first_student
from coordinator.systems.distildp.recipe import DistilDp
from coordinator.systems.distildp.student import student_of
from coordinator.systems.distildp.teaching import Teacher, rows_of, taught, written
from coordinator.systems.system import Stage
from coordinator.text_models.federated_training import STEPS
from coordinator.text_models.methods import ALONE
from coordinator.text_models.public import marked
from coordinator.transport.launchers import DocumentsWanted, Simulation

if TYPE_CHECKING:
    from learning.language.generation import Texts
    from learning.language.speaker import Speaker
    from learning.models.batching import Tokens

_TILTED_WEIGHT, _MIXED_WEIGHT = 0.4, 0.5
"""Public weights of the counts where nothing is trained: the best of those tried without noise (docs/results.md)."""


@dataclass(slots=True)
class LanguageData(SeedData):
    """The data of one seed. shards: the simulated parties. folder: for runs that rows share. cache: for
    models. read: what `documents` has read."""

    plan: DistilDpPlan
    public: PublicTeacher
    shards: Simulation
    progress: Progress
    base: Path
    folder: Path
    cache: Path
    read: "dict[bool, tuple[Sequence[Tokens], ...]]" = field(default_factory=dict)

    def documents(self, *, coded: bool) -> "tuple[Sequence[Tokens], ...]":
        """Each party's documents in clear, read once, with their control codes or without."""
        if coded not in self.read:
            codes = self.plan.coded if coded else None
            wanted = DocumentsWanted(codes, self.public.tokenizer, self.public.longest)
            self.read[coded] = self.shards.documents(wanted)
        return self.read[coded]


@dataclass(frozen=True, slots=True)
class Measured:
    """What a row is measured by. coded: whether it reads the control codes of held-out text."""

    speakers: "tuple[Speaker, ...]"
    coded: bool = False


@dataclass(frozen=True, slots=True)
class _Counted(DistilDp):
    """Counts of tokens alone, with all of epsilon."""

    def total_event(self, multiplier: float) -> DpEvent:
        attempts = self.plan.privacy.attempts
        return (
            GaussianDpEvent(multiplier) if attempts == 1 else SelfComposedDpEvent(GaussianDpEvent(multiplier), attempts)
        )

    def releases(self, multiplier: float) -> tuple[Release, ...]:
        return (counts_under(self.plan, TOKENS, self.plan.floor.clip, multiplier, self.read.tokens),)

    async def collect(
        self, priced: PricedPlan[DistilDpPlan], federation: Federation, store: RunStore, stage: Stage
    ) -> dict[str, int]:
        return await self.counted(priced, federation, store, stage)

    def learn(
        self, priced: PricedPlan[DistilDpPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        return b""


@dataclass(frozen=True, slots=True)
class _Trained(DistilDp):
    """The private half of the recipe alone."""

    def learn(
        self, priced: PricedPlan[DistilDpPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        return b""


def _private(data: LanguageData, epsilon: float, *, distil: Mapping[str, Any] | None = None) -> Outcome:
    """DistilDP's own recipe, with other settings in `[distil]`. Source: Flemings & Annavaram 2024."""
    from learning.language.speaker import Speaker

    plan, folder = _shared(data, epsilon)
    recipe = _Trained(plan, data.public)
    with driven(recipe, data.shards, data.progress, data.base, folder) as run:
        other = DistilDp(changed(plan, {"distil": distil or {}}, epsilon=epsilon), data.public)
        content = other.learn(run.priced, run.present, run.store, data.progress)
        found = other.student(content, run.priced, run.present, run.store)
        coded = plan.codes is not None and plan.codes.student
        notes = _noise(run.priced) | {"texts": float(len(found.texts))} | _copies(data, found.texts)
        return Outcome(Measured((Speaker(found.model),), coded), _paid(run.priced), notes=notes)


def _apart(data: LanguageData, epsilon: float, *, one: bool = False) -> Outcome:
    """A teacher of each party, trained alone under noise of its own, in place of one of all: the paper's form.

    one: the first party's alone writes and grades.
    """
    from learning.language.speaker import Speaker

    plan = changed(data.plan, ALONE, epsilon=epsilon)
    folder = data.folder / f"apart-{data.seed}-{epsilon!r}"
    folder.mkdir(parents=True, exist_ok=True)
    recipe = _Trained(plan, data.public)
    with driven(recipe, data.shards, data.progress, data.base, folder) as run:
        teacher = recipe.teacher(run.store)
        teacher = replace(teacher, points=teacher.points[:1]) if one else teacher
        shares = recipe.shares(run.priced, run.present, run.store)
        with TemporaryDirectory(dir=folder) as beside, closing(_beside(Path(beside), run.store)) as store:
            content = taught(teacher, shares, store, data.progress)
            texts, cells, _ = written(teacher, shares, store, data.progress)
            model = student_of(teacher, content, texts, cells, store).model
        coded = plan.codes is not None and plan.codes.student
        return Outcome(Measured((Speaker(model),), coded), _paid(run.priced))


def _beside(folder: Path, store: RunStore) -> RunStore:
    """A store for what follows from a run's releases, which other rows do not see."""
    return RunStore.create(folder / "run", "beside", "beside", store.plan_hash)


def _teacher(data: LanguageData, epsilon: float) -> Outcome:
    """The private teacher, twice the student's size, with the floor in what it says."""
    plan, folder = _shared(data, epsilon)
    recipe = _Trained(plan, data.public)
    with driven(recipe, data.shards, data.progress, data.base, folder) as run:
        return Outcome(Measured(recipe.teacher(run.store).speakers, True), _paid(run.priced), notes=_noise(run.priced))


def _undistilled(data: LanguageData, epsilon: float, *, floored: bool = False) -> Outcome:
    """The student's own public start under federated DP-SGD. Source: Abadi et al. 2016, algorithm 1.

    floored: with the floor, as the teacher has it; what is measured is then no plain model.
    """
    plan = changed(data.plan, {"floor": {"use": floored}}, epsilon=epsilon).model_copy(update={"codes": None})
    recipe = _Trained(plan, _alone(data, plan))
    with driven(recipe, data.shards, data.progress, data.base) as run:
        return Outcome(Measured(recipe.teacher(run.store).speakers), _paid(run.priced), notes=_noise(run.priced))


def _in_clear(data: LanguageData, epsilon: float) -> Outcome:
    """The student's own public start, all of it trained on all parties' text without privacy."""
    from learning.classification.training import Fit, fit
    from learning.language.speaker import Speaker

    plan = changed(data.plan, {"model": {"adapt": "full"}}).model_copy(update={"codes": None})
    model = _alone(data, plan).model
    rows = [row for part in data.documents(coded=False) for row in part]
    rng = np.random.default_rng(data.seed)
    fit(model, rows, None, Fit(), rng, lambda done: data.progress.bar("training", int(100 * done), 100))
    return Outcome(Measured((Speaker(model),)), None)


def _copies(data: LanguageData, texts: "Texts") -> dict[str, float]:
    """How much of the texts stands in the parties' own, and of public held-out text, which no party's model wrote."""
    from learning.language.copying import copied

    learned = [row.ids[row.second :] for part in data.documents(coded=False) for row in part]
    public = [row.ids[row.second :] for row in rows_of(data.public, coded=False)]
    own, others = (copied([_bare(each, texts.end) for each in some], learned) for some in (texts, public))
    return {
        "copied_texts": own.texts, "copied_tokens": own.tokens,
        "public_copied_texts": others.texts, "public_copied_tokens": others.tokens,
    }  # fmt: skip


def _bare(ids: NDArray[np.int32], end: int) -> NDArray[np.int32]:
    return ids[:-1] if len(ids) and ids[-1] == end else ids


def _counted(data: LanguageData, epsilon: float, *, tilt: float, weight: float) -> Outcome:
    """The public model with noised counts of tokens, on which all of epsilon is spent, and no training."""
    plan = changed(data.plan, {"floor": {"use": True, "tilt": tilt, "weight": weight}}, epsilon=epsilon)
    recipe = _Counted(plan.model_copy(update={"codes": None}), data.public)
    with driven(recipe, data.shards, data.progress, data.base) as run:
        untrained = Teacher(recipe.plan, data.public, (data.public.start,), read_floor(run.store))
        return Outcome(Measured(untrained.speakers), _paid(run.priced))


def _public(data: LanguageData, epsilon: float) -> Outcome:
    """The public model as it is, which nobody's text has any part in."""
    return Outcome(Measured(Teacher(data.plan, data.public, (data.public.start,), None).speakers), None)


def _shared(data: LanguageData, epsilon: float) -> tuple[DistilDpPlan, Path]:
    """The plan at an epsilon, and the folder of the run that rows of it share."""
    folder = data.folder / f"teacher-{data.seed}-{epsilon!r}"
    folder.mkdir(parents=True, exist_ok=True)
    return changed(data.plan, epsilon=epsilon), folder


def _alone(data: LanguageData, plan: DistilDpPlan) -> PublicTeacher:
    """The public data with the student's public start in place of the teacher."""
    from learning.models.encoders import language_model
    from learning.transformers.layered_student import save

    public = data.public
    student = first_student(plan, public, Teacher(plan, public, (public.start,), None).plain)
    with TemporaryDirectory(dir=data.folder) as beside:
        save(student, public.tokenizer, Path(beside))
        model, tokenizer = language_model(beside)
    found = marked(model, tokenizer, plan, data.cache, wanted=plan.text.longest)
    kept = {field.name: getattr(found, field.name) for field in fields(found)}
    return replace(public, **kept, openings=(public.bare,), codes=None)


def _paid(priced: PricedPlan[DistilDpPlan]) -> Any:
    return composed([release.event for release in priced.releases])


def _noise(priced: PricedPlan[DistilDpPlan]) -> dict[str, float]:
    (steps,) = [release for release in priced.releases if release.name == STEPS]
    return {"noise_multiplier": steps.under(GradientMechanism).noise_multiplier}


METHODS: Final[dict[str, Method]] = {
    method.name: method
    for method in (
        Method("distildp", "DistilDP", _private),
        Method("texts", "synthetic text alone", partial(_private, distil={"mixing": 0.0})),
        Method("local", "a teacher of each party", _apart),
        Method("one", "one party's teacher", partial(_apart, one=True)),
        Method("teacher", "the private teacher, larger", _teacher, plain=True),
        Method("dp_sgd", "DP-SGD student", _undistilled),
        Method("dp_sgd-floor", "DP-SGD student on the floor", partial(_undistilled, floored=True)),
        Method("floor", "floor: tilted by counts", partial(_counted, tilt=0.5, weight=_TILTED_WEIGHT)),
        Method("mixed", "floor: counts mixed in", partial(_counted, tilt=0.0, weight=_MIXED_WEIGHT)),
        Method("fine_tune", "no privacy", _in_clear, private=False),
        Method("public", "public model", _public, private=False),
    )
}
