"""Recipe `fine_tune`: a text model trained without privacy on all simulated text, as a baseline for comparisons.

What it publishes gives no guarantee, and its card says so first: there is no privacy.json, no manifest and no
signature.
"""

from pathlib import Path
from typing import Any, Final, NoReturn

from coordinator.errors import PlanError
from coordinator.published.manifest import CARD
from coordinator.publishing.publish import check_free, placed
from coordinator.systems.system import Alone, TrainedAlone
from coordinator.text_models import folder as classifier_folder
from coordinator.text_models import public as classifier_public
from coordinator.text_models.non_private import pooled, simulation, trained
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.student import PublishedClassifier, student_of
from coordinator.transport.launchers import TextWanted

NO_GUARANTEE: Final = (
    "NO PRIVACY GUARANTEE: this model was trained on all text in clear. It is for comparing on text that is nobody's "
    "secret, and nothing that learned from anybody's secret may be published so."
)


def run(alone: Alone) -> TrainedAlone:
    """Train the student, measure it, and write its whole folder or nothing.

    Memory: all parties' tokens; where only the last layer is trained, the vectors of all examples, 4 bytes a number.
    Raises `ConclaveError` for data that cannot be read or a model that cannot be trained, and `RunError` where the
    folder is taken.
    """
    plan, folder, progress = alone.plan, alone.folder, alone.progress
    progress.say(NO_GUARANTEE)
    check_free(folder)
    public = classifier_public.prepare(plan, alone.base, alone.cache)
    shards = alone.launcher.simulate(simulation(plan, alone.parties, alone.base, alone.cache / "simulation"))
    wanted = TextWanted(plan.labelled, public.tokenizer, public.longest)
    point = trained(plan, public, pooled(shards.labelled(wanted)), None, progress)
    student = student_of(plan, public, point)

    def fill(beside: Path) -> None:
        student.write(beside)
        (beside / CARD).write_text(card(student, plan, len(alone.parties)), encoding="utf-8")

    placed(folder, fill)
    return TrainedAlone(folder, student.metrics, NO_GUARANTEE)


def no_recipe(*_: Any) -> NoReturn:
    """Raises `PlanError`: such a plan asks nothing of parties."""
    raise PlanError(
        '[run] recipe = "fine_tune" has no privacy, and so nothing to forecast, check or resume: it trains in '
        "clear. Run it, or compare with it."
    )


def card(student: PublishedClassifier, plan: ClassifierPlan, parties: int) -> str:
    """The model card; its first lines say that there is no privacy guarantee."""
    return classifier_folder.clear_card(student.student, NO_GUARANTEE, plan, parties)
