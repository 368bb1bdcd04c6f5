"""The methods that a comparison of DistilDP has as rows, each on the same simulated text.

Rows that differ only in how the student learns share one private teacher and its texts, which is charged to each.
"""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent, SelfComposedDpEvent
from numpy.typing import NDArray

from aggregation.mechanisms.gradients import GradientMechanism
from coordinator.comparing.comparable import Method, Outcome, changed
from coordinator.comparing.simulated_run import driven
from coordinator.federation.federation import Federation
from coordinator.language_models.comparing import LanguageData, Measured
from coordinator.language_models.counts import TOKENS, counts_under
from coordinator.language_models.floor import read_floor
from coordinator.pricing.release import PricedPlan, Release
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.distildp.data import PrivateHalf, alone, paid
from coordinator.systems.distildp.dpkd import trained_twice
from coordinator.systems.distildp.plan import DistilDpPlan
from coordinator.systems.distildp.recipe import DistilDp
from coordinator.systems.distildp.student import student_of
from coordinator.systems.distildp.teaching import Teacher, rows_of, taught, written
from coordinator.systems.system import Stage
from coordinator.text_models.federated_training import STEPS
from coordinator.text_models.methods import ALONE

if TYPE_CHECKING:
    from learning.language.generation import Texts

_TILTED_WEIGHT, _MIXED_WEIGHT = 0.4, 0.5
"""Public weights of the counts where nothing is trained: the best of those tried without noise
(docs/results/distildp.md).
"""


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


def _private(data: LanguageData, epsilon: float, *, distil: Mapping[str, Any] | None = None) -> Outcome:
    """DistilDP's own recipe, with other settings in `[distil]`. Source: Flemings & Annavaram 2024."""
    from learning.language.speaker import Speaker

    plan, folder = _shared(data, epsilon)
    recipe = PrivateHalf(plan, data.public)
    with driven(recipe, data.shards, data.progress, data.base, folder) as run:
        other = DistilDp(changed(plan, {"distil": distil or {}}, epsilon=epsilon), data.public)
        content = other.learn(run.priced, run.present, run.store, data.progress)
        found = other.student(content, run.priced, run.present, run.store, data.progress)
        coded = plan.codes is not None and plan.codes.student
        notes = _noise(run.priced) | {"texts": float(len(found.texts))} | _copies(data, found.texts)
        return Outcome(Measured((Speaker(found.model),), coded), paid(run.priced), notes=notes)


def _apart(data: LanguageData, epsilon: float, *, one: bool = False) -> Outcome:
    """A teacher of each party, trained alone under noise of its own, in place of one of all: the paper's form.

    one: the first party's alone writes and grades.
    """
    from learning.language.speaker import Speaker

    plan = changed(data.plan, ALONE, epsilon=epsilon)
    folder = data.folder / f"apart-{data.seed}-{epsilon!r}"
    folder.mkdir(parents=True, exist_ok=True)
    recipe = PrivateHalf(plan, data.public)
    with driven(recipe, data.shards, data.progress, data.base, folder) as run:
        teacher = recipe.teacher(run.store)
        teacher = replace(teacher, points=teacher.points[:1]) if one else teacher
        shares = recipe.shares(run.priced, run.present, run.store)
        with TemporaryDirectory(dir=folder) as beside, closing(_beside(Path(beside), run.store)) as store:
            content = taught(teacher, shares, store, data.progress)
            texts, cells, _ = written(teacher, shares, store, data.progress)
            model = student_of(teacher, content, texts, cells, store).model
        coded = plan.codes is not None and plan.codes.student
        return Outcome(Measured((Speaker(model),), coded), paid(run.priced))


def _beside(folder: Path, store: RunStore) -> RunStore:
    """A store for what follows from a run's releases, which other rows do not see."""
    return RunStore.create(folder / "run", "beside", "beside", store.plan_hash)


def _teacher(data: LanguageData, epsilon: float) -> Outcome:
    """The private teacher, twice the student's size, with the floor in what it says."""
    plan, folder = _shared(data, epsilon)
    recipe = PrivateHalf(plan, data.public)
    with driven(recipe, data.shards, data.progress, data.base, folder) as run:
        return Outcome(Measured(recipe.teacher(run.store).speakers, True), paid(run.priced), notes=_noise(run.priced))


def _undistilled(data: LanguageData, epsilon: float, *, floored: bool = False) -> Outcome:
    """The student's own public start under federated DP-SGD. Source: Abadi et al. 2016, algorithm 1.

    floored: with the floor, as the teacher has it; what is measured is then no plain model.
    """
    plan = changed(data.plan, {"floor": {"use": floored}}, epsilon=epsilon).model_copy(update={"codes": None})
    recipe = PrivateHalf(plan, alone(data, plan))
    with driven(recipe, data.shards, data.progress, data.base) as run:
        return Outcome(Measured(recipe.teacher(run.store).speakers), paid(run.priced), notes=_noise(run.priced))


def _in_clear(data: LanguageData, epsilon: float) -> Outcome:
    """The student's own public start, all of it trained on all parties' text without privacy."""
    from learning.classification.training import Fit, fit
    from learning.language.speaker import Speaker

    plan = changed(data.plan, {"model": {"adapt": "full"}}).model_copy(update={"codes": None})
    model = alone(data, plan).model
    rows = [row for part in data.documents(coded=False) for row in part.rows]
    rng = np.random.default_rng(data.seed)
    fit(model, rows, None, Fit(), rng, lambda done: data.progress.bar("training", int(100 * done), 100, "percent"))
    return Outcome(Measured((Speaker(model),)), None)


def _copies(data: LanguageData, texts: "Texts") -> dict[str, float]:
    """How much of the texts stands in the parties' own, and of public held-out text, which no party's model wrote."""
    from learning.language.copying import copied

    learned = [row.ids[row.second :] for part in data.documents(coded=False) for row in part.rows]
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
        return Outcome(Measured(untrained.speakers), paid(run.priced))


def _public(data: LanguageData, epsilon: float) -> Outcome:
    """The public model as it is, which nobody's text has any part in."""
    return Outcome(Measured(Teacher(data.plan, data.public, (data.public.start,), None).speakers), None)


def _shared(data: LanguageData, epsilon: float) -> tuple[DistilDpPlan, Path]:
    """The plan at an epsilon, and the folder of the run that rows of it share."""
    folder = data.folder / f"teacher-{data.seed}-{epsilon!r}"
    folder.mkdir(parents=True, exist_ok=True)
    return changed(data.plan, epsilon=epsilon), folder


def _noise(priced: PricedPlan[DistilDpPlan]) -> dict[str, float]:
    (steps,) = [release for release in priced.releases if release.name == STEPS]
    return {"noise_multiplier": steps.under(GradientMechanism).noise_multiplier}


def methods_of(plan: DistilDpPlan) -> dict[str, Method]:
    """The rows that a plan allows: a student of another public model has no layers of its teacher to begin with."""
    return {name: each for name, each in METHODS.items() if name != "dpkd-ft" or plan.distil.student is None}


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
        Method("dpkd", "DPKD: both under DP-SGD", trained_twice),
        Method("dpkd-ft", "DPKD, student begun with its teacher's layers", partial(trained_twice, inherits=True)),
        Method("floor", "floor: tilted by counts", partial(_counted, tilt=0.5, weight=_TILTED_WEIGHT)),
        Method("mixed", "floor: counts mixed in", partial(_counted, tilt=0.0, weight=_MIXED_WEIGHT)),
        Method("fine_tune", "no privacy", _in_clear, private=False),
        Method("public", "public model", _public, private=False),
    )
}
