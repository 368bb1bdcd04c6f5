"""The party's own file: where it listens, its shard, and the policy that binds every plan."""

import re
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, ValidationError, field_validator, model_validator
from pydantic_core import InitErrorDetails

from party.recipes.registry import find_recipe, recipe_names
from party.shard_table import ShardTable
from protos.console.computing import ComputeKeys
from protos.console.settings import (
    Settings,
    check_settings,
    is_loopback,
    read_settings,
    shaped,
)
from protos.identity.certificates import FINGERPRINT

NAME = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"
PartyName: TypeAlias = Annotated[
    str,
    shaped(NAME, "is no name: use small letters, digits and hyphens, 40 at most, with no hyphen at either end"),
]
LINEAGE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"

SIZE_FACT = "size-to-nearest-1000"


def _fingerprint(text: str) -> str:
    if re.fullmatch(FINGERPRINT, text) is None:
        raise ValueError('this is no fingerprint. It is "SHA256:" and 64 digits or letters from a to f.')
    return text


class PolicyTable(Settings):
    """`[policy]`: the rules that every plan must obey.

    guarantee: false for an account without a cap, which promises nothing: only plans whose releases have no guarantee
    are admitted then, and under any other policy such plans are refused. epsilon, delta: the cap for the life of this
    data, over all runs; None without a guarantee. unit, record, relation: what that cap protects, in the words of
    plans; a plan that protects anything else is refused. recipes: which plans may run; docs/parties.md has what each
    releases and trains. trust: who may see more than sums; docs/parties.md says what holds without it. minimum_parties:
    the smallest number of proven parties. tell: what may be said of the shard: "size-to-nearest-1000", of the declared
    size. declared_size: a public statement of how many records the shard has; no rate, bound or fact is ever taken from
    the true count. simulation: the text is not private (a trial on one machine); only then is insecure noise admitted.
    clear_votes: votes may go to the coordinator without noise, which is then trusted to add it. minimum_noise: noise
    multiplier that every charged release must at least have. maximum_queries: how many queries one plan may ask.
    weights: the parameters of a model may leave. samples: a noisy vector of each text may leave. public_labels: what
    the label column holds is nobody's secret, so that labels may leave as they are. step_seconds: public duration of a
    step of federated training: the reply waits until that long, or a multiple of it, has passed, so that its time tells
    nothing of the secret sample.
    """

    guarantee: bool = True
    epsilon: Annotated[float, Field(gt=0)] | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    unit: Literal["record", "user"] = "record"
    record: Literal["document", "sentence", "pair"] = "document"
    relation: Literal["add-or-remove"] = "add-or-remove"
    recipes: Annotated[list[str], Field(min_length=1)]
    trust: Literal["secure-sum", "trusted-aggregator"] | None = None
    minimum_parties: Annotated[int, Field(ge=1)] = 1
    tell: list[Literal["size-to-nearest-1000"]] = Field(default_factory=list)
    declared_size: Annotated[int, Field(ge=1)] | None = None
    simulation: bool = False
    clear_votes: bool = False
    minimum_noise: Annotated[float, Field(gt=0)] | None = None
    maximum_queries: Annotated[int, Field(ge=1)] | None = None
    weights: bool = False
    samples: bool = False
    public_labels: bool = False
    step_seconds: Annotated[float, Field(gt=0, le=3600)] | None = None

    @model_validator(mode="after")
    def _a_cap_belongs_to_a_guarantee(self) -> "PolicyTable":
        stated = {"epsilon": self.epsilon, "delta": self.delta}
        if self.guarantee and (missing := [key for key, value in stated.items() if value is None]):
            raise ValidationError.from_exception_data(
                "[policy]", [InitErrorDetails(type="missing", loc=(key,), input=stated) for key in missing]
            )
        for key, value in stated.items():
            if not self.guarantee and value is not None:
                raise ValueError(
                    f"[policy] {key} is part of a cap, and guarantee = false says that this party's account has none. "
                    "Leave one of them out."
                )
        return self

    @field_validator("recipes")
    @classmethod
    def _recipes_are_known(cls, recipes: list[str]) -> list[str]:
        odd = next((name for name in recipes if find_recipe(name) is None), None)
        if odd is not None:
            raise ValueError(f'there is no recipe "{odd}". Known here: {", ".join(recipe_names())}.')
        return recipes

    @model_validator(mode="after")
    def _size_is_declared(self) -> "PolicyTable":
        if SIZE_FACT in self.tell and self.declared_size is None:
            raise ValueError(
                f'[policy] tell = ["{SIZE_FACT}"] needs declared_size: a party tells the size it declares, '
                "never one it counted."
            )
        return self


Fingerprint = Annotated[str, AfterValidator(_fingerprint)]


class IdentityTable(Settings):
    """`[identity]`: the files with this party's keys and certificates, relative to the party file.

    certificate: what the federation issued. key: the file of `party enroll`, mode 0600. authority: the fingerprint of
    the federation's authority, learned out of band; nothing is served without it, but `party enroll` comes before it is
    known. revoked: the authority's list of revoked certificates.
    """

    certificate: Annotated[str, Field(min_length=1)]
    key: Annotated[str, Field(min_length=1)]
    authority: Fingerprint | None = None
    revoked: Annotated[str, Field(min_length=1)] | None = None


class MetricsTable(Settings):
    """`[metrics]`: where Prometheus reads this party's figures; only on this machine unless `listen` says otherwise.

    They cover budget, work and traffic. Anyone who reaches the address may read them. listen: host and port.
    """

    listen: str = "127.0.0.1:9464"

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, listen: str) -> str:
        split_address(listen)
        return listen


class TracesTable(Settings):
    """`[traces]`: where this party's spans go: the URL of an OpenTelemetry collector, or a file of JSON lines.

    The file is relative to the party file. Like the metrics, the spans are for this party alone: what it did when for
    which run, and how long it took. to: that URL or file.
    """

    to: Annotated[str, Field(min_length=1)]


class LimitsTable(Settings):
    """`[limits]`: how much work a coordinator may cause on this machine.

    runs: open at a time. calls: concurrent calls; calls_per_second: also the number at once; beyond either a call is
    refused, and may be retried. queries_per_second: rows or queries answered, over all runs; more have to wait.
    block_mib: of one answered block. memory_mib: of one training, and of the bounded sums of one run. artefact_mib: of
    one provided file, for example a model's weights; run_artefacts_mib: of all files that one run stores here.
    """

    runs: Annotated[int, Field(ge=1)] = 16
    calls: Annotated[int, Field(ge=4)] = 64
    calls_per_second: Annotated[float, Field(ge=1)] = 500.0
    queries_per_second: Annotated[float, Field(gt=0)] | None = None
    block_mib: Annotated[int, Field(ge=1, le=1024)] = 64
    memory_mib: Annotated[int, Field(ge=256)] = 8192
    artefact_mib: Annotated[int, Field(ge=1)] = 2048
    run_artefacts_mib: Annotated[int, Field(ge=1)] = 8192


class ComputeTable(ComputeKeys):
    """`[compute]`: what this party trains text models with. It is the party's own choice: no plan can ask for another.

    Everything else runs on the processor, and so does what `[cluster]` divides among machines.
    """


class SiteTable(Settings):
    """`[cluster]`: the Ray cluster of this party's own site, on whose machines its teachers are trained.

    address: "auto", on one of its machines, or "HOST:PORT" of its head. tasks: into how many parts the teachers are
    divided, each with one processor. The party's folder and its shard must lie on storage that all the machines share:
    nothing of either is sent through Ray.
    """

    address: Annotated[
        str,
        shaped(r"^(auto|[^\s:/]+:\d{1,5})$", 'is no address of a Ray cluster: give "auto", or its head as "HOST:PORT"'),
    ] = "auto"
    tasks: Annotated[int, Field(ge=1, le=10_000)] = 8


class PartyConfig(Settings):
    """A whole party file; `read_config` reads one.

    name: what plans call this party. listen: host and port; port 0 takes any free one. connect: host and port of the
    coordinator's gate, which the party dials in place of listening. folder: for the party's files (ledger, runs),
    relative to the party file. account: the ledger's lineage; it survives renaming the party and adding records.
    drain_seconds: how long a training may continue when the node is told to end. metrics, traces: none without the
    table. plaintext: no TLS and no authentication, for a trial on this machine. identity: this party's, for mutual TLS.
    peers: by name, the fingerprints of parties' signing keys, learned out of band. limits: how much work a coordinator
    may cause. compute: the device, precision and threads of trainings. cluster: machines of this site on which teachers
    are trained; without the table only this one.
    """

    name: PartyName
    listen: str = "127.0.0.1:7443"
    connect: str | None = None
    plaintext: bool = False
    folder: str = ""
    account: (
        Annotated[
            str,
            shaped(LINEAGE, "is no account's name: use letters, digits, dots, _ and -, 64 at most, the first no sign"),
        ]
        | None
    ) = None
    drain_seconds: Annotated[float, Field(ge=0)] = 10.0
    metrics: MetricsTable | None = None
    traces: TracesTable | None = None
    limits: LimitsTable = LimitsTable()
    compute: ComputeTable = ComputeTable()
    cluster: SiteTable | None = None
    shard: ShardTable
    policy: PolicyTable
    identity: IdentityTable | None = None
    peers: dict[PartyName, Fingerprint] = Field(default_factory=dict)

    @field_validator("listen")
    @classmethod
    def _host_and_port(cls, listen: str) -> str:
        split_address(listen)
        return listen

    @field_validator("connect")
    @classmethod
    def _a_gate(cls, connect: str | None) -> str | None:
        if connect is not None and split_address(connect)[1] == 0:
            raise ValueError("a port is 1 to 65535.")
        return connect

    @model_validator(mode="after")
    def _plaintext_stays_here(self) -> "PartyConfig":
        if not self.plaintext:
            return self
        if self.identity is not None:
            raise ValueError("plaintext = true and [identity] contradict each other. Take one of them out.")
        if self.connect is not None:
            raise ValueError(
                "plaintext = true and connect contradict each other: only a certificate shows a coordinator who dials. "
                "Take one of them out."
            )
        if not is_loopback(split_address(self.listen)[0]):
            raise ValueError(
                f'plaintext = true, and listen = "{self.listen}" can be reached from other machines. Use '
                f'"127.0.0.1:{split_address(self.listen)[1]}", or an [identity] in place of plaintext (`party enroll`).'
            )
        if not self.policy.simulation:
            raise ValueError(
                "plaintext = true is for a trial with text that is nobody's secret: say so with simulation = true in "
                "[policy], or use an [identity] in place of plaintext (`party enroll`)."
            )
        return self

    @model_validator(mode="after")
    def _users_have_a_column(self) -> "PartyConfig":
        if self.policy.unit == "user" and self.shard.user is None:
            raise ValueError('[policy] unit = "user" needs [shard] user, the column that says whose a record is.')
        return self

    @property
    def lineage(self) -> str:
        """The ledger's account name."""
        return self.account or self.name

    def home(self, base: Path) -> Path:
        """The folder of all this party's files. `base` is the folder of the party file."""
        return (base / (self.folder or f"{self.name}.party")).absolute()


def split_address(listen: str) -> tuple[str, int]:
    """Host and port of `127.0.0.1:7443` or `[::1]:7443`. Raises ValueError with the expected form."""
    host, colon, port = listen.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
    if not colon or not bare or (":" in bare) != host.startswith("[") or not port.isascii() or not port.isdigit():
        raise ValueError('this should be a host and a port, for example "127.0.0.1:7443".')
    if int(port) > 65535:
        raise ValueError(f"{port} is not a port. Use 1 to 65535, or 0 for any free one.")
    return bare, int(port)


def read_config(path: Path) -> PartyConfig:
    """Read and check a party file. Raises `SettingsError` naming the file, the key and a value that would do."""
    return read_settings(path, PartyConfig)


def check_config(tables: dict[str, object], name: str) -> PartyConfig:
    """Check the tables of a party file that a launcher made. Raises `SettingsError`."""
    return check_settings(tables, PartyConfig, name)
