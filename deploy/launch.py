"""The `ray` launcher: actors of one party or of several, on a Ray of the run's own or on the machines of a cluster."""

import contextlib
import platform
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from coordinator.transport.launchers import (
    Cluster,
    LaunchRequest,
    Looked,
    PartyAddress,
    Place,
    PreviewRequest,
    Simulation,
    SimulationRequest,
)
from deploy.cluster import check_room, check_versions, joined, many, options, wait_for_room
from deploy.dividing import divided
from deploy.early import Actor, Begun, Early
from deploy.embedded import embedded
from deploy.launching import LaunchError
from deploy.nursing import nursery
from party.actor import Begin, PartyActor, room_for_files

START_SECONDS: Final = 120.0
ACTOR_SECONDS: Final = 10.0
"""Seconds that parties may take to start, for all together and for each actor: two cores start one in three seconds,
one by one. A hundred parties of one actor take another.
"""
STOP_SECONDS: Final = 5.0


class RayLauncher:
    """Starts every party of a run in actors of Ray, all at once, and leaves none running."""

    def __init__(self) -> None:
        self._early: Early | None = None

    @contextmanager
    def begun(self, parties: Sequence[str], recipe: str = "", most: int | None = None) -> Iterator[None]:
        """Start a nursery, a Ray of this process and the parties' actors, in a thread; see `Launcher.begun`."""
        self._early = early = Early(lambda: _begun(parties, recipe, most))
        early.begin()
        try:
            yield
        finally:
            self._early = None
            early.end()

    def launch(self, request: LaunchRequest) -> AbstractContextManager[tuple[PartyAddress, ...]]:
        """Start the parties and wait until each reports its address.

        In the context of `begun`, they may still be ending until that closes. Raises `LaunchError` naming one that
        cannot, and for a cluster that cannot be joined or has no room.
        """
        early, self._early = self._early, None
        return _launched(request, early if request.cluster is None else None)

    def look(self, cluster: Cluster) -> str:
        """See `coordinator.transport.launchers.Launcher`. Raises `LaunchError`."""
        said: list[str] = []
        with joined(cluster.address, said.append) as ray:
            check_room(ray, cluster)
            installed = check_versions(ray, cluster)
            machines = sum(1 for each in ray.nodes() if each["Alive"])
            found = (
                f"Ray {ray.__version__}, Python {platform.python_version()} and Conclave {installed} at "
                f"{ray.get_runtime_context().gcs_address}, {many(machines, 'machine')}"
            )
        return "; ".join([found, f"room for {many(len(cluster.places), 'node')}", *(each.strip() for each in said)])

    def preview(self, request: PreviewRequest) -> Looked:
        """Look at the parts of the source in this process, without Ray. Raises `ConclaveError`."""
        from deploy.previewing import looks

        return looks(request)

    def simulate(self, request: SimulationRequest) -> Simulation:
        """Simulate the same parties in this process, in clear, without Ray."""
        from deploy.simulation import ClearShards

        return ClearShards(request)


@contextmanager
def _launched(request: LaunchRequest, early: Early | None) -> Iterator[tuple[PartyAddress, ...]]:
    request.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    request.folder.chmod(0o700)
    with _launching(request) if early is None else early.taken() as (ray, actors, nursery):
        asked = [replace(each, names=tuple(name for name in each.names if name in request.parties)) for each in actors]
        yield _start(ray, request, [each for each in asked if each.names], nursery)


@contextmanager
def _begun(parties: Sequence[str], recipe: str, parties_per_actor: int | None) -> Iterator[Begun]:
    with nursery(recipe) as socket, _processes(divided(parties, parties_per_actor)) as (ray, actors):
        yield ray, actors, socket


@contextmanager
def _launching(request: LaunchRequest) -> Iterator[Begun]:
    groups = divided(list(request.parties), request.parties_per_actor, request.cluster)
    with _processes(groups, request) as (ray, actors):
        yield ray, actors, None


@contextmanager
def _processes(
    groups: Sequence[tuple[str, ...]], request: LaunchRequest | None = None
) -> Iterator[tuple[Any, list[Actor]]]:
    """A Ray and an actor for each group of parties, which prepares itself; they end with the context.

    request: names the cluster they are put on; without one, or where it names none, it is a Ray of this process.
    """
    cluster, say = (None, None) if request is None else (request.cluster, request.say)
    if (why := room_for_files(sum(map(len, groups)))) is not None:
        raise LaunchError(why)
    with embedded(len(groups)) if cluster is None or say is None else joined(cluster.address, say) as ray:
        actors: list[Actor] = []
        try:
            if cluster is not None:
                wait_for_room(ray, cluster)
                check_versions(ray, cluster)
            for names in groups:
                place = {} if cluster is None else options(cluster.places.get(names[0], Place()), len(names))
                handle = ray.remote(PartyActor).options(num_cpus=0, max_restarts=0, **place).remote(names)
                actors.append(Actor(names, handle))
                handle.prepare.remote()
            yield ray, actors
        finally:
            _stop(ray, actors)


def _start(ray: Any, request: LaunchRequest, actors: Sequence[Actor], nursery: Path | None) -> tuple[PartyAddress, ...]:
    """Start all parties at once; the first that fails is named."""
    cluster = request.cluster
    patience = START_SECONDS + ACTOR_SECONDS * len(actors) + ACTOR_SECONDS / 100 * len(request.parties)
    deadline = time.monotonic() + patience
    asked = _all(ray, {each.handle.request.remote(): each for each in actors}, deadline, patience)
    machines = {name: machine for actor, (_, machine) in asked.items() for name in actor.names}
    requests = {name: found[name] for actor, (found, _) in asked.items() for name in actor.names}
    peers = request.keys(requests)
    begins = {name: _begin(ray, request, name, requests[name], nursery) for name in request.parties}
    if cluster is not None:
        request.say(f"  {len(machines)} parties on {many(len(set(machines.values())), 'machine')} of the Ray cluster")
    if any(len(each.names) > 1 for each in actors):
        request.say(f"  {many(len(machines), 'simulated party', 'simulated parties')} in {many(len(actors), 'actor')}")
    addresses = {}
    beside = -(-len(actors) // (len(set(machines.values())) or 1))
    pending = {each.handle.start.remote([begins[name] for name in each.names], peers, beside): each for each in actors}
    for actor, started in _all(ray, pending, deadline, patience).items():
        for name, (address, why_not) in zip(actor.names, started, strict=True):
            if why_not:
                where = "" if cluster is None else f" on {machines[name]}"
                gpus = 0.0 if cluster is None else cluster.places.get(name, Place()).gpus
                why = ""
                if gpus:
                    why = (
                        f" Ray was started there with GPUs that it has not: mend that, or gpus = {gpus:g} of the plan."
                    )
                raise LaunchError(f"party {name} could not be started{where}: {why_not}{why}")
            if cluster is not None:
                _machine_of(request, name).write_text(machines[name])
            process = actor.names[0] if len(actor.names) > 1 else ""
            addresses[name] = PartyAddress(name, address, begins[name].token, len(actor.names), process)
    return tuple(addresses[name] for name in request.parties)


def _begin(ray: Any, request: LaunchRequest, name: str, asked: bytes, nursery: Path | None) -> Begin:
    """The inputs of a party's start. asked: its certificate request, PEM."""
    cluster, base, bundle = request.cluster, str(request.base.absolute()), request.vouch(name, asked)
    tables = request.parties[name]
    if cluster is None:
        token, folder = secrets.token_urlsafe(32), request.folder.absolute() / name
        forks = "" if nursery is None else str(nursery)
        return Begin(name, tables, str(folder), base, bundle, token=token, host="127.0.0.1", nursery=forks)
    if cluster.tasks is not None:
        site = {"address": ray.get_runtime_context().gcs_address, "tasks": cluster.tasks}
        tables = {**tables, "cluster": site}
    port = 0 if cluster.ports is None else cluster.ports[0] + list(request.parties).index(name)
    kept = _machine_of(request, name)
    before = kept.read_text() if kept.exists() else ""
    folder = (cluster.folder or request.folder).absolute() / name
    return Begin(name, tables, str(folder), base, bundle, port=port, before=before)


def _machine_of(request: LaunchRequest, name: str) -> Path:
    """The file with the machine of a cluster on which a party last ran."""
    return request.folder / f"{name}.machine"


def _all(ray: Any, pending: dict[Any, Actor], deadline: float, patience: float) -> dict[Actor, Any]:
    """Every actor's answer. Raises `LaunchError` naming the parties of those that do not answer within so many
    seconds.
    """
    found = {}
    while pending:
        ready, _ = ray.wait(list(pending), num_returns=1, timeout=max(0.0, deadline - time.monotonic()))
        if not ready:
            late = ", ".join(sorted(map(str, pending.values())))
            raise LaunchError(
                f"party {late}: not started after {patience:g} s. Is the machine out of memory, or its resources taken?"
            )
        actor = pending.pop(ready[0])
        try:
            found[actor] = ray.get(ready[0])
        except ray.exceptions.RayError as error:
            lacking = re.search(r"No module named '([A-Za-z_.]+)'", str(error))
            why = (
                f"its machine has no module {lacking[1]}. Install the same Conclave on all machines of the cluster"
                if lacking
                else f"its process ended ({type(error).__name__})"
            )
            raise LaunchError(f"party {actor} could not be started: {why}.") from None
    return found


def _stop(ray: Any, actors: Sequence[Actor]) -> None:
    """Let the nodes finish what they are writing; what is left after that ends with Ray."""
    if not ray.is_initialized():
        return
    with contextlib.suppress(ray.exceptions.RayError):
        ray.wait([each.handle.stop.remote() for each in actors], num_returns=len(actors), timeout=STOP_SECONDS)
