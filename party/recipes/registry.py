"""The recipes that are installed at this party, by name: entry points of the group `conclave.recipes`.

Any package may bring one; a party runs it when its administrator has installed the package and named the recipe in the
party's file.
"""

from functools import partial
from typing import Final

from party.errors import PartyError
from party.recipes.recipe import Recipe
from protos.installed import Installed

_RECIPES: Final = Installed("conclave.recipes", "recipe", Recipe, partial(PartyError, code="C106"))


def recipe_names() -> tuple[str, ...]:
    """The names of the installed recipes in alphabetical order, without loading them. Raises `PartyError` as
    `find_recipe` does.
    """
    return tuple(sorted(_RECIPES.points()))


def find_recipe(name: str) -> Recipe | None:
    """The recipe with that name, loaded; None where it is not installed.

    Raises `PartyError` where two packages give one name to different recipes, or where the entry is not a recipe.
    """
    return _RECIPES.find(name)
