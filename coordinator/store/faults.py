"""What a disk or a database that is full, closed or damaged does to a run, as a sentence."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from coordinator.errors import RunError
from coordinator.reading import shown

_ODD: Final = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""What making sense of a value of another kind may raise."""


@contextmanager
def made_in(folder: Path) -> Iterator[None]:
    """What the disk says of a folder that cannot be made, as a sentence."""
    try:
        yield
    except OSError as error:
        raise RunError(f"The folder {folder} cannot hold a run: {error.strerror}.") from None


@contextmanager
def written(path: Path, run: Callable[[], str] | None = None) -> Iterator[None]:
    """What SQLite says of a disk that is full, read-only or broken, as a sentence. run: its id, which goes on after."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the second where damage garbles what SQLite says
        raise RunError(f"{path} cannot be written: {shown(error)}. {go_on(run)}") from None


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
    """A sentence for what is read of a database and cannot be what was written.

    For reading alone: SQLite keeps no digest of a page, so a damaged one may give any value of any kind.
    """
    try:
        yield
    except (sqlite3.Error, *_ODD) as error:
        raise damaged(path, shown(error)) from None


def damaged(path: Path, why: str) -> RunError:
    """That what is kept of a run cannot be what was written."""
    return RunError(
        f"{path} cannot be read: what it keeps of a run is damaged ({why}). Restore it from a backup; what was "
        "charged at the parties stays charged."
    )
