"""What this process holds in memory is its own: no other of the same user may read it, and none of it is dumped."""

import ctypes
import logging
import sys
from typing import Final

log = logging.getLogger("conclave.party")

_PR_SET_DUMPABLE: Final = 4


def keep_private() -> None:
    """From now on no process of this user may attach to this one or read its memory, and a crash leaves no core file.

    On Linux alone, where root still may. A process that is started from here says so for itself: a new program begins
    as one that may be dumped.
    """
    if sys.platform == "linux" and ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        log.warning("this system does not keep this process' memory from others of the same user")
