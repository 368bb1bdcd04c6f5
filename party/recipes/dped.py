"""Word statistics, and noisy answers of teachers; or privately trained teachers, whose answers are free."""

from typing import Final

from party.recipes.recipe import Form, Kind, Recipe, part

_STATISTICS: Final[tuple[Form, ...]] = (
    {Kind.COUNTS: part("cooccurrence")},
    {Kind.MOMENTS: part("moments")},
)
_SAID: Final[tuple[Form, ...]] = (
    {Kind.VOTES_AND_HIDDEN: part("teachers")},
    {Kind.VOTES: part("teachers")},
    {Kind.CLEAR_VOTES: part("teachers"), Kind.HIDDEN: part("teachers")},
)
_PRIVATELY: Final[Form] = {Kind.TRAINING: part(), Kind.ANSWERS: part("teachers")}

RECIPE: Final = Recipe((*({**one, **other} for one in _STATISTICS for other in _SAID), _PRIVATELY))
