"""Keeps this process' memory private: no other process of the same user may read it, and it is never dumped."""

import ctypes
import logging
import sys
from typing import Final

log = logging.getLogger("conclave.party")

_PR_SET_DUMPABLE: Final = 4


def keep_private() -> None:
    """From now on no process of this user may attach to this one or read its memory, and a crash leaves no core file.

    Only on Linux, where root still may. A child process has to call this itself, since a new program starts as
    dumpable.
    """
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        log.warning("this system does not keep this process' memory from others of the same user")
