"""Counts of tokens and of control codes; and a language model, trained by all parties in steps or by each alone."""

from typing import Final

from party.recipes.recipe import LANGUAGE, LANGUAGE_STEP, Form, Kind, Recipe, part

_COUNTED: Final[Form] = {Kind.COUNTS: part("tokens", "codes", most=2)}

RECIPE: Final = Recipe(
    (
        {**_COUNTED, Kind.STEPS: part(LANGUAGE_STEP)},
        {**_COUNTED, Kind.WEIGHTS: part(LANGUAGE)},
    ),
    coded=True,
)
