"""The tables that every plan has: the run, the guarantee, the federation, what is published, public text."""

import json
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, Field, model_validator

from coordinator.errors import PlanError
from coordinator.plan.audit import AuditTable
from coordinator.plan.federation import FederationTable, Name
from coordinator.plan.privacy import PrivacyTable
from coordinator.plan.public_text import SourceTable
from coordinator.plan.table import Table, told
from protos.conclave.v1 import plan_pb2
from protos.console.computing import ComputeKeys
from protos.console.settings import Settings


def _named(name: str) -> str:
    if not name.strip() or name != name.strip() or not name.isprintable():
        raise ValueError("a run's name is one line of text without space around it. Give another.")
    return name


RunName = Annotated[str, Field(max_length=80), AfterValidator(_named)]


class RunTable(ComputeKeys, Table):
    """`[run]`: the run's name, recipe and seed. The seed governs model starts and public shuffles, never noise.

    name: of the run, as people write it; its id ends with it, in small letters, digits and hyphens. recipe: the
    name of a system, whose tables the plan has. seed: of model starts and public shuffles. device, precision,
    threads: what the coordinator computes with, and the parties that a run starts on this machine. Like an
    address or a deadline they are no part of the plan hash: they change no privacy and no party is bound by
    them, and a run whose device was lost, or too small, can be resumed on another.
    """

    OF_MACHINE: ClassVar[tuple[str, ...]] = tuple(ComputeKeys.model_fields)

    name: RunName
    recipe: str
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class StudentTable(Settings):
    """`[student]`: what is published, where, and what its model card says.

    publish: the folder, relative to the plan. licence, language: of the model card.
    """

    publish: str = "published"
    licence: str = "apache-2.0"
    language: str = "en"


class ProbeTable(SourceTable):
    """`[[evaluation.probes]]`: a public labelled task with the embeddings as features, measured by `compare`.

    A linear classifier is trained on at most `rows` rows of `source` and measured on `test`. label: the column of
    labels. name: of the task in tables. source, test: its text to learn from, and its text to be measured on. rows: at
    the most, to learn from.
    """

    PLACES: ClassVar[tuple[str, ...]] = ("source", "test")

    name: Name
    test: Annotated[str, Field(min_length=1)]
    label: str = "label"
    rows: Annotated[int, Field(ge=10)] = 5000


class EvaluationTable(SourceTable):
    """`[evaluation]`: public held-out text. With a label column the embeddings are also probed for sentiment.

    second: the column of second texts, where a classifier reads pairs. values: what its label column holds for each of
    a classifier's classes, by default what the parties' columns hold (`[text] values`). probes: labelled tasks, each a
    table of its own.
    """

    LATER: ClassVar[tuple[str, ...]] = (*SourceTable.LATER, "values")

    second: str | None = None
    values: list[str] = Field(default_factory=list)
    probes: list[ProbeTable] = Field(default_factory=list)


class Plan(Settings):
    """What the plans of all recipes have in common; `coordinator.systems.registry.read_plan` reads a plan of one
    recipe.

    MODELS: whether text models are trained or run under it, which a device may do; words are counted and embedded on
    the processor. UNPROVEN: whether its releases may be without a guarantee, where it says so
    (`[privacy] guarantee = false`).
    """

    MODELS: ClassVar[bool] = False
    UNPROVEN: ClassVar[bool] = False

    run: RunTable
    privacy: PrivacyTable
    federation: FederationTable
    student: StudentTable = StudentTable()
    evaluation: EvaluationTable | None = None
    audit: AuditTable | None = None

    @model_validator(mode="after")
    def _tables_agree(self) -> "Plan":
        if not (self.privacy.guarantee or self.UNPROVEN):
            raise ValueError(
                f"[privacy] guarantee = false: {self.run.recipe} releases nothing without a guarantee. Leave it out, "
                "and say epsilon and delta."
            )
        parties, dropouts = len(self.summing), self.privacy.dropouts
        if dropouts >= parties:
            raise ValueError(
                f"[privacy] dropouts = {dropouts} leaves nobody of {parties} parties. Use at most {parties - 1}."
            )
        self._check_secure_sum()
        fewest, parties = self.federation.minimum_parties, len(self.federation.names)
        if fewest is not None and fewest < parties - dropouts and self.shares_noise and self.privacy.guarantee:
            raise ValueError(
                f"[federation] minimum_parties = {fewest}, but with [privacy] dropouts = {dropouts} the noise of "
                f"{parties - dropouts} of {parties} parties is needed. Set dropouts = {parties - fewest}, which makes "
                f"each party's share of the noise larger, or minimum_parties = {parties - dropouts}."
            )
        shards = self.federation.shards
        for name, table in self.public_tables().items():
            if shards is not None and table.source == shards.source:
                raise ValueError(
                    f'[{name}] source = "{table.source}" is the parties\' own text. What is counted or measured there '
                    "would leave without noise: name public text."
                )
        if self.privacy.unit == "user" and self.federation.shards is not None and self.federation.shards.user is None:
            raise ValueError('[privacy] unit = "user" needs [federation.shards] user, the column that names the user.')
        if self.privacy.unit == "user" and self.privacy.record == "pair":
            raise ValueError(
                '[privacy] unit = "user" protects all text of a user; record = "pair" does not go with it.'
            )
        if self.audit is not None:
            self.check_audit()
        self._check_recipe()
        return self

    def public_tables(self) -> dict[str, SourceTable]:
        """The tables of public text by name; a table in a list also by its position."""
        found = {}
        for name in type(self).model_fields:
            match getattr(self, name):
                case SourceTable() as table:
                    found[name] = table
                case [SourceTable(), *_] as several:
                    found |= {f"{name} {place}": table for place, table in enumerate(several, 1)}
        return found

    @property
    def summing(self) -> tuple[str, ...]:
        """The parties that make sums together, sorted: all, unless a system leaves some out of them."""
        return self.federation.names

    @property
    def shares_noise(self) -> bool:
        """Whether the noise of a release is the sum of shares that several parties add."""
        return True

    @property
    def labelled(self) -> plan_pb2.LabelledText | None:
        """Which columns of the parties' rows are labelled text, as a party is told when it joins; None for none."""
        return None

    @property
    def coded(self) -> plan_pb2.CodedText | None:
        """The control codes that stand before the parties' texts, where a plan has any."""
        return None

    @property
    def paired(self) -> plan_pb2.PairedText | None:
        """How inputs and answers are read, where a language model learns these."""
        return None

    @property
    def exposed(self) -> tuple[str, ...]:
        """What the plan itself shows of somebody's records without any protection, for people to read."""
        return ()

    @property
    def shard_columns(self) -> dict[str, Any]:
        """What `[shard]` of a party that the run starts says beside what `[federation.shards]` says of all."""
        return {}

    def _check_recipe(self) -> None:
        """Check that a recipe's own tables agree with the rest. Raises ValueError."""

    def check_audit(self) -> None:
        """Raises ValueError for a plan that no simulation with canaries can audit."""
        if self.federation.shards is None:
            raise ValueError(
                f'[audit] belongs to launch = "ray", and this plan has launch = "{self.federation.launch}": canaries '
                "go into simulated shards alone, never into a real party's. Audit a plan with [federation.shards] of "
                "text that is nobody's secret."
            )
        if self.privacy.insecure_reproducible_noise:
            raise ValueError(
                "[audit] holds what attacks find against a claim, and with insecure_reproducible_noise there is none. "
                "Leave that out."
            )

    def audited_with(self, settings: AuditTable) -> tuple[Self, list[str]]:
        """The plan that an audit simulates, with the same releases at the same price, and what a reader has to know of
        the difference: the same plan, and nothing, where a system does not make its student learn from less.
        """
        return self, []

    def _check_secure_sum(self) -> None:
        """Raises ValueError where no threshold could make a secure sum safe."""
        privacy, parties = self.privacy, len(self.summing)
        if privacy.trust == "secure-sum" and parties + privacy.colluders >= 2 * (parties - privacy.dropouts):
            raise ValueError(
                f"[privacy] of {parties} parties {privacy.dropouts} dropouts and {privacy.colluders} colluders are too "
                "many: more than half of all, the colluders counted twice, have to be there at the end of a secure "
                "sum. Use more parties, or fewer of either: 2 x dropouts + colluders must be less than the number of "
                "parties."
            )

    @property
    def minimum_parties(self) -> int:
        """The number of parties below which the run stops: the plan's figure, or the number that the noise is
        calibrated for.
        """
        return self.federation.minimum_parties or len(self.federation.names) - self.privacy.dropouts

    def on_cluster(self, address: str | None) -> Self:
        """The plan with its parties on the Ray cluster at this address; unchanged without an address.

        Raises `PlanError` for an invalid address, and where parties run elsewhere.
        """
        if address is None:
            return self
        try:
            return self.model_copy(update={"federation": self.federation.on_cluster(address)})
        except ValueError as error:
            raise PlanError(f"--ray-address: {error}") from None

    def document(self, *, places: bool = False) -> str:
        """The plan as canonical JSON, without what does not affect data, privacy or result: the part that is hashed.

        It is sent to every party and published, so of a source it has only the name and not the place (`plan.named`).
        With `places` it has the places as well, for use on this machine only, where two files of one name differ.
        """
        tables: dict[str, Any] = self.model_dump(mode="json")
        federation = tables["federation"]
        tables["federation"] = {
            "parties": list(self.federation.names),
            "minimum_parties": self.minimum_parties,
            "shards": {key: value for key, value in (federation["shards"] or {}).items() if key != "stream"} or None,
        }
        del tables["student"]["publish"]
        if self.audit is None:  # a plan without the table binds parties to what it did before there was one
            del tables["audit"]
        elif not self.audit.shadows:
            del tables["audit"]["shadows"]
        self._document(tables)
        told(self, tables, places=places)
        return json.dumps(tables, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    def divide_again(self, tables: dict[str, Any], factor: float) -> None:
        """Scale the parts of epsilon that the system's own tables in `tables` spend: epsilon becomes `factor` times as
        large.
        """

    def _document(self, tables: dict[str, Any]) -> None:
        """Write into `tables` what the plan hash covers in another form than the file has."""
