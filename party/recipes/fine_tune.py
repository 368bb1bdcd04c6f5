"""Training in clear in a simulation's own process; no party is asked for anything."""

from typing import Final

from party.recipes.recipe import Recipe

RECIPE: Final = Recipe(())
