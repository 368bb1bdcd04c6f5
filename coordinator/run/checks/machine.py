"""What a machine needs whatever is run on it: a place for runs, what starts parties, versions that fit."""

import sys
import tempfile
from importlib.util import find_spec
from typing import Final

from coordinator.errors import PlanError, RunError
from coordinator.store.index import RunIndex
from coordinator.store.private_files import home
from coordinator.transport.launchers import find_launcher
from protos import PROTOCOL_VERSION, software_version
from protos.console.checklist import Line, ok, to_do

SCRATCH: Final = 64 * 2**20
"""Bytes of temporary files: sockets, and what libraries put aside."""


def store() -> Line:
    """Whether runs can be stored: the index opens, and a file can be written beside it."""
    folder = home()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"conclave")
        kept = len(RunIndex().entries())
    except OSError as error:
        return to_do("store", f"{folder} cannot be written: {error.strerror}. Make it writable, or set CONCLAVE_HOME.")
    except RunError as error:
        return to_do("store", str(error))
    return ok("store", f"{folder}, {kept} {'run' if kept == 1 else 'runs'}")


def launcher(name: str) -> Line:
    """Whether what starts parties is installed."""
    try:
        find_launcher(name)
    except PlanError as error:
        return to_do("launcher", str(error))
    if name == "ray" and find_spec("ray") is None:
        return to_do("launcher", "Ray is not installed here. Install Conclave again: pip install conclave-distill")
    return ok("launcher", f"{name} is installed")


def versions() -> Line:
    """The versions of Conclave, of its protocol and of Python here."""
    here = f"Conclave {software_version()}, protocol {PROTOCOL_VERSION}, Python {sys.version.split()[0]}"
    return ok("versions", here)
