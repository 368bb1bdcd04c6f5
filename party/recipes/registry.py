"""The recipes that are installed at this party, by name: entry points of the group `conclave.recipes`.

Any package may bring one; a party runs it when its administrator has installed the package and named the recipe in the
party's file.
"""

import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Final

from party.errors import PartyError
from party.recipes.recipe import Recipe

GROUP: Final = "conclave.recipes"


def recipe_names() -> tuple[str, ...]:
    """The names of the installed recipes in alphabetical order, without loading them. Raises `PartyError` as
    `find_recipe` does.
    """
    return tuple(sorted(_installed(tuple(sys.path))))


def find_recipe(name: str) -> Recipe | None:
    """The recipe with that name, loaded; None where it is not installed.

    Raises `PartyError` where two packages give one name to different recipes, or where the entry is not a recipe.
    """
    point = _installed(tuple(sys.path)).get(name)
    return None if point is None else _loaded(point)


@cache
def _installed(path: tuple[str, ...]) -> Mapping[str, EntryPoint]:
    """Entry points by name, looked up once per search path, because that reads a file of every installed package."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise PartyError(
                f"two installed packages bring a recipe {point.name}: {other.value} and {point.value}. Uninstall one."
            )
    return MappingProxyType(found)


@cache
def _loaded(point: EntryPoint) -> Recipe:
    try:
        recipe = point.load()
    except (ImportError, AttributeError) as error:
        raise PartyError(
            f"the recipe {point.name} is installed as {point.value}, which cannot be loaded: {error}. Install its "
            "package again."
        ) from error
    if not isinstance(recipe, Recipe):
        raise PartyError(
            f"the recipe {point.name} is installed as {point.value}, which is no party.recipes.recipe.Recipe. Tell "
            "whoever made its package."
        )
    return recipe
