"""The machine that a run's driver is on."""

import socket
from pathlib import Path


def this_host() -> str:
    """This machine since its last start: its name, and an identifier of the start where the system gives one."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    try:
        return f"{socket.gethostname()} {boot.read_text().strip()}"
    except OSError:
        return socket.gethostname()
