"""How a run gets its parties: the protocol, and the two facts that travel through it.

A launcher other than `connect` is found by the entry-point group `conclave.launchers`; the name is what a plan says
in `launch`. So the coordinator starts parties without importing the code that runs them.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

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
    """

    parties: Mapping[str, Mapping[str, Any]]
    folder: Path
    base: Path


class Launcher(Protocol):
    """Starts one node a party, and ends all of them when the context closes, whatever happened inside it."""

    def launch(self, request: LaunchRequest) -> AbstractContextManager[tuple[PartyAddress, ...]]:
        """Start the parties and wait until each reports its address. Raises `ConclaveError` when one cannot start."""
        ...


def find_launcher(name: str) -> Launcher:
    """The launcher a plan names. Raises `PlanError` naming those that are installed."""
    known = {point.name: point for point in entry_points(group="conclave.launchers")}
    if name not in known:
        names = ", ".join(f'"{each}"' for each in ["connect", *sorted(known)])
        raise PlanError(f'[federation] launch = "{name}" is not installed here. There is {names}.')
    launcher: Launcher = known[name].load()()
    return launcher
