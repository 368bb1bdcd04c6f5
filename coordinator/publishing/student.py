"""A student as it is published: whatever a system learned, measured."""

from pathlib import Path
from typing import Any, Protocol

from coordinator.publishing.report import Statement


class Student(Protocol):
    """What was learned, measured and ready to be published.

    metrics: what was measured on public data, JSON values. neighbours: of embeddings, the nearest words of a few.
    claimed: the epsilon that the paper's own formula gives for the same noise, None where it speaks of other releases.
    """

    @property
    def metrics(self) -> dict[str, Any]: ...

    @property
    def neighbours(self) -> dict[str, list[str]]: ...

    @property
    def claimed(self) -> float | None: ...

    def write(self, folder: Path) -> None:
        """Write the model into a folder that is made for it, as other libraries read it. Raises OSError."""

    def card(self, statement: Statement) -> str:
        """The model card, Markdown with its front matter: what it is, how to use it, and the promise in full."""
        ...
