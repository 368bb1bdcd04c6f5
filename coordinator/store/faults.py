"""Error sentences for a disk or database that is full, closed or damaged."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from coordinator.errors import RunError
from coordinator.reading import shown

_ODD: Final = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""Errors that interpreting a value of an unexpected type may raise."""


@contextmanager
def made_in(folder: Path) -> Iterator[None]:
    """Report a folder that cannot be made as a `RunError` with a sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"The folder {folder} cannot hold a run: {error.strerror}.") from None


@contextmanager
def written(path: Path, run: Callable[[], str] | None = None) -> Iterator[None]:
    """Report an SQLite write that failed, on a disk that is full, read-only or broken, as a `RunError` with a sentence.

    run: the id of the run, which can be resumed afterwards.
    """
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the second where damage garbles SQLite's message
        code = "C301" if "full" in str(error) else "C302"
        raise RunError(f"{path} cannot be written: {shown(error)}. {go_on(run)}", code=code) from None


def go_on(run: Callable[[], str] | None) -> str:
    """What to do when the disk takes files again."""
    name = ""
    if run is not None:
        with suppress(RunError):
            name = f" {run()}"
    return (
        f"What was stored before is sound. Make room, or make it writable, and go on with `coordinator resume{name}`."
    )


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """Report a value that was read from a database and cannot be the one that was written, as a `RunError`.

    For reading only: SQLite keeps no digest of a page, so a damaged page may give any value of any type.
    """
    try:
        yield
    except (sqlite3.Error, *_ODD) as error:
        raise damaged(path, shown(error)) from None


def broken(path: Path, why: str) -> RunError:
    """The error for a file of a run that is not what was written."""
    return RunError(f"{shown(path, 300)} is damaged: {why}.", code="C802")


def damaged(path: Path, why: str) -> RunError:
    """The error for stored data of a run that cannot be what was written."""
    return RunError(
        f"{path} cannot be read: what it keeps of a run is damaged ({why}). Restore it from a backup; what was "
        "charged at the parties stays charged.",
        code="C802",
    )
