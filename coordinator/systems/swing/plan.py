"""The plan of the recipe `swing`: what language models of several parties say of somebody's texts, and a student."""

from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from coordinator.language_models.distil import StudentModelTable
from coordinator.language_models.plan import SpokenPlan
from coordinator.plan.public_text import SourceTable
from coordinator.text_models.tables import FineTuneTable
from protos.console.settings import Settings

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
    runs this, and neither they nor what the student learns of them is protected.
    """

    limit: Annotated[int, Field(ge=1, le=MOST_QUERIES)] = 1000
    public: bool = False


class SwingTable(Settings):
    """`[swing]`: how what teachers say is protected.

    clip: L2 norm of how far a teacher's probabilities may be from the public model's at one token.
    """

    clip: Annotated[float, Field(gt=0, le=2)] = 0.25


class SwingPlan(SpokenPlan):
    """A plan whose `[model]` is the public start of teachers and student."""

    queries: QueriesTable
    teachers: TeachersTable = TeachersTable()
    swing: SwingTable = SwingTable()
    distil: StudentModelTable = StudentModelTable(top=16, mixing=0.5)

    @property
    def teachers_of_all(self) -> int:
        """All parties' teachers together."""
        return len(self.federation.names) * self.teachers.per_party

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
        if self.distil.hidden:
            raise ValueError("[distil] hidden: no hidden state of a teacher leaves a party. Leave hidden out.")
        if self.distil.temperature != 1:
            raise ValueError(
                "[distil] temperature: what leaves under noise is priced at temperature 1. Leave temperature out."
            )
