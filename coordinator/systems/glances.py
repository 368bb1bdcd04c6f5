"""What is said of the installed systems before one is loaded: loading them imports torch, and takes seconds.

A system says it in a file `about.toml` of its package, which is read without importing the package. A system without
that file, as another package may bring, is loaded.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Final

GROUP: Final = "conclave.systems"
_FILE: Final = "about.toml"


@dataclass(frozen=True, slots=True)
class Glance:
    """A system at a glance. about: what its student is, in words that stand after "the parties taught". first: whether
    its plan is the one to start from where no system is named. alone: whether it trains without parties.
    """

    about: str | None
    first: bool = False
    alone: bool = False


@cache
def glance(package: str) -> Glance | None:
    """What a system's package says in `about.toml`; None without such a file, and for one that cannot be read.

    Only the package's parents are imported.
    """
    try:
        spec = find_spec(package)
    except ModuleNotFoundError:
        return None
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / _FILE
        if file.is_file():
            try:
                return Glance(**tomllib.loads(file.read_text(encoding="utf-8")))
            except (TypeError, ValueError):
                return None
    return None


def about(package: str) -> str | None:
    """What a system's student is, as its package says it."""
    found = glance(package)
    return None if found is None else found.about


def ordered(points: Mapping[str, EntryPoint]) -> list[str]:
    """Systems' names in alphabetical order; those of other packages come last."""
    return sorted(points, key=lambda name: (_foreign(points[name]), name.replace("_", "")))


def _foreign(point: EntryPoint) -> bool:
    return point.dist is None or point.dist.name != "conclave-distill"
