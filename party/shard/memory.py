"""What was made of a shard, kept for whoever asks for the very same again in one process.

A node's training process does one job and ends; parties that are simulated in one process do many on the same text.
"""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

Made = TypeVar("Made")


class Memory:
    """Things by what they are and what they were made from. Memory: all of them, until they are forgotten."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Hashable], Any] = {}

    def once(self, what: str, of: Hashable, make: Callable[[], Made]) -> Made:
        """What `make` gave when it was first asked for. of: all that it depends on. Raises as `make`."""
        if (what, of) not in self._kept:
            self._kept[what, of] = make()
        made: Made = self._kept[what, of]
        return made

    def forget(self, *whats: str) -> None:
        """Keep nothing any longer that is one of these."""
        self._kept = {key: each for key, each in self._kept.items() if key[0] not in whats}
