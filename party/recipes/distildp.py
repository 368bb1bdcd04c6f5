"""Counts of tokens and of control codes; and a language model, trained by all parties in steps or by each alone.

One that each trains and keeps may write texts, and say what might stand in every token's place.
"""

from typing import Final

from party.recipes.recipe import LANGUAGE, LANGUAGE_STEP, Form, Kind, Recipe, part

_COUNTED: Final[Form] = {Kind.COUNTS: part("tokens", "codes", most=2)}

RECIPE: Final = Recipe(
    (
        {**_COUNTED, Kind.STEPS: part(LANGUAGE_STEP)},
        {**_COUNTED, Kind.WEIGHTS: part(LANGUAGE)},
        {**_COUNTED, Kind.TRAINING: part(), Kind.TEXTS: part(LANGUAGE), Kind.TARGETS: part("grading")},
    ),
    coded=True,
)
