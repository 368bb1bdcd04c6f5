"""A text model: trained by all parties together in steps, or by each alone in rounds."""

from typing import Final

from party.recipes.recipe import LABELS, MOST_ROUNDS, STEPS, Kind, Recipe, part

RECIPE: Final = Recipe((STEPS, {Kind.WEIGHTS: part(LABELS, most=MOST_ROUNDS)}), labelled=True)
