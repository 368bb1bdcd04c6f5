"""`[federation.cluster]`: the Ray cluster whose machines run the parties of `launch = "ray"`."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from coordinator.transport.launchers import Cluster, Place
from protos.console.settings import Settings

_PORTS = r"([0-9]{4,5})-([0-9]{4,5})"

Amount = Annotated[float, Field(gt=0)]


class PlaceTable(Settings):
    """What a party needs of its machine: Ray's custom resources and node labels, and GPUs.

    resources, labels: what the machine must have, by name. gpus: a party with any trains text models on the first that
    Ray gives it, in the precision of `[run]`; one with none trains on its processor. A fraction shares one with other
    parties. A machine gets a resource by `ray start --resources '{"party": 2}'`, a label by `--labels zone=north`.
    """

    resources: dict[Annotated[str, Field(min_length=1)], Amount] = Field(default_factory=dict)
    labels: dict[Annotated[str, Field(min_length=1)], str] = Field(default_factory=dict)
    gpus: Annotated[float, Field(ge=0)] = 0.0

    @field_validator("resources")
    @classmethod
    def _custom(cls, resources: dict[str, float]) -> dict[str, float]:
        """Parties mostly wait, and their training takes what the machine has, so Ray is not told of processors."""
        for name in resources:
            if name in ("CPU", "GPU", "memory", "object_store_memory"):
                instead = "Use gpus." if name == "GPU" else "Leave it out: a party takes no processor or memory of Ray."
                raise ValueError(f"[federation.cluster] resources: {name} is Ray's own. {instead}")
        return resources

    @field_validator("gpus")
    @classmethod
    def _a_part_or_whole(cls, gpus: float) -> float:
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(f"[federation.cluster] gpus = {gpus:g}: more than one comes whole. Use {int(gpus)}.")
        return gpus


class ClusterTable(PlaceTable):
    """Where the cluster is, and what every party needs of its machine.

    address: "auto", on one of its machines, or "HOST:PORT" of its head. folder: where parties keep their ledgers and
    working files, on their own machines; by default below the run's folder. ports: "FIRST-LAST" that nodes listen on,
    one a party; by default any free one. tasks: into how many Ray tasks a party's teachers are divided, on any machine
    with a free processor; by default they stay on the party's own. party: other needs of single parties, by name.
    """

    address: str = "auto"
    folder: Annotated[str, Field(min_length=1)] | None = None
    ports: str | None = None
    tasks: Annotated[int, Field(ge=1, le=10_000)] | None = None
    party: dict[str, PlaceTable] = Field(default_factory=dict)

    @field_validator("address")
    @classmethod
    def _of_a_head(cls, address: str) -> str:
        return head_address(address)

    @model_validator(mode="after")
    def _ports_in_order(self) -> "ClusterTable":
        if self.ports is not None:
            found = re.fullmatch(_PORTS, self.ports)
            if found is None or not 1024 <= int(found[1]) <= int(found[2]) <= 65535:
                raise ValueError(
                    f'[federation.cluster] ports = "{self.ports}" is no range of ports. Use two from 1024 to 65535, '
                    'for example "7500-7599".'
                )
        return self

    def check(self, names: tuple[str, ...]) -> None:
        """Raises ValueError unless the table names only these parties."""
        unknown = sorted(self.party.keys() - set(names))
        if unknown:
            raise ValueError(f"[federation.cluster.party] {unknown[0]}: there is no such party. {_named(names)}")
        span = self.span
        if span is not None and span[1] - span[0] + 1 < len(names):
            raise ValueError(
                f'[federation.cluster] ports = "{self.ports}" are fewer than {len(names)} parties. Every party listens '
                "on one of its own."
            )

    def of(self, name: str) -> PlaceTable:
        """What one party needs of its machine."""
        return self.party.get(name, self)

    @property
    def span(self) -> tuple[int, int] | None:
        """The first port and the last."""
        if self.ports is None:
            return None
        first, _, last = self.ports.partition("-")
        return int(first), int(last)

    def cluster(self, names: tuple[str, ...], base: Path, run: str) -> Cluster:
        """The table as a launcher takes it, for a run of this id. base: the folder against which a relative one is
        resolved.
        """
        folder = None if self.folder is None else base / self.folder / run
        asked = {name: self.of(name) for name in names}
        places = {name: Place(table.resources, table.labels, table.gpus) for name, table in asked.items()}
        return Cluster(self.address, folder, self.span, places, self.tasks)


def head_address(address: str) -> str:
    """The address, if it can be that of a cluster's head. Raises ValueError saying what to use."""
    if address.startswith("ray://"):
        raise ValueError(
            f'"{address}" is a Ray Client\'s address. Run the plan on a machine of the cluster, with "auto": by '
            "`ray job submit`, for example."
        )
    host, _, port = address.rpartition(":")
    if address == "auto" or (host and not re.search(r"[\s/]", host) and port.isdecimal() and 0 < int(port) < 65536):
        return address
    raise ValueError(f'"{address}" is no address of a Ray cluster. Use "auto", or "HOST:PORT" of its head.')


def _named(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:4])
    return f"There is {shown}{' and so on' if len(names) > 4 else ''}."
