"""`coordinator.toml`: what a coordinator that stays up keeps, whom it asks, and who may submit runs to it."""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from coordinator.errors import PlanError
from coordinator.plan.federation import Address, Name, PartyEntry
from coordinator.transport.dialled.standing import check_standing_folder
from protos.console.mistakes import SettingsError
from protos.console.settings import Settings, is_loopback, read_settings, shaped
from protos.identity.certificates import FINGERPRINT

KEPT: Final = "kept"
"""The folder, beside the file, that holds everything by default."""

Submitting = Literal["submitter", "coordinator"]
SUBMITTING: Final[tuple[Submitting, ...]] = ("submitter",)
Fingerprint = Annotated[
    str,
    shaped(
        FINGERPRINT,
        'is no fingerprint: give "SHA256:" and 64 of the digits 0 to 9 and a to f, as party enroll prints it',
    ),
]


class GateTable(Settings):
    """`[gate]`: where parties with `dials = true` come in. listen: host and port that they dial. sockets: a folder for
    the gate's sockets, by default below `keep`; its path may have 85 bytes.
    """

    listen: Address
    sockets: str | None = None


class SubmitTable(Settings):
    """`[submit]`: where runs are submitted, by whom, and how many.

    listen: host and port. roles: whose certificates of the federation's authority may submit. queue: how many
    submissions may wait; each: how many of them one submitter's. running: how many runs go on at once; two that ask one
    party never do. addresses: whether a plan may name parties that this file does not, by their addresses. hub: whether
    a plan may name models and datasets of the hub, which this machine then downloads. simulations: whether a plan may
    start parties here (`launch = "ray"`). spare: bytes of disk that a run must leave free. patience: the most seconds
    for which a plan may have a party waited for, or asked again: meanwhile no other run may ask it.
    """

    listen: Address
    roles: Annotated[list[Submitting], Field(min_length=1)] = Field(default_factory=lambda: list(SUBMITTING))
    queue: Annotated[int, Field(ge=1, le=1000)] = 20
    each: Annotated[int, Field(ge=1, le=1000)] = 10
    running: Annotated[int, Field(ge=1, le=64)] = 2
    addresses: bool = False
    hub: bool = False
    simulations: bool = False
    spare: Annotated[int, Field(ge=0)] = 1_000_000_000
    patience: Annotated[float, Field(ge=1)] = 3600.0


class StatusTable(Settings):
    """`[status]`: the page for whoever looks after this machine, with `/health` and `/metrics`. listen: host and port.
    public: it may be reached from other machines, and whoever reaches it may read it.
    """

    listen: Address = "127.0.0.1:7446"
    public: bool = False

    @model_validator(mode="after")
    def _on_this_machine(self) -> "StatusTable":
        if not self.public and not is_loopback(self.listen.rpartition(":")[0]):
            raise ValueError(
                f"[status] listen = {self.listen}: the page asks nobody who they are, so it is on this machine alone "
                "(127.0.0.1). If everybody who reaches that address may read it, add public = true."
            )
        return self


class ServeConfig(Settings):
    """`coordinator.toml`.

    identity: the federation's folder, as `coordinator provision` made it. keep: the folder for the queue and all runs.
    public: the folder in which the public files lie that plans name. parties: those that plans may ask, each with its
    address or `dials = true`. submitters: who may submit, by name, with the fingerprint that `coordinator enroll`
    printed; where it is left out, everybody with a certificate of `[submit] roles`. drain_seconds: how long runs have
    to store the block in hand when this coordinator is stopped.
    """

    identity: Annotated[str, Field(min_length=1)]
    keep: Annotated[str, Field(min_length=1)] = KEPT
    public: Annotated[str, Field(min_length=1)] = "public"
    drain_seconds: Annotated[float, Field(ge=0)] = 60.0
    parties: list[PartyEntry] = Field(default_factory=list)
    gate: GateTable | None = None
    submit: SubmitTable
    submitters: dict[Name, Fingerprint] | None = None
    status: StatusTable = StatusTable()

    @model_validator(mode="after")
    def _agrees(self) -> "ServeConfig":
        names = [party.name for party in self.parties]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f'parties names "{twice[0]}" twice. Every party needs a name of its own.')
        if not self.parties and not (self.submit.addresses or self.submit.simulations):
            raise ValueError(
                'parties is empty, so no plan could ask anybody. Add parties = [{ name = "north", dials = true }].'
            )
        if self.dialling and self.gate is None:
            raise ValueError(
                f'[gate] is missing: {self.dialling[0]} dials. Add [gate] listen = "0.0.0.0:7444", the port that '
                "parties dial."
            )
        if self.gate is not None and not self.dialling:
            raise ValueError("[gate] is for parties that dial, and none does. Take it out, or give one dials = true.")
        return self

    @property
    def dialling(self) -> tuple[str, ...]:
        """The parties that dial in."""
        return tuple(sorted(party.name for party in self.parties if party.dials))


class Located:
    """The folders of a configuration, absolute."""

    def __init__(self, config: ServeConfig, base: Path) -> None:
        self.identity = (base / config.identity).absolute()
        self.keep = (base / config.keep).absolute()
        self.public = (base / config.public).absolute()
        named = None if config.gate is None else config.gate.sockets
        self.sockets = self.keep / "gate" if named is None else (base / named).absolute()
        if config.gate is not None:
            check_standing_folder(self.sockets)


def read_config(path: Path) -> ServeConfig:
    """Read and check a coordinator's file. Raises `PlanError` naming the file, the key and a value that would do."""
    try:
        return read_settings(path, ServeConfig)
    except SettingsError as error:
        raise PlanError(str(error)) from None
