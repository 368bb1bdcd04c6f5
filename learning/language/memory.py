"""Blocks of memory that a loop frees and needs again: glibc keeps them meanwhile, and does not ask the system anew.

The logits of a micro-batch are 67 MB at 2,048 tokens of a vocabulary of 8,192, and a step makes several arrays of that
size. glibc maps every block above 32 MiB on its own, gives it back as soon as it is freed, and the next one comes by a
page fault every 4 KiB. Writing, learning and measuring take 0.74 of the time where it does not
(docs/results/distildp.md).
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MAPPED_ABOVE: Final = -3
"""Numbers of settings, from glibc's malloc.h."""
_KEPT: Final = {_MAPPED_ABOVE: 256 << 20, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 64 << 20}
"""Larger blocks are mapped on their own as before, so that little lies free between them."""
_USUAL: Final = {_MAPPED_ABOVE: 32 << 20, _TRIM_THRESHOLD: 64 << 20, _TOP_PAD: 0}
"""glibc's own values, as they are once a block of 32 MiB has been freed."""
_LOCK: Final = threading.Lock()
_within = 0


@contextmanager
def freed_is_kept() -> Iterator[None]:
    """Keep what is freed for what is made next; at the end of the outermost one it goes back to the system.

    It holds for the whole process, and helps the work of its main thread. Nothing is changed where the allocator is not
    glibc's, or where the environment has settings of it (MALLOC_...), as that of a party's training has.

    Memory: as much as the loop held at most, and what lies free between blocks of other sizes, until the end.
    """
    global _within
    libc = _glibc()
    if libc is None:
        yield
        return
    with _LOCK:
        _within += 1
        if _within == 1:
            _set(libc, _KEPT)
    try:
        yield
    finally:
        with _LOCK:
            _within -= 1
            if not _within:
                _set(libc, _USUAL)
                libc.malloc_trim(0)


def _set(libc: ctypes.CDLL, values: dict[int, int]) -> None:
    for number, value in values.items():
        libc.mallopt(number, value)


def _glibc() -> ctypes.CDLL | None:
    """The process's C library, if it is glibc and nobody has set its allocator."""
    if any(name.startswith("MALLOC_") for name in os.environ):
        return None
    try:
        libc = ctypes.CDLL(None)
        libc.gnu_get_libc_version, libc.mallopt, libc.malloc_trim  # noqa: B018 - are they there?
    except (OSError, TypeError, AttributeError):
        return None
    return libc
