"""The `ray` launcher: one actor a party on a Ray that this run starts for itself and takes down with itself."""

import contextlib
import logging
import os
import secrets
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Final

from aggregation.errors import ConclaveError
from coordinator.launchers import LaunchRequest, PartyAddress, Simulation, SimulationRequest

OBJECT_STORE: Final = 80 * 1024 * 1024
LONGEST_TEMPORARY: Final = 8
"""Characters of the place for Ray's folder: its sockets lie 93 to 96 deeper, and a socket's path has at most 107."""
_PREFIX: Final = "conclave-ray-"
START_SECONDS: Final = 120.0
STOP_SECONDS: Final = 5.0

QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_AUTH_MODE": "token",
}
"""What Ray is told wherever it is started: to report to nobody, to join nothing, and to ask who calls."""


_TOKEN: Final = secrets.token_hex(32)
"""What Ray's own processes ask of each other; Ray reads it once a process, and would keep one in the user's home."""


_SET_BY_RAY: Final = ("PYTHONBREAKPOINT", "RAY_CLIENT_MODE")


class LaunchError(ConclaveError):
    """Parties that could not be started. The message names the party and what would be right."""


class RayLauncher:
    """Starts every party of a run as an actor of an embedded Ray, in parallel, and leaves nothing running."""

    def launch(self, request: LaunchRequest) -> AbstractContextManager[tuple[PartyAddress, ...]]:
        """Start the parties and wait until each reports its address. Raises `LaunchError` naming one that cannot."""
        return _launched(request)

    def simulate(self, request: SimulationRequest) -> Simulation:
        """The same parties in this process, in clear, without Ray."""
        from deploy.simulation import ClearShards

        return ClearShards(request)


@contextmanager
def _launched(request: LaunchRequest) -> Iterator[tuple[PartyAddress, ...]]:
    request.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    request.folder.chmod(0o700)
    with embedded(len(request.parties)) as ray:
        actors: dict[str, Any] = {}
        try:
            yield _start(ray, request, actors)
        finally:
            _stop(ray, actors)


def _start(ray: Any, request: LaunchRequest, actors: dict[str, Any]) -> tuple[PartyAddress, ...]:
    """Start all parties at once; the first that cannot is named."""
    from party.actor import PartyActor

    kind = ray.remote(PartyActor)
    for name in request.parties:
        actors[name] = kind.options(num_cpus=0, max_restarts=0).remote()
    deadline = time.monotonic() + START_SECONDS
    requests = _all(ray, {actors[name].request.remote(name): name for name in actors}, deadline)
    tokens = {name: secrets.token_urlsafe(32) for name in actors}
    base, pending = str(request.base.absolute()), {}
    for name, tables in request.introduced(requests).items():
        folder, bundle = str((request.folder / name).absolute()), request.vouch(name, requests[name])
        pending[actors[name].start.remote(name, tables, folder, base, tokens[name], bundle)] = name
    addresses = {}
    for name, (address, why_not) in _all(ray, pending, deadline).items():
        if why_not:
            raise LaunchError(f"party {name} could not be started: {why_not}")
        addresses[name] = PartyAddress(name, address, tokens[name])
    return tuple(addresses[name] for name in request.parties)


def _all(ray: Any, pending: dict[Any, str], deadline: float) -> dict[str, Any]:
    """What every party answers, by its name. Raises `LaunchError` naming one that does not."""
    found = {}
    while pending:
        ready, _ = ray.wait(list(pending), num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            late = ", ".join(sorted(pending.values()))
            raise LaunchError(f"party {late}: not started after {START_SECONDS:g} s. Is this machine out of memory?")
        name = pending.pop(ready[0])
        try:
            found[name] = ray.get(ready[0])
        except ray.exceptions.RayError as error:
            raise LaunchError(
                f"party {name} could not be started: its process ended ({type(error).__name__})."
            ) from None
    return found


def _stop(ray: Any, actors: Mapping[str, Any]) -> None:
    """Let the nodes end what they write; whatever is left after that ends with Ray."""
    if not ray.is_initialized():
        return
    with contextlib.suppress(ray.exceptions.RayError):
        ray.wait([actor.stop.remote() for actor in actors.values()], num_returns=len(actors), timeout=STOP_SECONDS)


@contextmanager
def embedded(parties: int) -> Iterator[Any]:
    """A Ray of this process alone, in a private folder that is removed with it."""
    with environment(QUIET | {"RAY_AUTH_TOKEN": _TOKEN}):
        import ray

        if ray.is_initialized():
            raise LaunchError("this process is connected to a Ray already. Call ray.shutdown() first.")
        place = _short_folder()
        _sweep(Path(place))
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place)
        handler = signal.getsignal(signal.SIGTERM)
        try:
            try:
                ray.init(
                    address="local",
                    num_cpus=min(parties, os.cpu_count() or 1),
                    num_gpus=0,
                    object_store_memory=OBJECT_STORE,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=os.path.join(folder, "r"),  # Ray opens its own folder to everybody
                )
            except (RuntimeError, OSError, ValueError, ray.exceptions.RayError) as error:
                raise LaunchError(f"Ray could not be started: {str(error).splitlines()[0]}") from None
            if threading.current_thread() is threading.main_thread():
                signal.signal(signal.SIGTERM, handler)
            yield ray
        finally:
            ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def _short_folder() -> str:
    """Where temporary files go, if Ray's socket paths then stay short enough, else /tmp."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= LONGEST_TEMPORARY else "/tmp"


def _sweep(place: Path) -> None:
    """Remove the folders of runs that were killed before they could."""
    for folder in place.glob(f"{_PREFIX}*-*"):
        owner = folder.name.removeprefix(_PREFIX).split("-")[0]
        with contextlib.suppress(OSError):
            if owner.isdigit() and folder.stat().st_uid == os.getuid() and not _runs(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def environment(wanted: Mapping[str, str]) -> Iterator[None]:
    """Set variables for this process and those it starts meanwhile; those that Ray sets are taken back as well."""
    before = {name: os.environ.get(name) for name in (*wanted, *_SET_BY_RAY)}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
