"""The plan of the recipe `privdistil`: public text chosen privately, a student distilled on it, fine-tuned
privately.
"""

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from coordinator.plan.public_text import SourceTable
from coordinator.plan.table import Table
from coordinator.text_models.plan import ClassifierPlan
from coordinator.text_models.tables import DescentTable, DpSgdTable
from protos.console.settings import Settings

if TYPE_CHECKING:
    from learning.transformers.distilling import Distillation


HALF = 2
"""A student has one layer for this many of its teacher's, unless the plan gives a number."""


class CorpusTable(SourceTable):
    """`[[corpus]]`: public text on which the student may be distilled; several tables form one corpus.

    source: JSON Lines or plain text files are read in place; any other source is copied once. take: [n, r], the rows
    whose index modulo n is r, so that parts of one file can serve different uses. limit: maximum number of rows.
    """

    OF_THEIR_KIND: ClassVar[bool] = False

    take: list[int] | None = None
    limit: Annotated[int, Field(ge=1)] | None = None

    @field_validator("take")
    @classmethod
    def _a_remainder(cls, take: list[int] | None) -> list[int] | None:
        if take is not None and (len(take) != 2 or not 0 <= take[1] < take[0]):
            raise ValueError("take is [n, r] with r from 0 to n - 1: [2, 0] is every other row, [2, 1] are the others.")
        return take


class DomainTable(DescentTable):
    """`[domain]`: the classifier that every party trains under DP-SGD to tell its own (private) text from public text.

    epsilon: its part of the plan's epsilon; by default the smallest at which its signal is clear of the noise. model:
    the classifier's encoder, by default the teacher; adapt: which of its parameters are trained. texts: number of
    public texts that each party's classifier is trained against, different ones at every party. release: "weights",
    with which the coordinator scores the corpus; or "scores", where every party keeps its classifier, receives the
    corpus, and releases how private-like each text is. steps: how many. batch: expected number of one party's texts,
    its own and public, in a step. clip: L2 norm of a unit's gradient.
    """

    PLACES: ClassVar[tuple[str, ...]] = ("model",)
    RATES = DpSgdTable.RATES

    epsilon: Annotated[float, Field(gt=0)] | None = None
    model: str | None = None
    adapt: Literal["head", "lora", "lora-all", "full"] = "head"
    texts: Annotated[int, Field(ge=10, le=1_000_000)] = 2000
    release: Literal["weights", "scores"] = "weights"
    steps: Annotated[int, Field(ge=1, le=10_000)] = 20
    batch: Annotated[int, Field(ge=1)] = 1000
    clip: Annotated[float, Field(gt=0)] = 1.0
    learning_rate: Annotated[float, Field(gt=0)] = 0.05


class SelectionTable(Settings):
    """`[selection]`: on which public texts the student is distilled.

    method: "ais", the best-scored text of every cluster in turn; "classifier", the best-scored texts; "random"; or
    "all". The last two ask nothing of the parties. texts: number of texts to choose. clusters: number of clusters; by:
    whether they are made from the teacher's embeddings or at random. passes: maximum number of k-means passes over the
    corpus. streamer: where the corpus is embedded and scored: "local", in this process, or "ray", by Ray Data on this
    machine or a cluster.
    """

    method: Literal["ais", "classifier", "random", "all"] = "ais"
    texts: Annotated[int, Field(ge=1)] = 4000
    clusters: Annotated[int, Field(ge=1, le=100_000)] = 10
    by: Literal["embedding", "random"] = "embedding"
    passes: Annotated[int, Field(ge=1, le=1000)] = 10
    streamer: Annotated[str, Field(min_length=1)] = "local"

    @property
    def scored(self) -> bool:
        """Whether the choice uses the parties' classifiers."""
        return self.method in ("ais", "classifier")


class DistilTable(Table):
    """`[distil]`: how the student is made from the public teacher `[model]` and distilled on public text.

    layers: number of the student's layers, by default half of the teacher's. student: a model to start from instead, as
    wide as the teacher. start: "spread", every other layer of the teacher; "first", its first layers; "random". passes:
    over the chosen texts. batch: texts in an update; micro_batch: texts computed at a time. longest: maximum length of
    a text in tokens. match: hidden states of the last layer, or of all layers in pairs. mask: share of tokens masked,
    anew in each pass; by default 0.15 where the teacher has a masked-language head, and 0 elsewhere, because an
    encoder's student would learn the embedding of masks. soft, hard, cosine, squared: weights of the losses; the first
    two need a teacher with a language-model head. learning_rate: the highest. warm_up: the share of the updates over
    which it rises. decay: weight decay. temperature: of teacher and student under the soft loss.
    """

    PLACES: ClassVar[tuple[str, ...]] = ("student",)

    layers: Annotated[int, Field(ge=1)] | None = None
    student: str | None = None
    start: Literal["spread", "first", "random"] = "spread"
    passes: Annotated[int, Field(ge=1, le=1000)] = 3
    batch: Annotated[int, Field(ge=1)] = 64
    micro_batch: Annotated[int, Field(ge=1)] = 32
    learning_rate: Annotated[float, Field(gt=0)] = 5e-4
    warm_up: Annotated[float, Field(ge=0, lt=1)] = 0.05
    decay: Annotated[float, Field(ge=0)] = 0.01
    longest: Annotated[int, Field(ge=8, le=4096)] = 64
    temperature: Annotated[float, Field(gt=0)] = 2.0
    match: Literal["last", "paired"] = "last"
    mask: Annotated[float, Field(ge=0, lt=1)] | None = None
    soft: Annotated[float, Field(ge=0)] = 1.0
    hard: Annotated[float, Field(ge=0)] = 1.0
    cosine: Annotated[float, Field(ge=0)] = 1.0
    squared: Annotated[float, Field(ge=0)] = 1.0

    def settings(self) -> "Distillation":
        """The settings of distillation. Raises `ConclaveError` for weights under which nothing is learned."""
        from learning.transformers.distilling import Distillation
        from learning.transformers.losses import Weights

        return Distillation(
            passes=self.passes,
            batch=self.batch,
            micro_batch=self.micro_batch,
            learning_rate=self.learning_rate,
            warm_up=self.warm_up,
            decay=self.decay,
            max_tokens=self.longest,
            temperature=self.temperature,
            weights=Weights(self.soft, self.hard, self.cosine, self.squared),
            match=self.match,
            mask_share=self.mask,
        )


class PrivDistilPlan(ClassifierPlan):
    """A plan whose `[model]` is the public teacher; the student's part that `adapt` names is trained as `[dp_sgd]`
    says.
    """

    corpus: Annotated[list[CorpusTable], Field(min_length=1)]
    domain: DomainTable = DomainTable()
    selection: SelectionTable = SelectionTable()
    distil: DistilTable = DistilTable()

    def _check_recipe(self) -> None:
        super()._check_recipe()
        self.check_descent()
        privacy, domain = self.privacy, self.domain
        if self.selection.scored and domain.epsilon is not None and domain.epsilon >= privacy.epsilon:
            raise ValueError(
                f"[domain] epsilon = {domain.epsilon:g} leaves nothing of [privacy] epsilon = {privacy.epsilon:g} for "
                "training the student. Use a part of it, for example a tenth, or leave it out."
            )
        if privacy.noise_multiplier is not None and self.selection.scored and domain.epsilon is None:
            raise ValueError(
                "[domain] epsilon is missing: with [privacy] noise_multiplier, which is the student's, the "
                "classifier's part has to be said. Give it, or leave noise_multiplier out."
            )
        if self.distil.student is not None and self.distil.layers is not None:
            raise ValueError("[distil] layers and student exclude each other: a student that is there has its layers.")

    @property
    def party_size(self) -> float:
        """A rough, public number of units at a party."""
        assert self.privacy.declared_size is not None
        return self.privacy.declared_size / len(self.federation.names)

    def domain_sampling(self, texts: int) -> float:
        """The probability with which a step of a party's classifier takes a unit, or one of its public texts."""
        return min(1.0, self.domain.batch / (self.party_size + texts))

    def divide_again(self, tables: dict[str, Any], factor: float) -> None:
        if self.domain.epsilon is not None:
            tables["domain"]["epsilon"] = self.domain.epsilon * factor

    def _document(self, tables: dict[str, Any]) -> None:
        super()._document(tables)
        del tables["selection"]["streamer"]
