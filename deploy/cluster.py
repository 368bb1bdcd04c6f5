"""Connects to a running Ray cluster, or fails soon and with one sentence."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import grpc

from coordinator.transport.launchers import Cluster, Place
from deploy.launching import QUIET, LaunchError, environment, read_token, terminated_as_before
from protos import software_version

ASK_SECONDS: Final = 5.0
"""Seconds that the head may take to answer that it is one."""
VERSION_SECONDS: Final = 120.0
"""Seconds that the machines may take to start a process that says what is installed there."""
ROOM_SECONDS: Final = 15.0
"""Seconds to wait for resources that others hold."""
_WHO: Final = "/ray.rpc.NodeInfoGcsService/GetClusterId"
"""Ray's own first request to a head: which cluster it belongs to. The request is an empty message."""
_MODE: Final = "RAY_AUTH_MODE"
_TOKEN_PLACES: Final = "RAY_AUTH_TOKEN, the file that RAY_AUTH_TOKEN_PATH names, or ~/.ray/auth_token"


class RoomError(LaunchError):
    """The cluster lacks resources; taken: whether it has them, but other work holds them."""

    def __init__(self, sentence: str, *, taken: bool = False) -> None:
        super().__init__(sentence)
        self.taken = taken


@contextmanager
def joined(address: str, say: Callable[[str], None] = lambda sentence: None) -> Iterator[Any]:
    """Connect to the Ray at this address and disconnect at the end; the token is this process' environment's or this
    user's.

    address: "auto", for the cluster that this machine is part of, or "HOST:PORT" of its head. say: told where the
    cluster does not authenticate callers. Raises `LaunchError` within seconds where there is no cluster, or none that
    may be joined from here.
    """
    quiet = {name: value for name, value in QUIET.items() if name != _MODE}
    with environment({**quiet, _MODE: os.environ.get(_MODE, "token")}):
        import ray

        if ray.is_initialized():
            raise LaunchError("this process is connected to a Ray already. Call ray.shutdown() first.")
        if not read_token():
            os.environ[_MODE] = "disabled"  # otherwise Ray would not ask, nor report that the other end wants a token
            read_token()
        head = _head(address)
        _check(head)
        if open_to_all(head):
            say(f"  the Ray at {head} asks no token: whoever reaches its ports can run code at every party")
        try:
            # Ray would otherwise follow the address to another cluster.
            with environment({"RAY_ADDRESS": head}), terminated_as_before():
                ray.init(address=head, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # noqa: BLE001 - Ray raises bare ones
            raise LaunchError(_why_not(head, error)) from None
        try:
            yield ray
        finally:
            with terminated_as_before():
                ray.shutdown()


def open_to_all(address: str) -> bool:
    """Whether a cluster accepts callers without a token."""
    with contextlib.suppress(grpc.RpcError), grpc.insecure_channel(address) as channel:
        ask: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_WHO)
        ask(b"", timeout=ASK_SECONDS)
        return True
    return False


def wait_for_room(ray: Any, cluster: Cluster) -> None:
    """Wait a moment for resources that an earlier run may be releasing. Raises `LaunchError` as `check_room` does."""
    deadline = time.monotonic() + ROOM_SECONDS
    while True:
        try:
            return check_room(ray, cluster)
        except RoomError as error:
            if not error.taken or time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def check_room(ray: Any, cluster: Cluster) -> None:
    """Raises `RoomError`, naming what is missing, unless the machines have what all parties need together."""
    machines = [each for each in ray.nodes() if each["Alive"]]
    for name, place in cluster.places.items():
        wanted = _wanted(place)
        if not any(_fits(each, wanted, place.labels) for each in machines):
            had = "; ".join(sorted(_had(each, wanted, place.labels) for each in machines))
            raise RoomError(
                f"party {name} asks for a machine with {_said(wanted, place.labels)}, and the cluster has none: {had}. "
                "Start one that has it (`ray start --resources` or `--labels`), or change [federation.cluster]."
            )
    sums: dict[str, float] = {}
    for place in cluster.places.values():
        for resource, amount in _wanted(place).items():
            sums[resource] = sums.get(resource, 0.0) + amount
    free = ray.available_resources()
    for resource, amount in sorted(sums.items()):
        there = sum(each["Resources"].get(resource, 0.0) for each in machines)
        if amount > free.get(resource, 0.0):
            taken = there - free.get(resource, 0.0)
            other = f", of which other work holds {taken:g}" if amount <= there else ""
            raise RoomError(
                f"{len(cluster.places)} parties ask for {amount:g} of {resource} together, and the cluster has "
                f"{there:g}{other}. Add machines, wait for them, or ask for less in [federation.cluster].",
                taken=amount <= there,
            )


def many(count: int, what: str, whats: str = "") -> str:
    """A number of something, in words. whats: its plural, where that is not an s more."""
    return f"{count:,} {what if count == 1 else whats or f'{what}s'}"


def check_versions(ray: Any, cluster: Cluster) -> str:
    """The one version of Conclave, as here, on all machines that a party may be put on: each is asked.

    Ray compares its own version and Python's with the head's. Raises `LaunchError` naming a machine that differs.
    """
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def installed() -> str:  # a function within one is sent whole, so that it also runs where Conclave is another
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("conclave-distill")
        except PackageNotFoundError:
            return ""

    here = software_version()
    ask = ray.remote(installed)
    asked = []
    for each in ray.nodes():
        if each["Alive"] and any(_fits(each, _wanted(place), place.labels) for place in cluster.places.values()):
            where = NodeAffinitySchedulingStrategy(each["NodeID"], soft=False)
            answer = ask.options(num_cpus=0, max_retries=0, scheduling_strategy=where).remote()
            asked.append((each["NodeManagerAddress"], answer))
    answers = [answer for _, answer in asked]
    ready = ray.wait(answers, num_returns=len(answers), timeout=VERSION_SECONDS)[0] if answers else []
    for machine, answer in asked:
        if answer not in ready:
            raise LaunchError(
                f"{machine}, a machine of the cluster, did not say in {VERSION_SECONDS:g} s which Conclave it runs. "
                "Look at it (`ray status`), or take it out of the cluster."
            )
        try:
            found = ray.get(answer)
        except Exception as error:  # noqa: BLE001 - Ray raises whatever failed there
            raise LaunchError(f"{machine}, a machine of the cluster, cannot run a task: {_last_line(error)}.") from None
        if found != here:
            there = f"runs Conclave {found}" if found else "has no Conclave"
            raise LaunchError(
                f"{machine}, a machine of the cluster, {there}, this process {here}. Install the same version on all "
                "machines."
            )
    return here


def options(place: Place, parties: int = 1) -> dict[str, Any]:
    """The Ray options of an actor of so many parties that ask for this place: apart from the others where there is
    room.
    """
    return {
        "num_gpus": place.gpus * parties,
        "resources": {name: amount * parties for name, amount in place.resources.items()} or None,
        "label_selector": dict(place.labels) or None,
        "scheduling_strategy": None if place.labels else "SPREAD",
    }


def _head(address: str) -> str:
    """The head's host and port. Raises `LaunchError` where "auto" finds none."""
    if address != "auto":
        return address
    from ray._private.services import canonicalize_bootstrap_address_or_die

    try:
        found: str = canonicalize_bootstrap_address_or_die("auto")
    except ConnectionError:
        raise LaunchError(
            "no Ray cluster runs on this machine. Start one (`ray up`, or `ray start --head`), run the plan on one of "
            'its machines, or give its head: --ray-address "HOST:PORT".'
        ) from None
    return found


def _check(head: str) -> None:
    """Ask the head which cluster it belongs to. Raises `LaunchError` saying what is there instead."""
    from ray._private.grpc_utils import init_grpc_channel

    try:
        with init_grpc_channel(head) as channel:
            channel.unary_unary(_WHO)(b"", timeout=ASK_SECONDS)
    except grpc.RpcError as error:
        raise LaunchError(_refused(head, error.code() if isinstance(error, grpc.Call) else None)) from None


def _refused(head: str, code: grpc.StatusCode | None) -> str:
    if code is grpc.StatusCode.UNAUTHENTICATED:
        why = "asks for a token, and there is none here"
        if os.environ[_MODE] == "token":
            why = "does not take this token: it is another cluster's, or was replaced"
        return f"the Ray at {head} {why}. Put the cluster's own into {_TOKEN_PLACES}."
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return f"what listens at {head} is no head of a Ray cluster. Give its head's port, usually 6379."
    return f"no Ray cluster answers at {head}. Is its head up (`ray status` there), and may this machine reach it?"


def _why_not(head: str, error: BaseException) -> str:
    text = str(error)
    if "Version mismatch" in text:
        said = [line.strip() for line in text.splitlines() if "Ray:" in line or "Python:" in line]
        if len(said) == 4:
            theirs, ours = " and ".join(said[:2]), " and ".join(said[2:])
            return (
                f"the Ray at {head} is another version: it runs {theirs.replace(':', '')}, this process "
                f"{ours.replace(':', '')}. Install the same of both on all machines."
            )
    return f"the Ray at {head} cannot be joined: {_last_line(error)}."


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[-1] if lines else type(error).__name__).rstrip(".")[:300]


def _wanted(place: Place) -> dict[str, float]:
    return {**place.resources, **({"GPU": place.gpus} if place.gpus else {})}


def _fits(machine: Mapping[str, Any], wanted: Mapping[str, float], labels: Mapping[str, str]) -> bool:
    has = machine["Resources"]
    known = machine.get("Labels") or {}
    return all(has.get(name, 0.0) >= amount for name, amount in wanted.items()) and all(
        known.get(name) == value for name, value in labels.items()
    )


def _had(machine: Mapping[str, Any], wanted: Mapping[str, float], labels: Mapping[str, str]) -> str:
    has, known = machine["Resources"], machine.get("Labels") or {}
    found = {name: has.get(name, 0.0) for name in wanted}
    return f"{machine['NodeManagerAddress']} has {_said(found, {name: known.get(name, 'none') for name in labels})}"


def _said(amounts: Mapping[str, float], labels: Mapping[str, str]) -> str:
    parts: Sequence[str] = [f"{amount:g} of {name}" for name, amount in sorted(amounts.items())]
    parts = [*parts, *(f"label {name} = {value}" for name, value in sorted(labels.items()))]
    return ", ".join(parts) or "nothing in particular"
