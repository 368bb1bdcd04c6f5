"""The page of a comparison: one picture, and a table whose rows can be sorted."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Final

from coordinator.comparing import table
from coordinator.comparing.comparison import Comparison
from coordinator.page import drawing
from coordinator.page.rendering import in_frame, rendered

_NUMBER: Final = re.compile(r"-?\d[\d,]*(\.\d+)?(e[+-]?\d+)?")


@dataclass(frozen=True, slots=True)
class CellShown:
    """A cell of the table: as it is written, and what rows are sorted by; empty where it has no number."""

    shown: str
    value: str


def page(found: Comparison) -> str:
    """The whole page of a comparison."""
    heads, rows = table.rows(found)
    return rendered(
        "comparison.html",
        script=True,
        name=found.plan.run.name,
        recipe=found.plan.run.recipe,
        says=table.summary(found),
        heads=heads,
        rows=[(method, [_cell(cell) for cell in row[1:]]) for method, row in zip(found.methods, rows, strict=True)],
        picture=_picture(found),
        epsilons=found.epsilons,
        axis=found.view.axis,
        software=version("conclave-distill"),
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def framed(found: Comparison) -> str:
    """The same for a notebook."""
    return in_frame(page(found), f"Comparison {found.plan.run.name}", script=True)


def _cell(cell: str) -> CellShown:
    number = _NUMBER.search(cell)
    return CellShown(cell, "" if number is None else number[0].replace(",", ""))


def _picture(found: Comparison) -> object:
    view, rows = found.view, []
    for method in found.methods:
        plain = not method.private or method.plain or method.leaks
        at = found.epsilons if method.private else found.epsilons[-1:]
        spreads = [(epsilon, found.spread(method.name, epsilon, view.metric)) for epsilon in at]
        values = [
            (epsilon if method.private else 0.0, *spread)
            for epsilon, spread in spreads
            if spread is not None and (view.worst is None or spread[0] < view.worst)
        ]
        rows.append((method.shown if values else f"{method.shown} (off the scale)", values, plain))
    return drawing.lines(rows, view.axis, f"{view.axis} of every method", logarithmic=view.logarithmic)
