"""A plan of this recipe."""

from typing import Annotated

from pydantic import Field

from coordinator.plan.plan import Plan
from coordinator.plan.table import Table


class NearWordsTable(Table):
    """`[near_words]`: the words, public; how near each other they stand; and in how many pairs a unit may count."""

    words: Annotated[list[str], Field(min_length=2, max_length=2000)]
    window: Annotated[int, Field(ge=1, le=100)] = 5
    most_pairs: Annotated[int, Field(ge=1, le=100_000)] = 20


class NearWordsPlan(Plan):
    """A plan whose parties say in how many of their documents two words stand near each other."""

    near_words: NearWordsTable

    def _check_recipe(self) -> None:
        words = self.near_words.words
        if len(set(words)) < len(words):
            raise ValueError("[near_words] words has one twice. Name each once.")
        if odd := [word for word in words if word != word.lower() or not word.strip()]:
            raise ValueError(f'[near_words] words: "{odd[0]}" is never found: texts are read in small letters.')
