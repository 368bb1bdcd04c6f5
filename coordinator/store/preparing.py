"""Runs that are being prepared and have no folder yet: each is announced by a file, so that `watch` finds it."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from coordinator.errors import RunError
from coordinator.store.machine import this_host
from coordinator.store.private_files import home, write_whole
from protos.processes import lives

_FOLDER: Final = "preparing"


@dataclass(frozen=True, slots=True)
class Announced:
    """A run that is being prepared. seconds: since that began."""

    run: str
    folder: str
    seconds: float


@contextmanager
def announced(run: str, folder: Path | None) -> Iterator[None]:
    """Announce a run while it is prepared. folder: where all of its files will be, if its user named one.

    An announcement is only for looking at: where it cannot be written, the run goes on without it.
    """
    place, written = home() / _FOLDER, None
    content = {"folder": "" if folder is None else str(folder), "host": this_host(), "process": os.getpid()}
    with suppress(OSError, RunError):
        written = write_whole(place / f"{run}.json", json.dumps(content | {"began": time.time()}).encode())
    try:
        yield
    finally:
        if written is not None:
            with suppress(OSError):
                written.unlink()


def announcement(wanted: str) -> Announced | None:
    """The run that is being prepared under this id, a unique beginning of it, or for this folder; None without one."""
    found = []
    for path in sorted((home() / _FOLDER).glob("*.json")):
        try:
            kept = json.loads(path.read_bytes())
            folder, began, here = str(kept["folder"]), float(kept["began"]), kept["host"] == this_host()
            gone = here and not lives(int(kept["process"]))
        except (OSError, ValueError, KeyError, TypeError):  # it was just removed, or is not ours
            continue
        if gone:  # its process was killed
            with suppress(OSError):
                path.unlink()
        elif path.stem.startswith(wanted) or (folder and folder == str(Path(wanted).absolute())):
            found.append(Announced(path.stem, folder, max(0.0, time.time() - began)))
    return found[0] if len(found) == 1 else None
