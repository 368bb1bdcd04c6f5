"""Shows the measurements of a student, one after another, as one bar."""

from dataclasses import dataclass, field
from typing import Final

from coordinator.progress.drawing import PERCENT
from coordinator.progress.progress import Progress, Silent

LABEL: Final = "measuring"
_PARTS: Final = 1000


@dataclass(slots=True)
class Measuring:
    """One bar of several measurements that are taken to last equally long.

    times: how many there are. `told` is given to each in turn; one that is not told of the end of counts for nothing.
    """

    progress: Progress = field(default_factory=Silent)
    times: int = 1
    _over: int = 0

    def told(self, done: int, total: int) -> None:
        """The measurement in hand has met so many texts of so many."""
        part = _PARTS * done // max(total, 1)
        self.progress.bar(LABEL, min(self._over * _PARTS + part, self.times * _PARTS), self.times * _PARTS, PERCENT)
        self._over += done >= total
