"""How a run gets its parties: the protocol, and the two facts that travel through it.

A launcher other than `connect` is found by the entry-point group `conclave.launchers`; the name is what a plan says
in `launch`. So the coordinator starts parties without importing the code that runs them.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Protocol

from scipy import sparse

from aggregation.joint import TeacherSignal
from coordinator.errors import PlanError


@dataclass(frozen=True, slots=True)
class PartyAddress:
    """Where a party's node listens. `token` is what it wants to hear from its caller, empty for none."""

    name: str
    address: str
    token: str = ""


@dataclass(frozen=True, slots=True)
class LaunchRequest:
    """Which parties to start.

    parties: for each name the tables of a party file (`shard`, `policy`, ...), as `party serve` would read them.
    folder: a private folder of the run for everything the parties keep; relative paths in the tables start at `base`.
    issued: for each name the certificates and the private keys that it signs with, PEM, made by this run.
    """

    parties: Mapping[str, Mapping[str, Any]]
    folder: Path
    base: Path
    issued: Mapping[str, tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class SimulationRequest:
    """Whose text a simulation reads, and how it is counted: parties and base as in `LaunchRequest`.

    vocabulary: the bytes of the public vocabulary. folder: for working files.
    """

    parties: Mapping[str, Mapping[str, Any]]
    folder: Path
    base: Path
    vocabulary: bytes
    window: int
    record: Literal["document", "sentence", "pair"]
    by_user: bool


@dataclass(frozen=True, slots=True)
class TeachersWanted:
    """Teachers that a simulation trains at every party, and what they are asked: `party_pb2.TeachersTask` in words."""

    teachers_per_party: int
    alignment: Literal["initialisation", "procrustes"]
    queries: Sequence[int]
    classes: Sequence[int]
    layers: Sequence[Literal["centre", "context"]]
    vote: Literal["probable", "lift"]
    seed: int


class Simulation(Protocol):
    """Simulated parties' text in clear: for comparing methods on data that is nobody's secret."""

    def counts(self) -> tuple[sparse.csr_array, ...]:
        """Each party's pair counts, unit by unit: [units, words * words]."""
        ...

    def answers(self, reference: bytes, wanted: TeachersWanted) -> tuple[TeacherSignal, ...]:
        """Each party's teachers' votes and hidden states, before anything bounds them."""
        ...


class Launcher(Protocol):
    """Starts one node a party, and ends all of them when the context closes, whatever happened inside it."""

    def launch(self, request: LaunchRequest) -> AbstractContextManager[tuple[PartyAddress, ...]]:
        """Start the parties and wait until each reports its address. Raises `ConclaveError` when one cannot start."""
        ...

    def simulate(self, request: SimulationRequest) -> Simulation:
        """The same parties without nodes, in clear. Raises `ConclaveError` where parties have text of their own."""
        ...


def find_launcher(name: str) -> Launcher:
    """The launcher a plan names. Raises `PlanError` naming those that are installed."""
    known = {point.name: point for point in entry_points(group="conclave.launchers")}
    if name not in known:
        names = ", ".join(f'"{each}"' for each in ["connect", *sorted(known)])
        raise PlanError(f'[federation] launch = "{name}" is not installed here. There is {names}.')
    launcher: Launcher = known[name].load()()
    return launcher
