"""Plans of language models that all parties train on their text."""

from typing import Any, ClassVar

from coordinator.language_models.tables import (
    MOST_APART,
    CodesTable,
    FloorTable,
    LanguageDpSgdTable,
    LanguageModelTable,
    LanguageTextTable,
)
from coordinator.text_models.plan import ModelPlan, TrainedPlan
from protos.conclave.v1 import party_pb2, plan_pb2

FLOOR_PART, CODES_PART = 0.35, 0.05
"""Parts of the plan's epsilon that counts of tokens and of codes spend where the plan does not say."""


class SpokenPlan(ModelPlan):
    """A plan of unlabelled text and a public causal language model."""

    text: LanguageTextTable = LanguageTextTable()
    model: LanguageModelTable

    @property
    def codes_table(self) -> CodesTable | None:
        """The control codes that stand before texts; None where there are none."""
        return None

    @property
    def pairs(self) -> bool:
        """Whether answers to inputs are learned, two texts of a row."""
        return False


class LanguagePlan(TrainedPlan, SpokenPlan):
    """A plan of unlabelled text, a public causal language model, and how all parties train it."""

    OBJECTIVE: ClassVar[party_pb2.Objective.ValueType] = party_pb2.OBJECTIVE_LANGUAGE

    text: LanguageTextTable = LanguageTextTable()
    model: LanguageModelTable
    dp_sgd: LanguageDpSgdTable = LanguageDpSgdTable()
    codes: CodesTable | None = None
    floor: FloorTable = FloorTable()

    def _check_recipe(self) -> None:
        privacy = self.privacy
        if privacy.record == "pair":
            raise ValueError(
                '[privacy] record = "pair": a language model learns from texts. Use record = "document" or "sentence".'
            )
        if self.codes is not None and privacy.record != "document":
            raise ValueError(
                f'[privacy] record = "{privacy.record}": a control code belongs to a document. Use record = '
                '"document", or leave [codes] out.'
            )
        self.check_descent()
        if self.floor.by_code and self.codes is None:
            raise ValueError("[floor] by_code: the plan has no [codes]. Give codes, or leave by_code out.")
        spent = self.floor_epsilon + self.codes_epsilon
        if spent >= privacy.epsilon:
            raise ValueError(
                f"[floor] epsilon and [codes] epsilon, {spent:g} together, leave nothing of [privacy] epsilon = "
                f"{privacy.epsilon:g} for training the teacher. Use smaller parts, or leave them out."
            )
        if privacy.noise_multiplier is not None and self._parts_unsaid:
            raise ValueError(
                f"[{self._parts_unsaid[0]}] epsilon is missing: with [privacy] noise_multiplier, which is the "
                "teacher's, the parts of the counts have to be said. Give them, or leave noise_multiplier out."
            )

    @property
    def codes_table(self) -> CodesTable | None:
        return self.codes

    @property
    def floor_epsilon(self) -> float:
        """What the counts of tokens spend; 0 where none are asked."""
        if not self.floor.use:
            return 0.0
        return self.floor.epsilon or FLOOR_PART * self.privacy.epsilon

    @property
    def codes_epsilon(self) -> float:
        """What the counts of codes spend; 0 where there are no codes."""
        if self.codes is None:
            return 0.0
        return self.codes.epsilon or CODES_PART * self.privacy.epsilon

    @property
    def apart(self) -> int:
        """The control codes whose texts' tokens are counted apart; 0 where tokens of all texts are counted together."""
        if self.codes is None or not self.floor.use:
            return 0
        cells = self.codes.codes().cells
        wanted = cells <= MOST_APART if self.floor.by_code is None else self.floor.by_code
        return cells if wanted else 0

    @property
    def coded(self) -> plan_pb2.CodedText | None:
        if self.codes is None:
            return None
        columns = [
            plan_pb2.CodeColumn(name=name, labels=each.values, values=each.stored)
            for name, each in self.codes.columns.items()
        ]
        return plan_pb2.CodedText(template=self.codes.template, columns=columns)

    @property
    def shard_columns(self) -> dict[str, Any]:
        if self.codes is None:
            return {}
        return {"codes": {name: each.column or name for name, each in self.codes.columns.items()}}

    def divide_again(self, tables: dict[str, Any], factor: float) -> None:
        for name, table in (("floor", self.floor), ("codes", self.codes)):
            if table is not None and table.epsilon is not None:
                tables[name]["epsilon"] = table.epsilon * factor

    @property
    def _parts_unsaid(self) -> list[str]:
        asked = {"floor": self.floor if self.floor.use else None, "codes": self.codes}
        return [name for name, table in asked.items() if table is not None and table.epsilon is None]
