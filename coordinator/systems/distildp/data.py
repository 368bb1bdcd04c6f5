"""What rows of a comparison of DistilDP share: a seed's data, the private half of the recipe, a student by itself."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from dp_accounting import DpEvent

from coordinator.comparing.comparable import composed
from coordinator.language_models.comparing import LanguageData
from coordinator.language_models.students import PublicTeacher, first_student
from coordinator.pricing.release import PricedPlan
from coordinator.progress.progress import Progress
from coordinator.store.store import RunStore
from coordinator.systems.distildp.plan import DistilDpPlan
from coordinator.systems.distildp.recipe import DistilDp
from coordinator.systems.distildp.teaching import Teacher
from coordinator.text_models.public import marked

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class PrivateHalf(DistilDp):
    """The private half of the recipe alone."""

    def learn(
        self, priced: PricedPlan[DistilDpPlan], present: dict[str, int], store: RunStore, progress: Progress
    ) -> bytes:
        return b""


def alone(data: LanguageData, plan: DistilDpPlan, teacher: "PreTrainedModel | None" = None) -> PublicTeacher:
    """The public data with the student as it starts in place of the teacher: of layers of the public model, or of a
    trained `teacher`.
    """
    from learning.models.encoders import language_model
    from learning.transformers.layered_student import save

    public: PublicTeacher = data.public
    student = first_student(plan, public, teacher or Teacher(plan, public, (public.start,), None).plain)
    with TemporaryDirectory(dir=data.folder) as beside:
        save(student, public.tokenizer, Path(beside))
        model, tokenizer = language_model(beside)
    found = marked(model, tokenizer, plan, data.cache, wanted=plan.text.longest)
    kept = {field.name: getattr(found, field.name) for field in fields(found)}
    return replace(public, **kept, openings=(public.bare,), codes=None)


def paid(priced: PricedPlan[DistilDpPlan], *more: DpEvent) -> DpEvent:
    """What a run's releases cost together, and more events with them."""
    return composed([*(release.event for release in priced.releases), *more])
