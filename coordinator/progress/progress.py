"""What a run tells a person who follows it: parties, how far things are, and what goes on now."""

from collections.abc import Mapping
from typing import Protocol


class Progress(Protocol):
    """Is told by the run what happens; never asks anything back, never raises."""

    def say(self, line: str) -> None:
        """Print a line that stays on the screen."""
        ...

    def party(self, name: str, state: str) -> None:
        """Show a party's state in a word or two, for example `ready` or `counting 62%`."""
        ...

    def bar(self, label: str, done: int, total: int, note: str = "") -> None:
        """Show how far something is; the same label again moves the same bar."""
        ...

    def doing(self, what: str) -> None:
        """Name what goes on from now on, until something else is named; empty where nothing does."""
        ...

    def expect(self, stages: Mapping[str, float], whole: float | None) -> None:
        """How many seconds stages are expected to take, by name, and the run as a whole; None where nobody knows."""
        ...

    def close(self) -> None:
        """End the display."""
        ...


class Silent:
    """Shows nothing: for programs and notebooks that only want the result."""

    def say(self, line: str) -> None: ...

    def party(self, name: str, state: str) -> None: ...

    def bar(self, label: str, done: int, total: int, note: str = "") -> None: ...

    def doing(self, what: str) -> None: ...

    def expect(self, stages: Mapping[str, float], whole: float | None) -> None: ...

    def close(self) -> None: ...
