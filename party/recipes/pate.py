"""Noisy votes of classifiers on disjoint units."""

from typing import Final

from party.recipes.recipe import Kind, Recipe, part

RECIPE: Final = Recipe(({Kind.VOTES: part("ensemble")},), labelled=True)
