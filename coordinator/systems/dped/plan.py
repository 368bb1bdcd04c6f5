"""The plan of the recipe `dped` and its tables: `[vocabulary]`, the words, and `[dped]`, the recipe's own settings."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from coordinator.plan.plan import Plan
from coordinator.plan.public_text import SourceTable
from coordinator.plan.table import Table
from protos.console.settings import Settings

Signal = Literal["votes", "hidden", "counts", "moments"]
Layer = Literal["centre", "context"]


class VocabularyTable(SourceTable):
    """`[vocabulary]`: the words, counted from public text. The vocabulary is a public, hashed artefact.

    size: how many words, the most frequent first.
    """

    size: Annotated[int, Field(ge=2, le=100_000)] = 1000


class BudgetTable(Settings):
    """`[dped.budget]`: how the signals in use divide the budget, as relative weights of 1 / noise^2.

    votes, hidden, counts, moments: the weight of each.
    """

    votes: Annotated[float, Field(gt=0)] = 1.0
    hidden: Annotated[float, Field(gt=0)] = 1.0
    counts: Annotated[float, Field(gt=0)] = 1.0
    moments: Annotated[float, Field(gt=0)] = 1.0


class PrivateTrainingTable(Settings):
    """`[dped.private_training]`: teachers learn under DP-SGD, which takes the whole budget; their answers are then
    free.

    units_per_teacher: a declared, public figure; the sampling rate follows from it, never from the shard's own count.
    clip: L2 norm of one unit's gradient. batch: expected units in a step. steps: how many. learning_rate: of each.
    """

    units_per_teacher: Annotated[int, Field(ge=2)]
    steps: Annotated[int, Field(ge=1, le=100_000)] = 60
    batch: Annotated[int, Field(ge=1)] = 512
    clip: Annotated[float, Field(gt=0)] = 0.3
    learning_rate: Annotated[float, Field(gt=0)] = 5.0

    @model_validator(mode="after")
    def _a_batch_is_a_sample(self) -> "PrivateTrainingTable":
        if self.batch > self.units_per_teacher:
            raise ValueError(
                f"[dped.private_training] batch = {self.batch} is more than units_per_teacher = "
                f"{self.units_per_teacher}. Use a smaller batch."
            )
        return self


class DpedTable(Table):
    """`[dped]`: the recipe's own settings.

    signals: what parties release, in any combination that docs/dped.md allows. dimension: of the vectors, and the
    number of public directions. clip: L2 norm to which one unit's (word, context) counts are clipped; at most 1 where
    the unit is a pair. window: context words on each side. levels: grid steps in the clip norm. budget: how signals
    divide the budget. block_rows: rows of a released matrix that are sent at once.

    The signal "moments" stands for word frequencies and second moments along `dimension` public directions: a summary
    of what "counts" gives cell by cell, in far fewer numbers. moments_clip: L2 norm of one unit's moments; by default
    what public text suggests.

    Of the signals "votes" and "hidden": teachers_per_party: how many skip-grams, each on units of its own. alignment:
    "initialisation", teachers start at the reference and are held to it; "procrustes", they start anywhere and are
    rotated onto it. vote: "probable", for the likeliest context word; "lift", for the one that is most above the
    reference. private_training: teachers that learn under DP-SGD. queries, classes: words that are asked about, and
    words that a vote may name; either a number of words from the start of the vocabulary, or a list. layers: the layers
    whose vectors of a word are its hidden states. hidden_clip: L2 norm of one layer's vector. reference: a public
    skip-gram (safetensors) that teachers start from; by default one fitted to the vocabulary's text. threshold: noisy
    votes that a label needs. noise_at: "parties", each of which adds its share to the whole histogram, or
    "coordinator", which is trusted with the votes and tests the threshold under noise of its own. below_threshold: what
    happens then to queries below the threshold. answered: the share of queries expected to pass it. loss: "paper" (eq.
    3) or "likelihood", which weighs the same signals by their noise.
    """

    PLACES: ClassVar[tuple[str, ...]] = ("reference",)

    signals: list[Signal] = Field(default_factory=lambda: list[Signal](["counts"]))
    dimension: Annotated[int, Field(ge=2, le=4096)] = 100
    window: Annotated[int, Field(ge=1, le=50)] = 5
    clip: Annotated[float, Field(gt=0)] = 10.0
    levels: Annotated[int, Field(ge=2, le=2**20)] = 320
    block_rows: Annotated[int, Field(ge=1)] | None = None
    budget: BudgetTable = BudgetTable()

    moments_clip: Annotated[float, Field(gt=0)] | None = None

    teachers_per_party: Annotated[int, Field(ge=1, le=1000)] = 3
    queries: Annotated[int, Field(ge=1)] | list[str] | None = None
    classes: Annotated[int, Field(ge=2)] | list[str] | None = None
    layers: list[Layer] = Field(default_factory=lambda: list[Layer](["centre"]))
    hidden_clip: Annotated[float, Field(gt=0)] = 2.0
    alignment: Literal["initialisation", "procrustes"] = "initialisation"
    reference: str | None = None
    vote: Literal["probable", "lift"] = "probable"
    threshold: Annotated[float, Field(gt=0)] | None = None
    noise_at: Literal["parties", "coordinator"] = "parties"
    below_threshold: Literal["abstain", "larger-noise"] = "abstain"
    answered: Annotated[float, Field(gt=0, le=1)] = 1.0
    loss: Literal["paper", "likelihood"] = "likelihood"
    private_training: PrivateTrainingTable | None = None

    @field_validator("signals")
    @classmethod
    def _some_signal(cls, signals: list[str]) -> list[str]:
        if not signals:
            raise ValueError('a recipe needs a signal. Use ["counts"].')
        return _distinct(signals)

    @field_validator("layers")
    @classmethod
    def _some_layer(cls, layers: list[str]) -> list[str]:
        if not layers:
            raise ValueError('hidden states are of a layer. Use ["centre"].')
        return _distinct(layers)

    @field_validator("classes")
    @classmethod
    def _classes_differ(cls, classes: int | list[str] | None) -> int | list[str] | None:
        if isinstance(classes, list) and len(_distinct(classes)) < 2:
            raise ValueError("a vote needs two classes or more.")
        return classes

    @field_validator("queries")
    @classmethod
    def _some_query(cls, queries: int | list[str] | None) -> int | list[str] | None:
        if queries == []:
            raise ValueError("a query is missing. List the words that teachers are asked about, or leave it out.")
        return queries

    @model_validator(mode="after")
    def _settings_agree(self) -> "DpedTable":
        if self.threshold is not None and "votes" not in self.signals:
            raise ValueError('[dped] threshold is one of votes. Add "votes" to signals, or leave it out.')
        if self.noise_at == "coordinator" and self.threshold is None:
            raise ValueError(
                '[dped] noise_at = "coordinator" tests a threshold. Set threshold, or noise_at = "parties".'
            )
        if self.private_training is not None and not self.teaches:
            raise ValueError('[dped.private_training] trains teachers. Add "votes" or "hidden" to signals.')
        if "counts" in self.signals and "moments" in self.signals:
            raise ValueError('[dped] "moments" say along public directions what "counts" say cell by cell. Use one.')
        if self.private_training is not None and {"counts", "moments"} & set(self.signals):
            raise ValueError(
                '[dped.private_training] takes the whole budget. Use the signals "votes" and "hidden" alone with it.'
            )
        if self.private_training is not None and self.noise_at == "coordinator":
            raise ValueError('[dped.private_training] makes answers free: noise_at = "coordinator" has no use then.')
        return self

    @property
    def teaches(self) -> bool:
        """Whether any signal comes from teachers."""
        return "votes" in self.signals or "hidden" in self.signals

    @property
    def refers(self) -> bool:
        """Whether a public skip-gram is needed: teachers start from it, and public directions are its."""
        return self.teaches or "moments" in self.signals


def _distinct(names: list[str]) -> list[str]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f'"{twice}" is there twice. Name it once.')
    return names


class DpedPlan(Plan):
    """A plan with a vocabulary, from whose parties' text word embeddings are learned."""

    vocabulary: VocabularyTable
    dped: DpedTable = DpedTable()

    def public_tables(self) -> dict[str, SourceTable]:
        return {"vocabulary": self.vocabulary, **super().public_tables()}

    def _check_recipe(self) -> None:
        if self.privacy.noise != "gaussian" and (
            self.dped.noise_at == "coordinator" or self.dped.private_training is not None
        ):
            raise ValueError(
                f'[privacy] noise = "{self.privacy.noise}" is of noise that parties add by shares. Private training '
                'and noise_at = "coordinator" draw theirs at one place: leave it out.'
            )
        if self.privacy.trust == "secure-sum" and self.dped.noise_at == "coordinator":
            raise ValueError(
                '[dped] noise_at = "coordinator" shows it every party\'s votes, and [privacy] trust = "secure-sum" '
                'shows it sums alone. Use noise_at = "parties".'
            )
        self._check_teachers()

    def _check_teachers(self) -> None:
        """Raises ValueError for teachers, queries or classes that cannot work."""
        settings, size = self.dped, self.vocabulary.size
        if not settings.teaches:
            return
        if self.teachers < 2:
            raise ValueError(
                "[dped] teachers_per_party = 1 with one party is one teacher: its answers are its whole shard's, "
                "and no noise that hides one of its units leaves anything. Use several teachers or parties."
            )
        for name, asked in (("queries", settings.queries), ("classes", settings.classes)):
            words = asked if isinstance(asked, int) else len(set(asked or ()))
            if words > size:
                raise ValueError(
                    f"[dped] {name} = {words:,}, but the vocabulary has {size:,} words and an answer is given once a "
                    f"word. Use at most {size:,}, or a larger [vocabulary] size."
                )
        if settings.threshold is not None and settings.threshold > self.teachers:
            raise ValueError(
                f"[dped] threshold = {settings.threshold:g} is more votes than {self.teachers} teachers have: no query "
                f"can reach it but by noise. Use at most {self.teachers}, better half of that."
            )
        if settings.noise_at == "coordinator" and self.privacy.dropouts:
            raise ValueError(
                f"[privacy] dropouts = {self.privacy.dropouts} makes each party's share of the noise larger, and "
                '[dped] noise_at = "coordinator" draws none at the parties. Set dropouts = 0, or noise_at = "parties".'
            )
        privately = settings.private_training
        if privately is not None and self.privacy.record == "pair":
            raise ValueError(
                '[dped.private_training] counts a step in units, and [privacy] record = "pair" makes each pair one. '
                'Use record = "sentence" or "document".'
            )

    @property
    def teachers(self) -> int:
        """All parties' teachers together."""
        return len(self.federation.names) * self.dped.teachers_per_party

    @property
    def queries(self) -> int:
        """How many distinct words teachers are asked about."""
        asked = self.dped.queries
        return self.vocabulary.size if asked is None else asked if isinstance(asked, int) else len(set(asked))

    @property
    def classes(self) -> int:
        """How many words a vote may name."""
        named = self.dped.classes
        return self.vocabulary.size if named is None else named if isinstance(named, int) else len(named)

    @property
    def block_rows(self) -> int:
        """Rows of the count matrix in one block: the plan's figure, or a sixteenth of all rows with at most 2 MiB in a
        block.
        """
        return self.rows_at_once(self.vocabulary.size, self.vocabulary.size)

    def rows_at_once(self, rows: int, columns: int) -> int:
        """Rows of a released matrix [rows, columns] that are sent in one block."""
        return self.dped.block_rows or max(1, min(-(-rows // 16), 2**19 // columns))

    def _document(self, tables: dict[str, Any]) -> None:
        tables["dped"]["block_rows"] = self.block_rows
