"""Objects that installed packages bring under a name: entry points of one group, loaded at their first use."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Installed(Generic[Value]):
    """The entry points of a group.

    word: what each is called in a sentence. kind: the class of each. error: made of a sentence and raised, where two
    packages give one name to different objects, and where an object cannot be loaded or is of another class.
    """

    group: str
    word: str
    kind: type[Value]
    error: Callable[[str], Exception]

    def points(self) -> Mapping[str, EntryPoint]:
        """Entry points by name, none of them loaded."""
        return _points(self, tuple(sys.path))

    def find(self, name: str) -> Value | None:
        """The object with that name; None where none is installed."""
        point = self.points().get(name)
        return None if point is None else _loaded(self, point)


@cache
def _points(installed: Installed[Value], path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Looked up once per search path, because that reads a file of every installed package."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=installed.group):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise installed.error(
                f"two installed packages bring a {installed.word} {point.name}: {other.value} and {point.value}. "
                "Uninstall one."
            )
    return MappingProxyType(found)


@cache
def _loaded(installed: Installed[Value], point: EntryPoint) -> Value:
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise installed.error(
            f"the {installed.word} {point.name} is installed as {point.value}, which cannot be loaded: {error}. "
            "Install its package again."
        ) from error
    if not isinstance(found, installed.kind):
        raise installed.error(
            f"the {installed.word} {point.name} is installed as {point.value}, which is no "
            f"{installed.kind.__module__}.{installed.kind.__name__}. Tell whoever made its package."
        )
    return found
