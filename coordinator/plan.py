"""The plan of a run: everything that decides data, privacy and result, checked before any party is contacted."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from coordinator.errors import PlanError
from protos.settings import Settings, SettingsError, read_settings

LARGEST_DELTA = 1e-3
NAME = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"

Signal = Literal["counts"]
Name = Annotated[str, Field(pattern=NAME)]


class RunTable(Settings):
    """`[run]`: what this run is called and does. The seed governs model starts and public shuffles, never noise."""

    name: Name
    recipe: Literal["dped"]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class PrivacyTable(Settings):
    """`[privacy]`: the promise, under add-or-remove of one unit at one party."""

    epsilon: Annotated[float, Field(gt=0, le=100)]
    delta: float
    unit: Literal["record", "user"] = "record"
    record: Literal["document", "sentence", "pair"] = "document"
    trust: Literal["trusted-aggregator", "secure-sum"] = "trusted-aggregator"
    dropouts: Annotated[int, Field(ge=0)] = 0
    colluders: Annotated[int, Field(ge=0)] = 0
    noise_multiplier: Annotated[float, Field(gt=0)] | None = None
    insecure_reproducible_noise: bool = False

    @field_validator("delta")
    @classmethod
    def _delta_is_small(cls, delta: float) -> float:
        if delta <= 0:
            raise ValueError("delta must be above 0, for example 1e-6.")
        if delta > LARGEST_DELTA:
            raise ValueError(
                f"this is too large: a mechanism with it may publish one record in {1 / delta:.0f} outright. "
                f"Use at most {LARGEST_DELTA:g}, better well below 1 / number of records."
            )
        return delta

    @field_validator("trust")
    @classmethod
    def _secure_sum_is_not_there(cls, trust: str) -> str:
        if trust == "secure-sum":
            raise ValueError('the secure sum is not there yet. Use "trusted-aggregator" and trust the coordinator.')
        return trust

    @model_validator(mode="after")
    def _colluders_need_the_secure_sum(self) -> "PrivacyTable":
        if self.colluders:
            raise ValueError("[privacy] colluders has a meaning under the secure sum alone. Leave it out, or set 0.")
        return self


class PartyEntry(Settings):
    """One party that runs elsewhere."""

    name: Name
    address: Annotated[str, Field(pattern=r"^[^\s:]+:\d{1,5}$|^\[[0-9a-fA-F:]+\]:\d{1,5}$")]


class SplitTable(Settings):
    """How one source is divided among parties on one machine: by hash, by a column, or skewed by a label."""

    by: str = "hash"
    parties: Annotated[int, Field(ge=1, le=1000)]
    label: str | None = None
    alpha: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _skew_is_whole(self) -> "SplitTable":
        if self.by == "dirichlet" and (self.label is None or self.alpha is None):
            raise ValueError('split = { by = "dirichlet" } needs a label column and an alpha, for example alpha = 0.5.')
        if self.by != "dirichlet" and (self.label is not None or self.alpha is not None):
            raise ValueError('split: label and alpha belong to by = "dirichlet".')
        return self


class SourceTable(Settings):
    """Where text comes from: a built-in source, a local file, pattern or folder, or a name on a data hub."""

    source: Annotated[str, Field(min_length=1)]
    text: str = "text"
    id: str | None = None
    label: str | None = None
    split: str = "train"
    stream: bool = False


class ShardsTable(Settings):
    """`[federation.shards]`: the one source that `launch = "ray"` divides among parties it starts itself."""

    source: Annotated[str, Field(min_length=1)]
    text: str = "text"
    id: str | None = None
    user: str | None = None
    stream: bool = False
    split: SplitTable


class FederationTable(Settings):
    """`[federation]`: who takes part and who starts their nodes."""

    launch: str
    minimum_parties: Annotated[int, Field(ge=1)] | None = None
    parties: list[PartyEntry] = Field(default_factory=list)
    shards: ShardsTable | None = None
    deadline_seconds: Annotated[float, Field(gt=0)] = 60.0

    @model_validator(mode="after")
    def _parties_come_from_one_place(self) -> "FederationTable":
        if self.launch == "connect":
            if self.shards is not None:
                raise ValueError(
                    '[federation.shards] belongs to launch = "ray". With "connect" each party has its own shard.'
                )
            if not self.parties:
                raise ValueError(
                    "[federation] parties is empty: a run needs at least one party. "
                    'Add { name = "north", address = "north.example:7443" }.'
                )
        else:
            if self.parties:
                raise ValueError(f'[federation] parties belongs to launch = "connect", not to "{self.launch}".')
            if self.shards is None:
                raise ValueError(
                    f'[federation.shards] is missing: launch = "{self.launch}" needs a source and a split.'
                )
        names = [party.name for party in self.parties]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f'[federation] parties names "{twice[0]}" twice. Every party needs a name of its own.')
        if self.minimum_parties is not None and self.minimum_parties > len(self.names):
            raise ValueError(
                f"[federation] minimum_parties = {self.minimum_parties}, but the plan has {len(self.names)} parties."
            )
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parties, sorted."""
        if self.shards is not None:
            width = len(str(self.shards.split.parties))
            return tuple(f"party-{number:0{width}}" for number in range(1, self.shards.split.parties + 1))
        return tuple(sorted(party.name for party in self.parties))


class VocabularyTable(SourceTable):
    """`[vocabulary]`: the words, counted from public text; a public, hashed artefact."""

    size: Annotated[int, Field(ge=2, le=100_000)] = 1000


class DpedTable(Settings):
    """`[dped]`: the recipe's own settings.

    clip: L2 norm to which one unit's (word, context) counts are clipped; 1 at most where a pair is the unit.
    window: context words on each side.
    levels: grid units in the clip norm. block_rows: rows of the count matrix that travel at once.
    """

    signals: list[Signal] = Field(default_factory=lambda: list[Signal](["counts"]))
    dimension: Annotated[int, Field(ge=2, le=4096)] = 100
    window: Annotated[int, Field(ge=1, le=50)] = 5
    clip: Annotated[float, Field(gt=0)] = 10.0
    levels: Annotated[int, Field(ge=2, le=2**20)] = 320
    block_rows: Annotated[int, Field(ge=1)] | None = None

    @field_validator("signals")
    @classmethod
    def _some_signal(cls, signals: list[str]) -> list[str]:
        if not signals:
            raise ValueError('a recipe needs a signal. Use ["counts"].')
        return signals


class StudentTable(Settings):
    """`[student]`: what is published, where, and what its model card says."""

    publish: str = "published"
    licence: str = "apache-2.0"
    language: str = "en"


class EvaluationTable(SourceTable):
    """`[evaluation]`: public held-out text. With a label column the embeddings are also probed for sentiment."""


class Plan(Settings):
    """A whole plan. `read_plan` is how to get one."""

    run: RunTable
    privacy: PrivacyTable
    federation: FederationTable
    vocabulary: VocabularyTable
    dped: DpedTable = DpedTable()
    student: StudentTable = StudentTable()
    evaluation: EvaluationTable | None = None

    @model_validator(mode="after")
    def _tables_agree(self) -> "Plan":
        parties, dropouts = len(self.federation.names), self.privacy.dropouts
        if dropouts >= parties:
            raise ValueError(
                f"[privacy] dropouts = {dropouts} leaves nobody of {parties} parties. Use at most {parties - 1}."
            )
        fewest = self.federation.minimum_parties
        if fewest is not None and fewest < parties - dropouts:
            raise ValueError(
                f"[federation] minimum_parties = {fewest}, but with [privacy] dropouts = {dropouts} the noise of "
                f"{parties - dropouts} of {parties} parties is needed. Set dropouts = {parties - fewest}, which makes "
                f"each party's share of the noise larger, or minimum_parties = {parties - dropouts}."
            )
        shards = self.federation.shards
        for name, table in (("vocabulary", self.vocabulary), ("evaluation", self.evaluation)):
            if shards is not None and table is not None and table.source == shards.source:
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
        return self

    @property
    def minimum_parties(self) -> int:
        """Below how many parties the run stops: the plan's figure, or as many as the noise is calibrated for."""
        return self.federation.minimum_parties or len(self.federation.names) - self.privacy.dropouts

    @property
    def block_rows(self) -> int:
        """Rows of the count matrix in one block: the plan's figure, or a sixteenth of all, at most 2 MiB a block."""
        size = self.vocabulary.size
        return self.dped.block_rows or max(1, min(-(-size // 16), 2**19 // size))

    def document(self) -> str:
        """The plan as canonical JSON, less what does not affect data, privacy or result: the part that is hashed."""
        tables: dict[str, Any] = self.model_dump(mode="json")
        federation = tables["federation"]
        tables["federation"] = {
            "parties": list(self.federation.names),
            "minimum_parties": self.minimum_parties,
            "shards": {key: value for key, value in (federation["shards"] or {}).items() if key != "stream"} or None,
        }
        del tables["student"]["publish"]
        tables["dped"]["block_rows"] = self.block_rows
        return json.dumps(tables, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def read_plan(path: Path) -> Plan:
    """Read and check a plan file. Raises `PlanError` naming the file, the key and what would be right."""
    try:
        return read_settings(path, Plan)
    except SettingsError as error:
        raise PlanError(str(error)) from None
