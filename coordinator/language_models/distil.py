"""`[distil]` of a plan of language models: the student, and how it learns from what teachers say of every token."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator

from coordinator.plan.table import Table

if TYPE_CHECKING:
    from learning.language.distilling import Settings as Learning


class StudentModelTable(Table):
    """`[distil]`: the student, and how it learns from the texts and what teachers say of every token.

    layers: of the student, by default half of the teacher's; student: a public model to start from in their place, with
    the teacher's tokenizer. start: "spread", every other layer of the teacher; "first", its first layers; "random".
    mixing: l in (1 - l) CE + l t^2 KL, both a mean over a batch's tokens. temperature: t. skip: first tokens of a text
    that count for no KL. top: the most probable tokens of each position that are kept, with the mass of all others.
    hidden: weight of the squared distance of last hidden states. held_out: share of the texts on which the student is
    stopped: it is the best of all looked at, and training ends after `patience` looks that were none better. patience:
    looks. passes: over the texts. batch: texts in an update; micro_batch: texts computed at a time. learning_rate: the
    highest. warm_up: the share of the updates over which it rises. decay: weight decay.
    """

    PLACES: ClassVar[tuple[str, ...]] = ("student",)

    layers: Annotated[int, Field(ge=1)] | None = None
    student: str | None = None
    start: Literal["spread", "first", "random"] = "spread"
    mixing: Annotated[float, Field(ge=0, le=1)] = 0.8
    temperature: Annotated[float, Field(gt=0, le=20)] = 1.0
    skip: Annotated[int, Field(ge=0)] = 0
    top: Annotated[int, Field(ge=1, le=1024)] = 64
    hidden: Annotated[float, Field(ge=0)] = 0.0
    passes: Annotated[int, Field(ge=1, le=1000)] = 3
    batch: Annotated[int, Field(ge=1)] = 64
    micro_batch: Annotated[int, Field(ge=1)] = 32
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.05
    decay: Annotated[float, Field(ge=0)] = 0.01
    held_out: Annotated[float, Field(gt=0, lt=0.5)] = 0.02
    patience: Annotated[int, Field(ge=1)] = 3

    def settings(self) -> "Learning":
        """The settings in the form that training takes."""
        from learning.language.distilling import Settings as Learning

        return Learning(
            mixing=self.mixing,
            temperature=self.temperature,
            skip=self.skip,
            hidden=self.hidden,
            passes=self.passes,
            batch=self.batch,
            micro_batch=self.micro_batch,
            learning_rate=self.learning_rate,
            warm_up=self.warm_up,
            decay=self.decay,
            held_out=self.held_out,
            patience=self.patience,
        )

    @field_validator("hidden")
    @classmethod
    def _finite(cls, hidden: float) -> float:
        if hidden > 1e6:
            raise ValueError("a weight above a million leaves nothing of the other losses. Use for example 0.4.")
        return hidden
