"""The plan of the recipe `swing`: what language models of several parties say of somebody's texts, and a student."""

from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from coordinator.language_models.distil import StudentModelTable
from coordinator.language_models.pairs import check_pairs, without_pairs
from coordinator.language_models.plan import SpokenPlan
from coordinator.language_models.tables import PairedTextTable
from coordinator.plan.public_text import SourceTable
from coordinator.plan.table import Table
from coordinator.text_models.tables import FineTuneTable
from protos.conclave.v1 import plan_pb2

MOST_QUERIES = 1_000_000


class TeachersTable(FineTuneTable):
    """`[teachers]`: the language models that every party trains on its own text, without noise.

    per_party: how many, each on units of its own. The others: as of ordinary training.
    """

    RATES = MappingProxyType({"lora": 0.005, "lora-all": 0.003, "full": 0.0005})

    per_party: Annotated[int, Field(ge=1, le=1000)] = 1


class QueriesTable(SourceTable):
    """`[queries]`: the texts that teachers are asked about, from which the student learns. Every party is shown them.

    limit: how many, from the first. public: whether they are nobody's secret; otherwise they are records of whoever
    runs this, and neither they nor what the student learns of them is protected. second: the column of answers, where
    answers to inputs are learned: these are asked about, each after its input.
    """

    second: str | None = None
    limit: Annotated[int, Field(ge=1, le=MOST_QUERIES)] = 1000
    public: bool = False


class SwingTable(Table):
    """`[swing]`: how what teachers say is protected.

    form: "certified", differences from the public model, summed under noise, with a guarantee; "published", softened as
    in the paper, which is a heuristic. clip: of the first, how far a teacher's probabilities may be from the public
    model's: the root of the mean over all tokens of the squared L2 distance. The others are of the second. temperature:
    T. strength: alpha, by which the temperature grows near a privacy clue word; 0: it does not. cap: the highest
    temperature. protection: which probabilities get Laplace noise of `scale`: "top", the `noised` likeliest of each
    token; "all"; "none". clues: a file of clue words in place of those that are shipped (`learning.swing.clues`).
    """

    PLACES: ClassVar[tuple[str, ...]] = ("clues",)

    form: Literal["certified", "published"] = "certified"
    clip: Annotated[float, Field(gt=0, le=0.707)] = 0.25
    temperature: Annotated[float, Field(gt=0, le=100)] = 2.0
    strength: Annotated[float, Field(ge=0, le=1000)] = 1.0
    cap: Annotated[float, Field(gt=0, le=1000)] = 20.0
    protection: Literal["none", "top", "all"] = "top"
    scale: Annotated[float, Field(ge=1e-6, le=1e5)] = 0.1
    noised: Annotated[int, Field(ge=1, le=1024)] = 3
    clues: str | None = None


class SwingPlan(SpokenPlan):
    """A plan whose `[model]` is the public start of teachers and student."""

    UNPROVEN: ClassVar[bool] = True

    text: PairedTextTable = PairedTextTable()
    queries: QueriesTable
    teachers: TeachersTable = TeachersTable()
    swing: SwingTable = SwingTable()
    distil: StudentModelTable = StudentModelTable(top=16, mixing=0.5)

    @property
    def teachers_of_all(self) -> int:
        """All parties' teachers together."""
        return len(self.federation.names) * self.teachers.per_party

    @property
    def pairs(self) -> bool:
        return self.text.kind == "pair"

    @property
    def paired(self) -> plan_pb2.PairedText | None:
        return plan_pb2.PairedText(separator=self.text.separator, answer=self.text.answer) if self.pairs else None

    @property
    def exposed(self) -> tuple[str, ...]:
        if self.queries.public:
            return ()
        return (
            "the texts of [queries], which belong to whoever ran this: every party was shown them, and the student "
            "learned from them without noise",
        )

    def _check_recipe(self) -> None:
        if self.privacy.record == "pair":
            raise ValueError(
                '[privacy] record = "pair": a language model learns from texts. Use record = "document" or "sentence".'
            )
        check_pairs(self)
        if self.distil.hidden:
            raise ValueError("[distil] hidden: no hidden state of a teacher leaves a party. Leave hidden out.")
        if self.distil.temperature != 1:
            raise ValueError(
                "[distil] temperature: the student's is 1 in the certified form, and [swing] temperature in the "
                "published one. Leave temperature out."
            )
        if self.published == self.privacy.guarantee:
            wanted = "guarantee = false" if self.published else "an epsilon and a delta, and no guarantee = false"
            raise ValueError(
                f'[swing] form = "{self.swing.form}" {"has no proof" if self.published else "has a guarantee"}: write '
                f"[privacy] {wanted}, or choose the other form."
            )
        if self.published:
            self._check_published()

    def _check_published(self) -> None:
        settings = self.swing
        if self.teachers.per_party != 1:
            raise ValueError(
                f"[teachers] per_party = {self.teachers.per_party}: in the published form a party has one teacher, of "
                "all its text. Leave per_party out."
            )
        if settings.temperature > settings.cap:
            raise ValueError(
                f"[swing] cap = {settings.cap:g} is below temperature = {settings.temperature:g}. Use a higher cap."
            )
        if settings.protection == "top" and settings.noised > self.distil.top:
            raise ValueError(
                f"[swing] noised = {settings.noised} is more than the [distil] top = {self.distil.top} outcomes that "
                "leave. Use fewer."
            )
        if settings.clues is not None and not settings.strength:
            raise ValueError("[swing] clues: with strength = 0 no temperature grows near them. Leave clues out.")

    def check_audit(self) -> None:
        super().check_audit()
        if self.pairs:
            raise ValueError(
                '[audit] plants single texts, and [text] kind = "pair" learns answers to inputs. Audit a plan of '
                "single texts with the same tables."
            )

    def _document(self, tables: dict[str, Any]) -> None:
        super()._document(tables)
        if not self.pairs:
            without_pairs(tables)

    @property
    def published(self) -> bool:
        """Whether what leaves is softened as in the paper, which is a heuristic."""
        return self.swing.form == "published"
