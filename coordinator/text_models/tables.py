"""The tables `[text]`, `[model]`, `[dp_sgd]`, `[pate]` and `[fine_tune]` of a plan."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from coordinator.plan.public_text import SourceTable
from coordinator.plan.table import Table
from learning.text.labelled import LabelMap, LabelMapError, ScoreRange
from protos.console.settings import Settings

if TYPE_CHECKING:
    from learning.classification.training import Fit


class TextTable(Settings):
    """`[text]`: which columns of every row are read, and what its label means.

    kind: one text and its class, two texts and their class, or one or two texts and a score. labels: the classes, in
    order. values: what label columns contain for each class, by default the labels; a party whose own file states a map
    is read by that map. range: the lowest and highest score. second: for a regression, whether the score is of two
    texts. longest: maximum length in tokens; longer texts are cut.
    """

    kind: Literal["single", "pair", "regression"] = "single"
    labels: list[str] = Field(default_factory=list)
    values: list[str] = Field(default_factory=list)
    range: list[float] | None = None
    second: bool = False
    longest: Annotated[int, Field(ge=8, le=4096)] = 128

    @field_validator("range")
    @classmethod
    def _two_ends(cls, ends: list[float] | None) -> list[float] | None:
        if ends is not None and len(ends) != 2:
            raise ValueError("a range has two ends, for example [0.0, 5.0].")
        return ends

    @model_validator(mode="after")
    def _labels_or_scores(self) -> "TextTable":
        if self.kind == "regression":
            if self.labels or self.values:
                raise ValueError('[text] labels belong to classes. With kind = "regression" give range = [0.0, 5.0].')
            if self.range is None:
                raise ValueError('[text] kind = "regression" needs the range of its scores, for example [0.0, 5.0].')
        else:
            if self.range is not None or self.second:
                raise ValueError('[text] range and second belong to kind = "regression".')
            if not self.labels:
                raise ValueError('[text] labels is missing: name the classes, for example ["negative", "positive"].')
        try:
            self.targets  # noqa: B018 - checks them
        except LabelMapError as error:
            raise ValueError(f"[text] {error}") from None
        return self

    @property
    def targets(self) -> LabelMap | ScoreRange:
        """What a model predicts for a text."""
        if self.range is not None:
            return ScoreRange(*self.range)
        return LabelMap(tuple(self.labels), tuple(self.values))

    @property
    def pairs(self) -> bool:
        """Whether two texts are read."""
        return self.kind == "pair" or self.second


class ModelTable(Table):
    """`[model]`: the public model that every party starts from, and which of its parameters are trained.

    name: the packaged encoder, a local folder, or a name on the model hub. adapt: "head", the last layers alone;
    "lora", low-rank adapters of the attention, and the head; "lora-all", adapters of every linear layer, and the head;
    "full". rank, alpha: of the adapters. pooling: which vector of a text the head takes, by default the one the model
    was made for.
    """

    PLACES: ClassVar[tuple[str, ...]] = ("name",)

    name: Annotated[str, Field(min_length=1)] = "all-MiniLM-L6-v2"
    adapt: Literal["head", "lora", "lora-all", "full"] = "head"
    rank: Annotated[int, Field(ge=1, le=1024)] = 8
    alpha: Annotated[int, Field(ge=1, le=4096)] = 16
    pooling: Literal["auto", "first", "mean"] = "auto"


class DescentTable(Table):
    """The optimiser settings that every gradient training may have; each table has its own defaults and its own batch.

    warm_up: the share of the steps over which the learning rate rises. momentum: for "sgd". decay: weight decay.
    learning_rate: the highest; by default what `[model] adapt` trains well with. optimiser: its kind. schedule: how the
    learning rate falls until the last step.
    """

    RATES: ClassVar[Mapping[str, float]] = MappingProxyType({})
    """By `adapt`, the table's own or that of `[model]`: the default learning rate where it is not the table's.

    An AdamW step moves every trained number by about the learning rate, whatever the gradient's size. A head bears what
    adapters and whole models do not: at its rate 32 steps leave adapters saying one class of everything, where at their
    own they learn more than the head (benchmarks/results/adapted-rates.json).
    """

    learning_rate: Annotated[float, Field(gt=0)] = 0.01
    optimiser: Literal["adamw", "sgd"] = "adamw"
    schedule: Literal["constant", "linear", "cosine"] = "linear"
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9
    decay: Annotated[float, Field(ge=0)] = 0.0


class DpSgdTable(DescentTable):
    """`[dp_sgd]`: how the model is trained.

    form: "federated", where every step is a noisy sum over all parties and the optimiser is the coordinator's; or
    "local", where each party trains alone under noise of its own and the models are averaged, `rounds` times. steps:
    how many. rounds: of "local", how often models are averaged. batch: expected number of units, over all parties, in a
    step. clip: L2 norm of one unit's gradient. momentum: of "sgd". decay: weight decay. warm_up: the share of the steps
    over which the learning rate rises.
    """

    RATES = MappingProxyType({"lora": 0.01, "lora-all": 0.005, "full": 0.001})

    form: Literal["federated", "local"] = "federated"
    steps: Annotated[int, Field(ge=1, le=10_000)] = 100
    batch: Annotated[int, Field(ge=1)] = 500
    clip: Annotated[float, Field(gt=0)] = 1.0
    learning_rate: Annotated[float, Field(gt=0)] = 0.03
    rounds: Annotated[int, Field(ge=1, le=50)] = 1

    @model_validator(mode="after")
    def _rounds_are_of_steps(self) -> "DpSgdTable":
        if self.rounds > 1 and self.form == "federated":
            raise ValueError('[dp_sgd] rounds belongs to form = "local": every federated step is one.')
        if self.steps % self.rounds:
            raise ValueError(f"[dp_sgd] steps = {self.steps} are not {self.rounds} rounds of equal length.")
        return self


class FineTuneTable(DescentTable):
    """`[fine_tune]`: ordinary training, without privacy.

    epochs: passes over all examples. batch: examples in a step. warm_up: the share of the steps over which the learning
    rate rises. momentum: of "sgd". decay: weight decay.
    """

    RATES = MappingProxyType({"full": 0.0001})

    epochs: Annotated[int, Field(ge=1, le=1000)] = 3
    batch: Annotated[int, Field(ge=1)] = 32
    learning_rate: Annotated[float, Field(gt=0)] = 0.001
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.06
    decay: Annotated[float, Field(ge=0)] = 0.01

    def fit(self) -> "Fit":
        """The settings in the form that training takes."""
        from learning.classification.training import Fit
        from learning.models.optimisers import Schedule

        return Fit(
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=self.learning_rate,
            optimiser=self.optimiser,
            schedule=Schedule(self.schedule, self.warm_up),
            decay=self.decay,
            momentum=self.momentum,
        )


class PateTable(SourceTable, FineTuneTable):
    """`[pate]`: the public texts that the parties' classifiers vote on, and how classifiers and student are trained.

    source, text, second: the public texts; queries: how many of them, from the first. teachers_per_party: number of
    classifiers, each on units of its own. threshold: noisy votes that a label needs for the student to learn from it;
    every query is charged either way. epochs: passes over a teacher's units, and over the texts that got a label.
    """

    RATES = MappingProxyType({"full": 0.0003})

    second: str | None = None
    queries: Annotated[int, Field(ge=1, le=1_000_000)] = 500
    teachers_per_party: Annotated[int, Field(ge=1, le=1000)] = 25
    threshold: Annotated[float, Field(gt=0)] | None = None
    epochs: Annotated[int, Field(ge=1, le=1000)] = 20
    learning_rate: Annotated[float, Field(gt=0)] = 0.01
