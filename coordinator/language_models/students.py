"""The student of a plan of language models as it starts: layers of its teacher, or a public model of its own."""

import copy
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from coordinator.errors import PlanError
from coordinator.language_models.distil import StudentModelTable
from coordinator.language_models.public import PublicLanguage, checked, whole_digest
from coordinator.plan.plan import RunTable
from coordinator.text_models.public import placed_model
from coordinator.text_models.tables import ModelTable

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Distils(Protocol):
    """A plan whose student learns from what teachers say of tokens."""

    @property
    def run(self) -> RunTable: ...
    @property
    def model(self) -> ModelTable: ...
    @property
    def distil(self) -> StudentModelTable: ...


@dataclass(frozen=True, slots=True)
class PublicTeacher(PublicLanguage):
    """The public data of a plan.

    layers: of the student and of the teacher. student: where the student's own public start is, None where it starts
    from the teacher's layers. cache: of the hub's models.
    """

    layers: tuple[int, int] = (1, 1)
    student: str | None = None
    cache: Path | None = None

    @property
    def paired(self) -> bool:
        """Whether the model has an encoder and a decoder."""
        return bool(getattr(self.model.config, "is_encoder_decoder", False))


def with_student(plan: Distils, found: PublicLanguage, base: Path, cache: Path, *, part: int) -> PublicTeacher:
    """The public data with a student that was tried. part: the student has one layer for so many of its teacher's,
    unless the plan says how many.

    Raises `ModelError` for a student that cannot be made of this teacher; `PlanError` for one that has another
    tokenizer.
    """
    depth = int(found.model.config.num_hidden_layers)
    paired = bool(getattr(found.model.config, "is_encoder_decoder", False))
    name = None if plan.distil.student is None else placed_model(plan.distil.student, base)
    layers = plan.distil.layers or max(1, depth // part)
    if name is None and paired:
        if (layers, plan.distil.start) != (depth, "spread"):
            raise PlanError(
                f"[distil] layers: {plan.model.name} has an encoder and a decoder, and a student of it has all layers "
                "of both. Leave layers and start out, or name a [distil] student."
            )
    elif name is None:
        _can_be_made(plan, layers, cache, base)
    else:
        layers = int(_started(plan, found, name, cache).config.num_hidden_layers)
    kept = {field.name: getattr(found, field.name) for field in fields(found)}
    return PublicTeacher(**kept, layers=(layers, depth), student=name, cache=cache)


def first_student(plan: Distils, public: PublicTeacher, teacher: "PreTrainedModel") -> "PreTrainedModel":
    """The student as it starts: its own public start, or layers of a teacher whose adapters are merged."""
    from learning.models.compute import on_device
    from learning.transformers.layered_student import make_student

    if public.student is not None:
        return on_device(_started(plan, public, public.student, public.cache))
    if public.paired:
        return on_device(_whole(public, teacher))
    return make_student(teacher, public.layers[0], plan.distil.start, seed=plan.run.seed)


def _whole(public: PublicTeacher, teacher: "PreTrainedModel") -> "PreTrainedModel":
    """All of a teacher with an encoder and a decoder. How its checkpoint writes, a least length or a forced first token
    for example, belonged to another task.
    """
    from transformers import GenerationConfig

    student = copy.deepcopy(teacher)
    student.requires_grad_(True)
    config = student.config
    student.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        decoder_start_token_id=config.decoder_start_token_id, eos_token_id=public.end, pad_token_id=config.pad_token_id
    )
    return student


def _can_be_made(plan: Distils, layers: int, cache: Path, base: Path) -> None:
    from learning.models.encoders import language_model
    from learning.transformers.layered_student import make_student

    plain, _ = language_model(placed_model(plan.model.name, base), cache=cache)
    make_student(plain, layers, plan.distil.start, seed=plan.run.seed)


def _started(plan: Distils, public: PublicLanguage, name: str, cache: Path | None) -> "PreTrainedModel":
    from learning.models.encoders import language_model, speaking_model, tokens_of

    student, tokenizer = (language_model if public.pairs is None else speaking_model)(name, cache=cache)
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
    if public.pairs is not None and public.pairs.of(student.config) != public.pairs:
        raise PlanError(
            f"[distil] student: of {plan.distil.student} and {plan.model.name} one has an encoder and a decoder, the "
            "other not, so that they read an input otherwise. Name a student of the same form, or leave student out."
        )
    return student
