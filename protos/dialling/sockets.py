"""Sockets of this machine alone, in a folder that only their owner can enter."""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

LONGEST_PATH: Final = 80
"""The most bytes in the path of such a folder: systems allow 103 to 107 for a socket's whole path."""
PREFIX: Final = "conclave-sockets-"
HELD: Final = "held"
"""The file in such a folder that is locked for as long as the folder is in use."""


@contextlib.contextmanager
def socket_folder() -> Iterator[Path]:
    """A new folder (0700) whose path is short enough for sockets; it is removed with all that is in it.

    Folders of processes that were killed are removed when the next is made.
    """
    place = Path(tempfile.gettempdir())
    if len(bytes(place)) + len(PREFIX) + 10 > LONGEST_PATH:
        place = Path("/tmp")
    _sweep(place)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (folder / HELD).touch(mode=0o600)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _sweep(place: Path) -> None:
    """Remove what processes of this user left that were killed: folders that were held, and are no longer locked."""
    for folder in place.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid() or not (folder / HELD).exists():
                continue
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(lock)
