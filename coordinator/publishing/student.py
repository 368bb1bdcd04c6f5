"""The interface of a student: what a system learned, measured and ready to be published."""

from pathlib import Path
from typing import Any, Protocol

from coordinator.publishing.report import Statement


class Student(Protocol):
    """A student, measured and ready to be published.

    metrics: measurements on public data, as JSON values. neighbours: for embeddings, the nearest words of a few.
    claimed: the epsilon that the paper's own formula gives for the same noise, None where it covers other releases.
    """

    @property
    def metrics(self) -> dict[str, Any]: ...

    @property
    def neighbours(self) -> dict[str, list[str]]: ...

    @property
    def claimed(self) -> float | None: ...

    def write(self, folder: Path) -> None:
        """Write the model into a new folder in the form that other libraries read. Raises OSError."""

    def card(self, statement: Statement) -> str:
        """The model card, Markdown with front matter: what the model is, how to use it, and the whole guarantee."""
        ...
