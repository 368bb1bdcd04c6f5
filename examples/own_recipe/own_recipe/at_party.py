"""What a plan of this recipe may ask of a party: one sum under our mechanism, of word pairs that the party counts."""

from own_recipe.mechanism import PresenceMechanism
from party.recipes.recipe import Recipe, outside, part

RECIPE = Recipe(({outside(PresenceMechanism.kind): part("cooccurrence")},))
