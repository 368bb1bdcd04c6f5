"""Processes of this machine, as one that died is told from one that lives."""

import os
import socket
from pathlib import Path


def this_host() -> str:
    """This machine since its last start: its name, and an identifier of the start where the system gives one."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{socket.gethostname()} {boot.read_text().strip()}"
    except OSError:
        return socket.gethostname()


def alive(process: int) -> bool:
    """Whether a process of this machine is there."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
