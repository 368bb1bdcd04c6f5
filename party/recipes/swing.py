"""What the parties' language models say of given tokens: how far they are from a public one, under noise; or softened,
which is a heuristic. Swing distillation.
"""

from typing import Final

from party.recipes.recipe import Kind, Recipe, part

RECIPE: Final = Recipe(
    ({Kind.DIFFERENCES: part("language_teachers")}, {Kind.SOFTENED: part("language_teachers")}),
)
