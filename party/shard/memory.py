"""Keeps what was made from a shard, for later requests for the same thing in one process.

A node's training process does one job and ends. Parties that are simulated in one process do many on the same text, or
with the same model.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

Made = TypeVar("Made")


class Memory:
    """Values by their kind and by what they were made from. Memory: all of them, until they are forgotten."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Hashable], Any] = {}

    def once(self, what: str, of: Hashable, make: Callable[[], Made]) -> Made:
        """The result of `make`, which is called once. of: everything that the result depends on. Raises as `make`."""
        if (what, of) not in self._kept:
            self._kept[what, of] = make()
        made: Made = self._kept[what, of]
        return made

    def has(self, what: str, of: Hashable) -> bool:
        """Whether it was made, and is kept."""
        return (what, of) in self._kept

    def last(self, what: str, of: Hashable, make: Callable[[], Made]) -> Made:
        """The same; of this kind, only the value that was asked for last is kept. Memory: one value of it."""
        if (what, of) not in self._kept:
            self.forget(what)
        return self.once(what, of, make)

    def each(
        self,
        what: str,
        of: Sequence[Hashable],
        make: Callable[[int], Made],
        told: Callable[[int, int], None] = lambda done, total: None,
    ) -> list[Made]:
        """The result of `make` for the place of each of `of`, which is called once for each that is not there yet.

        told: how many are there, of how many. Raises as `make`.
        """
        missing = {each: place for place, each in enumerate(of) if (what, each) not in self._kept}
        for done, (place, made) in enumerate(self._made(make, list(missing.values()))):
            self._kept[what, of[place]] = made
            told(len(of) - len(missing) + done + 1, len(of))
        return [self._kept[what, each] for each in of]

    def forget(self, *whats: str) -> None:
        """Forget all values of these kinds."""
        self._kept = {key: each for key, each in self._kept.items() if key[0] not in whats}

    def _made(self, make: Callable[[int], Made], places: Sequence[int]) -> Iterator[tuple[int, Made]]:
        """Every place with what `make` gives for it, one after the other, in any order."""
        for place in places:
            yield place, make(place)
