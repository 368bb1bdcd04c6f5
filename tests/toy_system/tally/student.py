"""A share of each word, measured against public text."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coordinator.publishing.report import markdown


def error(shares, public) -> float:
    """The sum of absolute differences of shares [words], from 0 to 2."""
    return float(np.abs(np.asarray(shares) - public).sum())


@dataclass(frozen=True, slots=True)
class Student:
    """A `coordinator.publishing.student.Student`."""

    shares: dict[str, float]
    metrics: dict[str, float]
    claimed = None

    @classmethod
    def of(cls, words, shares, public):
        """The student, measured where there is public text."""
        metrics = {} if public is None else {"error": error(shares, public)}
        return cls(dict(zip(words, map(float, shares), strict=True)), metrics)

    @property
    def neighbours(self):
        return {}

    def write(self, folder: Path) -> None:
        (folder / "shares.json").write_text(json.dumps(self.shares))

    def card(self, statement) -> str:
        return f"# {statement.plan.run.name}\n\nShares of {len(self.shares)} words.\n\n{markdown(statement)}"
