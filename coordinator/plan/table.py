"""The base of a plan's tables, which knows which keys are only for people and which name a place on this machine."""

from typing import Any, ClassVar

from coordinator.plan.named import named
from protos.console.settings import Settings


class Table(Settings):
    """A table of a plan. PLACES: keys that may hold a path. FOR_PEOPLE: keys that do not affect a run. OF_MACHINE: keys
    that say what a machine computes with, which affects a run's last digits and its time. LATER: keys that plans of
    before do not have, which bind parties to nothing where they are not given.
    """

    PLACES: ClassVar[tuple[str, ...]] = ()
    FOR_PEOPLE: ClassVar[tuple[str, ...]] = ()
    OF_MACHINE: ClassVar[tuple[str, ...]] = ()
    LATER: ClassVar[tuple[str, ...]] = ()


def told(table: Settings, content: dict[str, Any], *, places: bool) -> None:
    """Remove from a table's content, and from all tables in it, the keys for people and of the machine, later keys that
    are not given and, unless `places`, the paths.

    content: the table as JSON values, which may lack keys or hold values in another form.
    """
    if isinstance(table, Table):
        for key in (*table.FOR_PEOPLE, *table.OF_MACHINE):
            content.pop(key, None)
        for key in table.LATER:
            if not content.get(key):
                content.pop(key, None)
        for key in table.PLACES:
            if not places and isinstance(content.get(key), str):
                content[key] = named(content[key])
    for name in type(table).model_fields:
        values, contents = getattr(table, name), content.get(name)
        if not isinstance(values, list):
            values, contents = [values], [contents]
        for value, inner in zip(values, contents or (), strict=False):
            if isinstance(value, Settings) and isinstance(inner, dict):
                told(value, inner, places=places)
