"""A launcher of one's own: a process a party, on this machine, without Ray.

A party's private keys are made in its process and never leave it. The process ends when its standard input closes, so
that none is left however the run ends.
"""

import contextlib
import json
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from coordinator.errors import PlanError, RunError
from coordinator.transport.launchers import (
    Cluster,
    LaunchRequest,
    Looked,
    PartyAddress,
    PreviewRequest,
    Simulation,
    SimulationRequest,
)

ENDS_SECONDS = 10.0


class ProcessLauncher:
    """A `coordinator.transport.launchers.Launcher`."""

    def begun(self, parties: Sequence[str], recipe: str = "", most: int | None = None) -> AbstractContextManager[None]:
        """Nothing is begun before a launch."""
        return nullcontext()

    @contextmanager
    def launch(self, request: LaunchRequest) -> Iterator[tuple[PartyAddress, ...]]:
        """Start the parties and wait for their addresses. Raises `RunError` naming one that does not start."""
        if request.cluster is not None:
            raise RunError('launch = "processes" starts parties on this machine alone. Leave [federation.cluster] out.')
        request.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        started: dict[str, subprocess.Popen[str]] = {}
        try:
            for name in request.parties:
                started[name] = _process(name, request)
            asked = {name: _said(name, process)["request"].encode() for name, process in started.items()}
            tables = request.introduced(asked)
            addresses = []
            for name, process in started.items():
                token = secrets.token_urlsafe(32)
                bundle = request.vouch(name, asked[name]).decode()
                _tell(name, process, {"tables": tables[name], "bundle": bundle, "token": token})
                addresses.append((name, token))
            yield tuple(PartyAddress(name, _said(name, started[name])["address"], token) for name, token in addresses)
        finally:
            _end(started.values())

    def look(self, cluster: Cluster) -> str:
        """Raises `PlanError`: it knows no cluster."""
        raise PlanError(
            '[federation] launch = "processes" starts parties on this machine. Leave [federation.cluster] out.'
        )

    def preview(self, request: PreviewRequest) -> Looked:
        """What a run would use of each party's part of the source."""
        from deploy.previewing import looks

        return looks(request)

    def simulate(self, request: SimulationRequest) -> Simulation:
        """The same parties in clear, for comparing and auditing: Conclave's own simulation does that."""
        from deploy.simulation import ClearShards

        return ClearShards(request)


def _process(name: str, request: LaunchRequest) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "own_recipe.node", name, str(request.folder / name), str(request.base)]
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise RunError(f"party {name} could not be started: {error.strerror}.") from None


def _said(name: str, process: "subprocess.Popen[str]") -> dict[str, Any]:
    """The next line of a party's process. Raises `RunError` with its reason where it ends instead."""
    assert process.stdout is not None
    try:
        found: dict[str, Any] = json.loads(process.stdout.readline())
    except ValueError:
        raise RunError(f"party {name} could not be started: its process ended. See what it printed.") from None
    if "error" in found:
        raise RunError(f"party {name} could not be started: {found['error']}")
    return found


def _tell(name: str, process: "subprocess.Popen[str]", what: dict[str, Any]) -> None:
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()
    except OSError:
        raise RunError(f"party {name} could not be started: its process ended. See what it printed.") from None


def _end(processes: Any) -> None:
    for process in processes:
        with contextlib.suppress(OSError):
            process.stdin.close()
    for process in processes:
        try:
            process.wait(ENDS_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
