"""A plan of this system."""

from typing import Annotated

from pydantic import Field

from coordinator.plan.plan import Plan
from coordinator.plan.table import Table


class TallyTable(Table):
    """`[tally]`: the words, and the L2 norm of one unit's counts of them."""

    words: Annotated[list[str], Field(min_length=2, max_length=50)]
    clip: Annotated[float, Field(gt=0)] = 5.0


class TallyPlan(Plan):
    """A plan whose parties count a few words."""

    tally: TallyTable

    def _check_recipe(self) -> None:
        if len(set(self.tally.words)) < len(self.tally.words):
            raise ValueError("[tally] words has one twice. Name each once.")
