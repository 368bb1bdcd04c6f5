"""What happens in a run, told to whoever keeps count of it: metrics, logs. Never text, answers, keys or losses."""

from typing import Protocol


class Observer(Protocol):
    """Told by the federation and the run what happened; never asks anything back, never raises."""

    def stage(self, name: str, state: str) -> None:
        """A stage of the run began ("began") or ended ("finished")."""
        ...

    def block(self, release: str, party: str, seconds: float, size: int) -> None:
        """A party's block came, so long after it was asked for, so many bytes."""
        ...

    def stored(self, release: str, done: int, total: int) -> None:
        """The sum of a block is on disk; so many of all are."""
        ...

    def retry(self, party: str, doing: str, why: str) -> None:
        """A call to a party failed and will be made again."""
        ...

    def lost(self, party: str, why: str) -> None:
        """A party was given up."""
        ...


class Unobserved:
    """Keeps nothing."""

    def stage(self, name: str, state: str) -> None: ...

    def block(self, release: str, party: str, seconds: float, size: int) -> None: ...

    def stored(self, release: str, done: int, total: int) -> None: ...

    def retry(self, party: str, doing: str, why: str) -> None: ...

    def lost(self, party: str, why: str) -> None: ...
