"""Errors of a full disk: how they are told from bugs, and what a caller is told."""

import errno
import sqlite3
from typing import Final

from protos.refusal import Reason, Refusal

_ERRORS: Final = frozenset({errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EFBIG})
_LEDGER_ERRORS: Final = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR})


def is_full(error: BaseException | None) -> bool:
    """Whether an error, or its cause, says that the disk is full, over its quota or read-only."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError) and error.errno in _ERRORS:
            return True
        # The low byte is the kind of error; the rest says where it occurred.
        if isinstance(error, sqlite3.Error) and getattr(error, "sqlite_errorcode", 0) & 0xFF in _LEDGER_ERRORS:
            return True
        error = error.__cause__ or error.__context__
    return False


def full(party: str) -> Refusal:
    """The refusal of anything that must be on disk before it leaves."""
    return Refusal(
        Reason.STORAGE,
        f"party {party} cannot write: its disk is full or read-only. What was stored is sound. Make room there, or "
        "mount it for writing, and ask again.",
    )
