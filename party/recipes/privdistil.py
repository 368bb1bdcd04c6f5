"""A domain classifier of each party, whose parameters leave or which scores public text; then a text model."""

from typing import Final

from party.recipes.recipe import DOMAIN, LABELS, MOST_ROUNDS, STEPS, Form, Kind, Recipe, part

_SCORED: Final[Form] = {Kind.TRAINING: part(), Kind.SCORES: part(DOMAIN)}

RECIPE: Final = Recipe(
    (
        {Kind.WEIGHTS: part(DOMAIN), **STEPS},
        {**_SCORED, **STEPS},
        {Kind.WEIGHTS: part(DOMAIN, LABELS, most=1 + MOST_ROUNDS)},
        {**_SCORED, Kind.WEIGHTS: part(LABELS, most=MOST_ROUNDS)},
    ),
    labelled=True,
)
