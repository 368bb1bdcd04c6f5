"""A Ray of this process alone: it joins nothing, accepts nobody else, and leaves nothing behind."""

import contextlib
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import psutil

from deploy.launching import QUIET, LaunchError, environment, read_token, terminated_as_before
from protos.processes import lives

OBJECT_STORE: Final = 80 * 1024 * 1024
LONGEST_TEMPORARY: Final = 8
"""Characters of the place for Ray's folder: its sockets lie 93 to 96 deeper, and a socket's path has at most 107."""
ATTEMPTS: Final = 2
_PREFIX: Final = "conclave-ray-"
_LATE: Final = ("timed out during startup", "Timed out waiting for file")
"""Ray's words where a process of it is not up in time, or has not told its port."""
_ENDS: Final = 10.0
"""Seconds that a killed process has to end before it is left to the system."""
_UNUSED: Final = ("start_monitor", "start_log_monitor", "start_api_server")
"""What starts processes of Python that nobody asks here: Ray's autoscaler, what follows workers' logs, its pages."""
_TOKEN: Final = secrets.token_hex(32)
"""The token that Ray's own processes ask of each other. Ray reads it once a process, and would keep one in the user's
home.
"""


@contextmanager
def embedded(parties: int) -> Iterator[Any]:
    """A Ray of this process alone, in a private folder that is removed with it."""
    with environment(QUIET | {"RAY_AUTH_TOKEN": _TOKEN}):
        import ray

        if ray.is_initialized():
            raise LaunchError("this process is connected to a Ray already. Call ray.shutdown() first.")
        read_token()
        place = short_folder()
        sweep(Path(place), _PREFIX)
        folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place)
        try:
            with terminated_as_before():
                _start(ray, parties, folder)
            yield ray
        finally:
            with terminated_as_before():
                ray.shutdown()
            shutil.rmtree(folder, ignore_errors=True)


def _start(ray: Any, parties: int, folder: str) -> None:
    """Start Ray, in any thread, and once more where its processes are not up in time.

    A busy machine may cause that, or a port that another process took between Ray's choice and its use. Ray ends what
    a failed attempt started only with this process, so it is ended here.
    """
    logging.getLogger("ray").setLevel(logging.ERROR)  # in another thread than the first it warns of its own signals
    for attempt in range(ATTEMPTS):
        place = os.path.join(folder, str(attempt))
        try:
            with _no_more_than_used():
                ray.init(
                    address="local",
                    num_cpus=min(parties, os.cpu_count() or 1),
                    num_gpus=0,
                    object_store_memory=OBJECT_STORE,
                    include_dashboard=False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                    _temp_dir=place,  # Ray makes its own folder readable by everybody
                )
        except Exception as error:  # noqa: BLE001 - Ray raises bare ones when 30 s pass
            _end(place)
            if _late(error) and attempt + 1 < ATTEMPTS:
                ray.shutdown()
                continue
            raise LaunchError(why_not_started(error)) from None
        return


@contextmanager
def _no_more_than_used() -> Iterator[None]:
    """In it, Ray starts none of `_UNUSED`, which `ray.init` has no argument for: 6.5 of the 14.7 s that a start and
    its end take on one slow core.

    These are methods of a private class. Where a Ray has no such method, what it starts in its place is started.
    """
    from ray._private.node import Node

    owner: Any = Node
    kept = {name: vars(owner)[name] for name in _UNUSED if name in vars(owner)}
    for name in kept:
        setattr(owner, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in kept.items():
            setattr(owner, name, method)


def _end(folder: str) -> None:
    """Kill those descendants of this process that were started on this folder, and whatever those started.

    A process that begins shows no command line for a moment, so one is known by its parent as well.
    """
    found: list[psutil.Process] = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(folder in part for part in process.cmdline()):
                found += [process, *process.children(recursive=True)]
    for process in found:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(found, timeout=_ENDS)


def _late(error: Exception) -> bool:
    return any(words in str(error) for words in _LATE)


def why_not_started(error: Exception) -> str:
    """Ray's reason for not starting, as one sentence, and what to do about it."""
    said = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    if _late(error):
        said = (
            f"its processes were not up within 30 s, {ATTEMPTS} times. Is this machine busy, or short of memory? Run "
            "it again later"
        )
    return f"Ray could not be started: {said}."


def short_folder() -> str:
    """The folder for temporary files, if Ray's socket paths in it stay short enough, otherwise /tmp."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= LONGEST_TEMPORARY else "/tmp"


def sweep(place: Path, prefix: str) -> None:
    """Remove the folders, named PREFIX-PROCESS-..., of processes that were killed before they could remove them."""
    for folder in place.glob(f"{prefix}*-*"):
        owner = folder.name.removeprefix(prefix).split("-")[0]
        with contextlib.suppress(OSError):
            if owner.isdigit() and folder.stat().st_uid == os.getuid() and not lives(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)
