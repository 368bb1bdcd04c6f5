"""Recipe `fine_tune`: a text model trained on all simulated text in clear, without privacy, to be compared with.

What it publishes promises nothing, and says so first: no privacy.json, no manifest, no signature.
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
    """Train, measure and write the student's folder whole, or not at all.

    Memory: all parties' tokens; where the last layer alone is trained, the vectors of all examples, 4 bytes a number.
    Raises `ConclaveError`: what cannot be read or trained, and `RunError` where something stands in its folder.
    """
    plan, folder, progress = alone.plan, alone.folder, alone.progress
    progress.say(NO_GUARANTEE)
    check_free(folder)
    public = classifier_public.prepare(plan, alone.base, alone.cache)
    shards = alone.launcher.simulate(simulation(plan, alone.parties, alone.base, alone.cache / "simulation"))
    wanted = TextWanted(classifier_public.labelled_text(plan), public.tokenizer, public.longest)
    point = trained(plan, public, pooled(shards.labelled(wanted)), None, progress)
    student = student_of(plan, public, point)

    def fill(beside: Path) -> None:
        student.write(beside)
        (beside / CARD).write_text(card(student, plan, len(alone.parties)), encoding="utf-8")

    placed(folder, fill)
    return TrainedAlone(folder, student.metrics, NO_GUARANTEE)


def no_recipe(*_: Any) -> NoReturn:
    """Raises `PlanError`: nothing is asked of parties."""
    raise PlanError(
        '[run] recipe = "fine_tune" has no privacy, and so nothing to forecast, check or resume: it trains in '
        "clear. Run it, or compare with it."
    )


def card(student: PublishedClassifier, plan: ClassifierPlan, parties: int) -> str:
    """The model card, which says first that nothing is promised."""
    return classifier_folder.clear_card(
        student.student,
        NO_GUARANTEE,
        name=plan.run.name,
        parties=parties,
        recipe=plan.run.recipe,
        language=plan.student.language,
        licence=plan.student.licence,
    )
