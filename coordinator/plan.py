"""The plan of a run: everything that decides data, privacy and result, checked before any party is contacted."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from coordinator.errors import PlanError
from protos.settings import Settings, SettingsError, is_loopback, read_settings

LARGEST_DELTA = 1e-3
NAME = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"

Signal = Literal["votes", "hidden", "counts", "moments"]
Layer = Literal["centre", "context"]
Name = Annotated[str, Field(pattern=NAME)]


class RunTable(Settings):
    """`[run]`: what this run is called and does. The seed governs model starts and public shuffles, never noise."""

    name: Name
    recipe: Literal["dped"]
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class PrivacyTable(Settings):
    """`[privacy]`: the promise, under add-or-remove of one unit at one party.

    declared_size: units of all parties together, a public figure, about right; only `coordinator forecast` uses it.
    trust: "secure-sum", under which the coordinator learns noisy sums alone, or "trusted-aggregator". dropouts: parties
    that may be lost without losing the noise. colluders: parties that may pool what they know with the coordinator.
    attempts: how often a secure sum may be made, each paid for, where more than `dropouts` are lost amid one.
    noise: what each party draws its part of the noise from.
    """

    epsilon: Annotated[float, Field(gt=0, le=100)]
    delta: float
    unit: Literal["record", "user"] = "record"
    record: Literal["document", "sentence", "pair"] = "document"
    trust: Literal["trusted-aggregator", "secure-sum"] = "trusted-aggregator"
    dropouts: Annotated[int, Field(ge=0)] = 0
    colluders: Annotated[int, Field(ge=0)] = 0
    attempts: Annotated[int, Field(ge=1, le=10)] = 1
    noise: Literal["gaussian", "skellam", "discrete-gaussian"] = "gaussian"
    noise_multiplier: Annotated[float, Field(gt=0)] | None = None
    declared_size: Annotated[int, Field(ge=1)] | None = None
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

    @model_validator(mode="after")
    def _some_settings_need_the_secure_sum(self) -> "PrivacyTable":
        if self.trust == "secure-sum":
            return self
        if self.colluders:
            raise ValueError(
                '[privacy] colluders has a meaning under trust = "secure-sum" alone. Leave it out, or set 0.'
            )
        if self.attempts > 1:
            raise ValueError(
                '[privacy] attempts has a meaning under trust = "secure-sum" alone. Leave it out, or set 1.'
            )
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


class DropTable(Settings):
    """`[federation] stragglers = { drop_after = SECONDS }`: when a party that shows no sign of its work is given up."""

    drop_after: Annotated[float, Field(ge=2)]


class FederationTable(Settings):
    """`[federation]`: who takes part, who starts their nodes, and how long they are waited for.

    identity: the folder that `coordinator provision` made, for mutual TLS and the signature on what is published;
    without it, parties are asked in plain text, and on this machine alone.
    deadline_seconds: of silence, after which a node is asked whether it serves. retry_seconds: how long a party may be
    away, asked again and again, before the run goes on without it or stops, to be resumed; 0 asks once. stragglers:
    "wait" for a party as long as its node serves, or { drop_after = SECONDS } without a block or a sign of training.
    """

    launch: str
    identity: str | None = None
    minimum_parties: Annotated[int, Field(ge=1)] | None = None
    parties: list[PartyEntry] = Field(default_factory=list)
    shards: ShardsTable | None = None
    deadline_seconds: Annotated[float, Field(gt=0)] = 60.0
    retry_seconds: Annotated[float, Field(ge=0)] = 300.0
    stragglers: Literal["wait"] | DropTable = "wait"

    @field_validator("stragglers", mode="before")
    @classmethod
    def _wait_or_drop(cls, given: Any) -> Any:
        seconds = given.get("drop_after") if isinstance(given, dict) and len(given) == 1 else None
        if given == "wait" or isinstance(given, DropTable):
            return given
        if isinstance(seconds, int | float) and not isinstance(seconds, bool) and seconds >= 2:
            return given
        raise ValueError(
            'a party that is slow is waited for, or dropped. Use stragglers = "wait", or stragglers = '
            "{ drop_after = 600 }: at least 2 seconds, for a party that trains gives a sign every second."
        )

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
            self._check_plain()
        else:
            if self.identity is not None:
                raise ValueError(
                    f'[federation] identity belongs to launch = "connect": what "{self.launch}" starts is its own.'
                )
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

    def _check_plain(self) -> None:
        """Raises ValueError where plain text would leave this machine."""
        away = [party for party in self.parties if not is_loopback(party.address.rpartition(":")[0])]
        if self.identity is None and away:
            raise ValueError(
                f"[federation] identity is missing: {away[0].name} at {away[0].address} is on another machine, and "
                'without it parties are asked in plain text. Set identity = "federation", the folder that `coordinator '
                "provision federation` makes."
            )

    @property
    def drop_after(self) -> float | None:
        """Seconds without a sign of its work after which a party is given up; None waits."""
        return self.stragglers.drop_after if isinstance(self.stragglers, DropTable) else None

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


class BudgetTable(Settings):
    """`[dped.budget]`: how the signals that are in use divide the budget: parts of 1 / noise^2, in any unit."""

    votes: Annotated[float, Field(gt=0)] = 1.0
    hidden: Annotated[float, Field(gt=0)] = 1.0
    counts: Annotated[float, Field(gt=0)] = 1.0
    moments: Annotated[float, Field(gt=0)] = 1.0


class PrivateTrainingTable(Settings):
    """`[dped.private_training]`: teachers learn under DP-SGD, which takes the whole budget; their answers are free.

    units_per_teacher: a declared, public figure; it fixes the sampling rate, never the shard's own count.
    clip: L2 norm of one unit's gradient. batch: expected units a step.
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


class DpedTable(Settings):
    """`[dped]`: the recipe's own settings.

    clip: L2 norm to which one unit's (word, context) counts are clipped; 1 at most where a pair is the unit.
    window: context words on each side.
    levels: grid units in the clip norm. block_rows: rows of a released matrix that travel at once.

    "moments" are word frequencies and second moments along `dimension` public directions: what "counts" say cell by
    cell, in far fewer numbers. moments_clip: L2 norm of one unit's; by default what public text suggests.

    Of the signals "votes" and "hidden":
    queries, classes: words that are asked about and words a vote may name: so many from the vocabulary's first, or a
    list. layers: whose vectors of a word are its hidden states. hidden_clip: L2 norm of one layer's vector.
    reference: a public skip-gram (safetensors) that teachers start from; by default one of the vocabulary's text.
    threshold: noised votes that a label needs. noise_at: "parties", each of which adds its share to the whole
    histogram, or "coordinator", which is trusted with the votes and tests the threshold under noise of its own.
    below_threshold: what becomes of the others there. answered: the share of queries expected to pass it.
    loss: "paper" (eq. 3) or "likelihood", which weighs the same signals by their noise.
    """

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


class StudentTable(Settings):
    """`[student]`: what is published, where, and what its model card says."""

    publish: str = "published"
    licence: str = "apache-2.0"
    language: str = "en"


class ProbeTable(SourceTable):
    """`[[evaluation.probes]]`: a public labelled task for which the embeddings are the features, measured by `compare`.

    source trains a linear classifier on at most `rows` rows, `test` measures it. label: the column of labels.
    """

    name: Name
    test: Annotated[str, Field(min_length=1)]
    label: str = "label"
    rows: Annotated[int, Field(ge=10)] = 5000


class EvaluationTable(SourceTable):
    """`[evaluation]`: public held-out text. With a label column the embeddings are also probed for sentiment."""

    probes: list[ProbeTable] = Field(default_factory=list)


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
        self._check_secure_sum()
        if self.privacy.noise != "gaussian" and (
            self.dped.noise_at == "coordinator" or self.dped.private_training is not None
        ):
            raise ValueError(
                f'[privacy] noise = "{self.privacy.noise}" is of noise that parties add by shares. Private training '
                'and noise_at = "coordinator" draw theirs at one place: leave it out.'
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
        self._check_teachers()
        return self

    def _check_secure_sum(self) -> None:
        """Raises ValueError where no threshold could keep a secure sum safe, or votes would travel in clear."""
        privacy, parties = self.privacy, len(self.federation.names)
        if privacy.trust != "secure-sum":
            return
        if self.dped.noise_at == "coordinator":
            raise ValueError(
                '[dped] noise_at = "coordinator" shows it every party\'s votes, and [privacy] trust = "secure-sum" '
                'shows it sums alone. Use noise_at = "parties".'
            )
        if parties + privacy.colluders >= 2 * (parties - privacy.dropouts):
            raise ValueError(
                f"[privacy] of {parties} parties {privacy.dropouts} dropouts and {privacy.colluders} colluders are too "
                "many: more than half of all, the colluders counted twice, have to be there at the end of a secure "
                "sum. Use more parties, or fewer of either: 2 x dropouts + colluders must be less than the number of "
                "parties."
            )

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
        """How many different words teachers are asked about."""
        asked = self.dped.queries
        return self.vocabulary.size if asked is None else asked if isinstance(asked, int) else len(set(asked))

    @property
    def classes(self) -> int:
        """How many words a vote may name."""
        named = self.dped.classes
        return self.vocabulary.size if named is None else named if isinstance(named, int) else len(named)

    @property
    def minimum_parties(self) -> int:
        """Below how many parties the run stops: the plan's figure, or as many as the noise is calibrated for."""
        return self.federation.minimum_parties or len(self.federation.names) - self.privacy.dropouts

    @property
    def block_rows(self) -> int:
        """Rows of the count matrix in one block: the plan's figure, or a sixteenth of all, at most 2 MiB a block."""
        return self.rows_at_once(self.vocabulary.size, self.vocabulary.size)

    def rows_at_once(self, rows: int, columns: int) -> int:
        """Rows of a released matrix [rows, columns] that travel in one block."""
        return self.dped.block_rows or max(1, min(-(-rows // 16), 2**19 // columns))

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
