"""The public data of a DistilDP run: the teacher's public start, and a student that can learn from it."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from coordinator.errors import PlanError
from coordinator.language_models import public as language_public
from coordinator.language_models.public import PublicLanguage, checked, whole_digest
from coordinator.systems.distildp.plan import HALF, DistilDpPlan
from coordinator.text_models.public import placed_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, slots=True)
class PublicTeacher(PublicLanguage):
    """The public data of a plan.

    layers: of the student and of the teacher. student: where the student's own public start is, None where it starts
    from the teacher's layers. cache: of the hub's models.
    """

    layers: tuple[int, int] = (1, 1)
    student: str | None = None
    cache: Path | None = None


def prepare(plan: DistilDpPlan, base: Path, cache: Path) -> PublicTeacher:
    """Load the teacher's public start and read the public text; try the student.

    Raises as `coordinator.language_models.public.prepare`; `ModelError` for a student that cannot be made of this
    teacher; `PlanError` for one that has another tokenizer.
    """
    found = language_public.prepare(plan, base, cache)
    depth = int(found.model.config.num_hidden_layers)
    name = None if plan.distil.student is None else placed_model(plan.distil.student, base)
    layers = plan.distil.layers or max(1, depth // HALF)
    if name is None:
        _can_be_made(plan, found, layers, cache, base)
    else:
        layers = int(_started(plan, found, name, cache).config.num_hidden_layers)
    kept = {field.name: getattr(found, field.name) for field in fields(found)}
    return PublicTeacher(**kept, layers=(layers, depth), student=name, cache=cache)


def first_student(plan: DistilDpPlan, public: PublicTeacher, teacher: "PreTrainedModel") -> "PreTrainedModel":
    """The student as it starts: its own public start, or layers of the trained teacher, whose adapters are merged."""
    from learning.models.compute import on_device
    from learning.transformers.layered_student import make_student

    if public.student is not None:
        return on_device(_started(plan, public, public.student, public.cache))
    return make_student(teacher, public.layers[0], plan.distil.start, seed=plan.run.seed)


def _can_be_made(plan: DistilDpPlan, public: PublicLanguage, layers: int, cache: Path, base: Path) -> None:
    from learning.models.encoders import language_model
    from learning.transformers.layered_student import make_student

    plain, _ = language_model(placed_model(plan.model.name, base), cache=cache)
    make_student(plain, layers, plan.distil.start, seed=plan.run.seed)


def _started(plan: DistilDpPlan, public: PublicLanguage, name: str, cache: Path | None) -> "PreTrainedModel":
    from learning.models.encoders import language_model, tokens_of

    student, tokenizer = language_model(name, cache=cache)
    checked(student, tokenizer, name)
    if whole_digest(tokenizer) != whole_digest(public.tokenizer):
        raise PlanError(
            f"[distil] student: {plan.distil.student} has another tokenizer than {plan.model.name}, so that what the "
            "teacher says of a token says nothing to it. Name a model with the same tokenizer, or leave student out."
        )
    if tokens_of(student) < len(public.tokenizer):
        raise PlanError(
            f"[distil] student: {plan.distil.student} has fewer tokens than its tokenizer. Name one with all of them."
        )
    return student
