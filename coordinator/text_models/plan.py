"""Plans that train a public model, and those of them whose student is a text classifier or a regression."""

from typing import Any, ClassVar, Final, get_args

from pydantic import model_validator

from coordinator.plan.plan import EvaluationTable, Plan
from coordinator.text_models.tables import DescentTable, DpSgdTable, FineTuneTable, ModelTable, PateTable, TextTable
from learning.text.labelled import LabelMap, LabelMapError, ScoreRange
from protos.conclave.v1 import party_pb2, plan_pb2

_KIND: Final = {
    "single": plan_pb2.TEXT_KIND_SINGLE,
    "pair": plan_pb2.TEXT_KIND_PAIR,
    "regression": plan_pb2.TEXT_KIND_REGRESSION,
}


class ModelPlan(Plan):
    """A plan of a public model. Learning rates follow `[model] adapt` where the plan does not say them."""

    MODELS: ClassVar[bool] = True

    model: ModelTable = ModelTable()

    @model_validator(mode="before")
    @classmethod
    def _suited(cls, tables: Any) -> Any:
        """Fill in the learning rates that follow what is trained. What is malformed is told by later checks."""
        if not isinstance(tables, dict):
            return tables
        model, own = tables.get("model"), cls.model_fields["model"].annotation
        assert own is not None
        adapt = (model if isinstance(model, dict) else {}).get("adapt", own.model_fields["adapt"].default)
        found = dict(tables)
        for name, field in cls.model_fields.items():
            kind = _descent(field.annotation)
            table = tables.get(name, None if field.default is None else {})
            if kind is None or not isinstance(table, dict):
                continue
            how = table.get("adapt") if "adapt" in kind.model_fields else adapt
            if isinstance(how, str) and how in kind.RATES:
                found[name] = {"learning_rate": kind.RATES[how]} | table
        return found


class TrainedPlan(ModelPlan):
    """A plan of a public model and how all parties train it under DP-SGD.

    `[privacy] declared_size` fixes sampling rates and divisors, because the shards' own sizes are private. OBJECTIVE:
    what the model learns.
    """

    OBJECTIVE: ClassVar[party_pb2.Objective.ValueType]

    dp_sgd: DpSgdTable = DpSgdTable()

    def check_descent(self) -> None:
        """Raises ValueError unless the model can be trained under DP-SGD as the plan says."""
        privacy = self.privacy
        if privacy.noise != "gaussian":
            raise ValueError(
                f'[privacy] noise = "{privacy.noise}" has no price for random batches that is small. Leave it out.'
            )
        if privacy.declared_size is None:
            raise ValueError(
                "[privacy] declared_size is missing: how many units all parties hold together, roughly and publicly. "
                "It fixes how often a unit is taken; the shards' own sizes are nobody's business."
            )
        if self.dp_sgd.batch > privacy.declared_size:
            raise ValueError(
                f"[dp_sgd] batch = {self.dp_sgd.batch} is more than [privacy] declared_size = "
                f"{privacy.declared_size}. Use a smaller batch."
            )
        if self.dp_sgd.form == "local" and privacy.trust == "secure-sum":
            raise ValueError(
                '[dp_sgd] form = "local" gives the coordinator each party\'s model, under noise of its own, and a '
                'secure sum has nothing to hide. Use trust = "trusted-aggregator": what it says of trust is then more '
                "than is needed."
            )
        if self.dp_sgd.form == "local" and privacy.dropouts:
            raise ValueError(
                '[privacy] dropouts makes each party\'s share of the noise larger, and in form = "local" each adds all '
                "of its own. Set dropouts = 0, and [federation] minimum_parties to as many as have to stay."
            )

    @property
    def sampling(self) -> float:
        """The probability that a step takes a given unit."""
        assert self.privacy.declared_size is not None
        return self.dp_sgd.batch / self.privacy.declared_size


class ClassifierPlan(TrainedPlan):
    """A plan of labelled text, a public model, and how it is trained: the part that several systems' plans share.

    A comparison runs several ways of training on one plan, so the plan may hold the tables of each.
    """

    OBJECTIVE = party_pb2.OBJECTIVE_LABELS

    text: TextTable
    pate: PateTable | None = None
    fine_tune: FineTuneTable = FineTuneTable()

    @property
    def labelled(self) -> plan_pb2.LabelledText:
        text = self.text
        low, high = text.range or (0.0, 0.0)
        return plan_pb2.LabelledText(
            kind=_KIND[text.kind], labels=text.labels, values=text.values, low=low, high=high, second=text.second
        )

    def _check_recipe(self) -> None:
        privacy, shards = self.privacy, self.federation.shards
        if privacy.record != "document":
            raise ValueError(
                f'[privacy] record = "{privacy.record}": a label belongs to a document. Use record = "document".'
            )
        self._check_learning()
        if shards is not None and shards.label is None:
            raise ValueError("[federation.shards] label is missing: the column that holds the labels.")
        if shards is not None and self.text.pairs and shards.second is None:
            raise ValueError("[federation.shards] second is missing: the column that holds the second texts.")
        if self.evaluation is not None and self.evaluation.label is None:
            raise ValueError("[evaluation] label is missing: the column that holds the labels.")
        if self.evaluation is not None:
            self._check_values(self.evaluation)
        if self.evaluation is not None and self.text.pairs and self.evaluation.second is None:
            raise ValueError("[evaluation] second is missing: the column that holds the second texts.")

    def _check_values(self, evaluation: EvaluationTable) -> None:
        """Raises ValueError where the evaluation's label column cannot hold what the plan says."""
        if evaluation.values and self.text.range is not None:
            raise ValueError("[evaluation] values belong to classes, and this plan has scores. Leave them out.")
        try:
            self.held_out_targets  # noqa: B018 - checks them
        except LabelMapError as error:
            raise ValueError(f"[evaluation] values: {error}") from None

    @property
    def held_out_targets(self) -> LabelMap | ScoreRange:
        """What a model predicts, as the label column of `[evaluation]` holds it."""
        own = [] if self.evaluation is None else self.evaluation.values
        return LabelMap(tuple(self.text.labels), tuple(own)) if own else self.text.targets

    def _check_learning(self) -> None:
        """Check what else a system's way of training requires of the plan. Raises ValueError."""

    def check_votes(self) -> None:
        """Raises ValueError unless teachers can vote as the plan says."""
        table = self.pate
        if table is None:
            raise ValueError(
                '[pate] is missing: public texts for teachers to vote on, for example source = "public.jsonl".'
            )
        if self.text.pairs and table.second is None:
            raise ValueError("[pate] second is missing: the column that holds the second texts.")
        if self.teachers < 2:
            raise ValueError(
                "[pate] teachers_per_party = 1 with one party is one teacher: its votes are its whole shard's. Use "
                "several teachers or parties."
            )
        if table.threshold is not None and table.threshold > self.teachers:
            raise ValueError(
                f"[pate] threshold = {table.threshold:g} is more votes than {self.teachers} teachers have. Use at most "
                f"{self.teachers}, better half of that."
            )

    @property
    def teachers(self) -> int:
        """All parties' teachers together."""
        return 0 if self.pate is None else len(self.federation.names) * self.pate.teachers_per_party


def _descent(annotation: Any) -> type[DescentTable] | None:
    """The table of optimiser settings that a plan's field holds."""
    kinds = [each for each in (annotation, *get_args(annotation)) if isinstance(each, type)]
    return next((each for each in kinds if issubclass(each, DescentTable)), None)
