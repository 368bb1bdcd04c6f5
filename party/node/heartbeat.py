"""A sign of life that a node leaves in its party's folder, for a check on the same machine.

A node answers nobody but its federation's coordinator, and one that dials has no port: so a check on the node's own
machine looks at a file that the node's event loop keeps fresh. Nothing of a run or of the shard is in it.
"""

import asyncio
import contextlib
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from protos.processes import lives

FILE: Final = "heartbeat.json"
PERIOD: Final = 5.0
"""Seconds between two beats."""
STALE: Final = 60.0
"""Seconds after which a node that has not beaten hangs."""


class Beating(Protocol):
    """The parts of a node that its heartbeat tells of."""

    @property
    def draining(self) -> bool: ...

    @property
    def trouble(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Health:
    """Whether a node is up. state: "serving", "draining", "hanging" or "not running".

    seconds: since its last beat; None where it is not running. trouble: why a node that dials is not connected, empty
    where it is, and for one with a port.
    """

    up: bool
    state: str
    seconds: float | None = None
    trouble: str = ""


async def beat(node: Beating, home: Path, period: float = PERIOD) -> None:
    """Leave a sign of life again and again, until this is cancelled."""
    try:
        while True:
            said = {"process": os.getpid(), "at": time.monotonic(), "draining": node.draining, "trouble": node.trouble}
            with contextlib.suppress(OSError):  # a full disk shows in what matters more
                _write(home / FILE, json.dumps(said).encode())
            await asyncio.sleep(period)
    finally:
        with contextlib.suppress(OSError):
            (home / FILE).unlink(missing_ok=True)


def look(home: Path) -> Health:
    """The health of the node that serves from `home`, by its last beat. Asks and changes nothing."""
    try:
        said = json.loads((home / FILE).read_text("utf-8"))
        process, at, trouble = int(said["process"]), float(said["at"]), str(said["trouble"])
        draining = bool(said["draining"])
    except (OSError, ValueError, KeyError, TypeError):
        return Health(up=False, state="not running")
    if not lives(process):
        return Health(up=False, state="not running")
    seconds = round(time.monotonic() - at, 1)
    if not 0 <= seconds <= STALE:
        return Health(up=False, state="hanging", seconds=seconds, trouble=trouble)
    return Health(up=True, state="draining" if draining else "serving", seconds=seconds, trouble=trouble)


def shown(party: str, found: Health) -> str:
    """The health in a sentence or two."""
    if found.state == "not running":
        return f"party {party} is not running, or has not begun to serve."
    if not found.up:
        return f"party {party} hangs: its last sign of life is {found.seconds:.0f} s old. Start it again."
    return f"party {party} is {found.state}." + (f" {found.trouble}" if found.trouble else "")


def _write(path: Path, content: bytes) -> None:
    """Write a file whole, without waiting for the disk: a beat need not survive a power cut."""
    part = path.with_name(f".{path.name}.part")
    with os.fdopen(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)
    part.replace(path)
