"""What the parties' language models say of given tokens: how far they are from a public one, under noise; or softened,
which is a heuristic. Swing distillation. The student may be trained on by each party alone, privately, where what is
said is under noise.
"""

from typing import Final

from party.recipes.recipe import LANGUAGE, Kind, Recipe, part

RECIPE: Final = Recipe(
    (
        {Kind.DIFFERENCES: part("language_teachers"), Kind.WEIGHTS: part(LANGUAGE)},
        {Kind.SOFTENED: part("language_teachers")},
    ),
)
