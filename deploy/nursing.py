"""A nursery for the parties on this machine: one process that imports for all of them (`party.tasks.nursery`)."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.embedded import short_folder, sweep
from party.errors import PartyError
from party.recipes.registry import find_recipe
from party.tasks.worker import training_environment

_SECONDS: Final = 5.0
_PREFIX: Final = "conclave-nursery-"


@contextmanager
def nursery(recipe: str) -> Iterator[Path | None]:
    """A nursery's socket; None where this system has none. It ends with the context, the thread, or this process.

    recipe: whose tasks are imported before anybody asks; empty for none. The settings of its libraries are those that
    Ray gives to a process that reserves no processor: one thread.
    """
    if sys.platform != "linux":
        yield None
        return
    place = short_folder()
    sweep(Path(place), _PREFIX)
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place)
    path = Path(folder, "socket")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(path))
            listener.listen(64)
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "party.tasks.nursery", str(listener.fileno()), *_tasks(recipe)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=training_environment({"OMP_NUM_THREADS": "1", **os.environ}),
                cwd="/",
                start_new_session=True,
                pass_fds=[listener.fileno()],
            )
        try:
            yield path
        finally:
            _end(process)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()  # at which it ends, unless it is importing
    try:
        process.wait(_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _tasks(recipe: str) -> list[str]:
    """The tasks of a recipe; none where it is not installed here, which its parties will say."""
    with contextlib.suppress(PartyError):
        found = find_recipe(recipe) if recipe else None
        forms = () if found is None else found.forms
        tasks = (task.partition(" ")[0] for form in forms for part in form.values() for task in sorted(part.tasks))
        return list(dict.fromkeys(tasks))
    return []
