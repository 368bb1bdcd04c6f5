"""`[federation]` of a plan: the parties, how their nodes are started, and how long they are waited for."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from coordinator.plan.cluster import ClusterTable, head_address
from coordinator.plan.public_text import Delimiter, Encoding, Sheet
from coordinator.plan.table import Table
from protos.console.settings import Settings, is_loopback, shaped

NAME = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"

Name = Annotated[
    str, shaped(NAME, "is no name: use small letters, digits and hyphens, 40 at most, with no hyphen at either end")
]

Address = Annotated[
    str,
    shaped(
        r"^[^\s:]+:\d{1,5}$|^\[[0-9a-fA-F:]+\]:\d{1,5}$",
        'is no address: give a host and a port, "party.hospital.example:7443", or "[::1]:7443"',
    ),
]

Gate = Annotated[
    str,
    shaped(
        r"^[^\s:]+:\d{1,5}$|^\[[0-9a-fA-F:]+\]:\d{1,5}$|^unix:/[^\x00]+$",
        'is no place to listen at: give a host and a port, "0.0.0.0:7444", or the gate of `coordinator serve`, '
        '"unix:/its/folder"',
    ),
]


class PartyEntry(Settings):
    """One party that runs elsewhere: at an address, or at none because it dials the coordinator (`dials = true`).

    name: as in the party's own file. address: host and port of its node. dials: whether it dials the gate, and has no
    address.
    """

    name: Name
    address: Address | None = None
    dials: bool = False

    @model_validator(mode="after")
    def _has_one_way(self) -> "PartyEntry":
        if self.dials == (self.address is not None):
            raise ValueError(
                f"[federation] parties: {self.name} needs either an address, where its node listens, or dials = true, "
                "where it dials the coordinator (`party serve --connect`)."
            )
        return self


class SplitTable(Settings):
    """How one source is divided among parties on one machine: by hash, by a column, or skewed by a label.

    of: the number of parts; each party has one, and any others are unused. By default as many as parties. by: "hash", a
    column whose values stay together, or "dirichlet". parties: how many. label, alpha: of "dirichlet": the column that
    is shared out unevenly, and how evenly (the smaller, the less).
    """

    by: str = "hash"
    parties: Annotated[int, Field(ge=1, le=1000)]
    of: Annotated[int, Field(ge=1, le=1000)] | None = None
    label: str | None = None
    alpha: Annotated[float, Field(gt=0)] | None = None

    @model_validator(mode="after")
    def _skew_is_whole(self) -> "SplitTable":
        if self.of is not None and self.of < self.parties:
            raise ValueError(f"split: of = {self.of} parts are fewer than {self.parties} parties. Use as many or more.")
        if self.by == "dirichlet" and (self.label is None or self.alpha is None):
            raise ValueError('split = { by = "dirichlet" } needs a label column and an alpha, for example alpha = 0.5.')
        if self.by != "dirichlet" and (self.label is not None or self.alpha is not None):
            raise ValueError('split: label and alpha belong to by = "dirichlet".')
        return self


class ShardsTable(Table):
    """`[federation.shards]`: the one source that `launch = "ray"` divides among the parties it starts.

    source: as in `[shard]` of a party file. text, second, id, user, label: its columns. stream: of a data hub alone:
    whether rows are streamed and not kept. encoding, delimiter: of local files, by default UTF-8, and a comma in .csv.
    sheet: of an Excel workbook, where several have rows. split: how it is divided.
    """

    PLACES: ClassVar[tuple[str, ...]] = ("source",)
    LATER: ClassVar[tuple[str, ...]] = ("encoding", "delimiter", "sheet")

    source: Annotated[str, Field(min_length=1)]
    text: str = "text"
    second: str | None = None
    id: str | None = None
    user: str | None = None
    label: str | None = None
    stream: bool = False
    encoding: Encoding | None = None
    delimiter: Delimiter | None = None
    sheet: Sheet | None = None
    split: SplitTable


class DropTable(Settings):
    """`[federation] stragglers = { drop_after = SECONDS }`: when a party that makes no progress is given up.

    drop_after: seconds without a block, an answer to a call, or a rise in a training's percentage. train_within:
    seconds for one whole training, also one that reports no percentage; by default 100 times drop_after.
    """

    drop_after: Annotated[float, Field(ge=2)]
    train_within: Annotated[float, Field(ge=2)] | None = None


class FederationTable(Settings):
    """`[federation]`: the parties, how their nodes are started, and how long they are waited for.

    launch: "connect", to parties that run elsewhere, or "ray", which starts them from one source. minimum_parties:
    below which the run stops; by default all but `[privacy] dropouts`. parties: for "connect", who they are. shards:
    for "ray", the source that is divided. identity: the folder that `coordinator provision` made, for mutual TLS and
    for the signature on what is published; without it, parties are asked in plain text, and only on this machine.
    listen: host and port of the gate at which parties with `dials = true` come in, while a run or a check goes on; or
    "unix:FOLDER", the gate that `coordinator serve` holds open on this machine. deadline_seconds: seconds of silence
    after which a node is asked whether it serves. retry_seconds: for how long a lost party is asked again before the
    run goes on without it, or stops and can be resumed; 0 asks once. stragglers: "wait" for a party as long as its node
    serves, or { drop_after = SECONDS } without progress. cluster: the Ray cluster on which `launch = "ray"` starts the
    parties, instead of a Ray of its own. parties_per_actor: the most parties of "ray" that share a process; by default
    as few as cores and memory allow.
    """

    launch: str
    identity: str | None = None
    listen: Gate | None = None
    minimum_parties: Annotated[int, Field(ge=1)] | None = None
    parties: list[PartyEntry] = Field(default_factory=list)
    shards: ShardsTable | None = None
    cluster: ClusterTable | None = None
    parties_per_actor: Annotated[int, Field(ge=1, le=1000)] | None = None
    deadline_seconds: Annotated[float, Field(gt=0)] = 60.0
    retry_seconds: Annotated[float, Field(ge=0)] = 300.0
    stragglers: Literal["wait"] | DropTable = "wait"

    @field_validator("stragglers", mode="before")
    @classmethod
    def _wait_or_drop(cls, given: Any) -> Any:
        if given == "wait" or isinstance(given, DropTable):
            return given
        known = isinstance(given, dict) and "drop_after" in given and given.keys() <= DropTable.model_fields.keys()
        if known and all(type(each) in (int, float) and each >= 2 for each in given.values()):
            return given
        raise ValueError(
            'a party that is slow is waited for, or dropped. Use stragglers = "wait", or stragglers = '
            "{ drop_after = 600 }: at least 2 seconds, and more than a training takes for one percent. train_within = "
            "7200 beside it bounds one training as a whole."
        )

    @model_validator(mode="after")
    def _parties_come_from_one_place(self) -> "FederationTable":
        if self.launch == "connect":
            if self.shards is not None:
                raise ValueError(
                    '[federation.shards] belongs to launch = "ray". With "connect" each party has its own shard.'
                )
            if self.cluster is not None:
                raise ValueError('[federation.cluster] belongs to launch = "ray": with "connect" parties run already.')
            if self.parties_per_actor is not None:
                raise ValueError(
                    '[federation] parties_per_actor belongs to launch = "ray": with "connect" parties run already.'
                )
            if not self.parties:
                raise ValueError(
                    "[federation] parties is empty: a run needs at least one party. "
                    'Add { name = "north", address = "north.example:7443" }.'
                )
            self._check_plain()
            self._check_gate()
        else:
            if self.listen is not None:
                raise ValueError(f'[federation] listen belongs to launch = "connect", not to "{self.launch}".')
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
        if self.cluster is not None:
            self.cluster.check(self.names)
        if self.minimum_parties is not None and self.minimum_parties > len(self.names):
            raise ValueError(
                f"[federation] minimum_parties = {self.minimum_parties}, but the plan has {len(self.names)} parties."
            )
        return self

    def _check_plain(self) -> None:
        """Raises ValueError where plain text would leave this machine."""
        away = [
            party
            for party in self.parties
            if party.address is not None and not is_loopback(party.address.rpartition(":")[0])
        ]
        if self.identity is None and away:
            raise ValueError(
                f"[federation] identity is missing: {away[0].name} at {away[0].address} is on another machine, and "
                'without it parties are asked in plain text. Set identity = "federation", the folder that `coordinator '
                "provision federation` makes."
            )

    def _check_gate(self) -> None:
        """Raises ValueError unless there is a gate exactly where parties dial, under the federation's certificates."""
        dials = [party.name for party in self.parties if party.dials]
        if dials and self.listen is None:
            raise ValueError(
                f"[federation] listen is missing: {dials[0]} dials the coordinator, which needs a port for that. Add "
                'listen = "0.0.0.0:7444".'
            )
        if self.listen is not None and not dials:
            raise ValueError(
                "[federation] listen is for parties that dial, and none does. Take it out, or give one dials = true."
            )
        if dials and self.identity is None:
            raise ValueError(
                f"[federation] identity is missing: {dials[0]} dials, and only a certificate can tell who does. Set "
                'identity = "federation", the folder that `coordinator provision federation` makes.'
            )

    def on_cluster(self, address: str) -> "FederationTable":
        """The same federation on the Ray cluster at an address. Raises `ValueError` where it cannot run on a
        cluster.
        """
        if self.shards is None:
            raise ValueError(f'a Ray cluster goes with launch = "ray"; with "{self.launch}" parties run already.')
        table = self.cluster or ClusterTable()
        return self.model_copy(update={"cluster": table.model_copy(update={"address": head_address(address)})})

    @property
    def drop_after(self) -> float | None:
        """Seconds without progress after which a party is given up; None waits."""
        return self.stragglers.drop_after if isinstance(self.stragglers, DropTable) else None

    @property
    def train_within(self) -> float | None:
        """Seconds that one training may take as a whole; None for the default of `drop_after`."""
        return self.stragglers.train_within if isinstance(self.stragglers, DropTable) else None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parties, sorted."""
        if self.shards is not None:
            width = len(str(self.shards.split.parties))
            return tuple(f"party-{number:0{width}}" for number in range(1, self.shards.split.parties + 1))
        return tuple(sorted(party.name for party in self.parties))
