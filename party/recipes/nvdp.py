"""Noisy vectors of texts: each party releases one of each of its texts, with its label, as a data set; or, without a
guarantee, one noisy sequence.
"""

from typing import Final

from party.recipes.recipe import Kind, Recipe, part

RECIPE: Final = Recipe(({Kind.SAMPLES: part("samples")}, {Kind.SEQUENCES: part("samples")}), labelled=True)
