"""Sockets of this machine alone, in a folder that only their owner can enter."""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LONGEST_PATH: Final = 80
"""The most bytes in the path of such a folder: systems allow 103 to 107 for a socket's whole path."""


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """A new folder (0700) whose path is short enough for sockets; it is removed with all that is in it."""
    folder = Path(tempfile.mkdtemp(prefix="conclave-"))
    if len(bytes(folder)) > LONGEST_PATH:
        folder.rmdir()
        folder = Path(tempfile.mkdtemp(prefix="conclave-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
