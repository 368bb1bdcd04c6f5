"""Which files a submitted plan may name: those in the folder of public files, and nothing else on this machine.

A submitter is an attacker who wants to read, or be told about, other files. Where the code that reads a plan falls back
on the working directory, a home folder or the hub, the name is refused here before.
"""

import glob
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from coordinator.errors import PlanError
from coordinator.plan.table import Table
from learning.text.documentation import NAMES
from learning.text.hub import is_hub_name
from protos.console.mistakes import printable
from protos.console.settings import Settings

PACKAGED: Final = "all-MiniLM-L6-v2"
"""`learning.models.checkpoints.PACKAGED`, whose module imports torch."""
MOST_FILES: Final = 100_000
"""The most files that a name may stand for."""
LONGEST: Final = 1000

Place = tuple[str, str]
"""A key, as people write it, and the name that it has."""


def places(table: Settings, where: str = "") -> Iterator[Place]:
    """Every key of a plan that may name a file, with its value."""
    if isinstance(table, Table):
        for key in table.PLACES:
            if isinstance(value := getattr(table, key), str):
                yield f"{where} {key}".strip(), value
    for name in type(table).model_fields:
        value = getattr(table, name)
        inner = f"{where[:-1]}.{name}]" if where else f"[{name}]"
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, Settings):
                yield from places(each, inner)


def check_places(plan: Settings, public: Path, *, hub: bool) -> None:
    """Raises `PlanError` for a plan that names anything but public files, what is built in, and, where `hub`, names on
    the hub. public: the folder, absolute.
    """
    for key, name in places(plan):
        check_place(key, name, public, hub=hub)


def check_place(key: str, name: str, public: Path, *, hub: bool) -> None:
    """Raises `PlanError` unless this name is in the folder, whatever links lie in it, or built in, or the hub's."""
    said = f'{key} = "{printable(name[:200])}"'
    if len(name) > LONGEST or not name.isprintable():
        raise PlanError(
            f"{said} is no name of a file. Name one in the coordinator's folder of public files.", code="C109"
        )
    parts = Path(name).parts
    if name.startswith(("~", "/")) or ".." in parts or os.path.isabs(name):
        raise PlanError(
            f"{said} leaves the coordinator's folder of public files. Name a file in that folder, by its path in it.",
            code="C109",
        )
    if any(sign in name for sign in "*?["):
        found = [public / each for each in _matching(public, name, said)]
        if not found:
            raise PlanError(f"{said} matches no file in the coordinator's folder of public files.", code="C109")
        _check_inside(found, public, said)
        return
    if os.path.lexists(public / name):
        _check_inside([public / name], public, said)
        return
    if name in NAMES or name == PACKAGED:
        return
    if is_hub_name(name) and hub:
        return
    nearest = " Names on the hub are not taken here ([submit] hub)." if is_hub_name(name) else ""
    raise PlanError(
        f"{said} is no file in the coordinator's folder of public files. Ask who looks after the coordinator to put it "
        f"there.{nearest}",
        code="C109",
    )


def _matching(public: Path, pattern: str, said: str) -> list[str]:
    found = []
    for name in glob.iglob(pattern, root_dir=public, recursive=True):
        found.append(name)
        if len(found) > MOST_FILES:
            raise PlanError(f"{said} matches more than {MOST_FILES:,} files.", code="C109")
    return found


def _check_inside(found: list[Path], public: Path, said: str) -> None:
    """Raises `PlanError` where one of these, or anything below them, lies elsewhere once links are followed."""
    root = public.resolve()
    count = 0
    waiting = list(found)
    while waiting:
        path = waiting.pop()
        count += 1
        try:
            inside = path.resolve(strict=True).is_relative_to(root)
        except (OSError, RuntimeError):
            inside = False
        if not inside:
            raise PlanError(
                f"{said} leads out of the coordinator's folder of public files, by a link in it. Ask who looks after "
                "the coordinator to put the file itself there.",
                code="C109",
            )
        if path.is_dir():
            waiting += [Path(each.path) for each in os.scandir(path)]
        if count > MOST_FILES:
            raise PlanError(f"{said} holds more than {MOST_FILES:,} files.", code="C109")
