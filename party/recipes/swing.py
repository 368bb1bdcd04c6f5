"""How far the parties' language models are from a public one at public tokens, under noise: swing distillation."""

from typing import Final

from party.recipes.recipe import Kind, Recipe, part

RECIPE: Final = Recipe(({Kind.HIDDEN: part("language_teachers")},))
