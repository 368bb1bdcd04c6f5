"""What this system may ask of a party: one release of counts, given by one task."""

from party.recipes.recipe import Kind, Recipe, part

RECIPE = Recipe(({Kind.COUNTS: part("cooccurrence")},))
