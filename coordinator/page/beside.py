"""What a comparison found without privacy, for the page of a run under the same plan."""

from pathlib import Path
from statistics import fmean

from coordinator.comparing.comparison import Cell, cells_in
from coordinator.page.account import Beside
from coordinator.plan.plan import Plan


def beside(folder: Path, plan: Plan) -> tuple[Beside, ...]:
    """The rows of a comparison that spend no epsilon, each with its metrics as means over its seeds.

    Raises `RunError` for a folder that holds no comparison, or that of another plan.
    """
    labels, cells = cells_in(folder, plan)
    rows: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.epsilon is None:
            rows.setdefault(cell.method, []).append(cell)
    return tuple(Beside(labels.get(name, name), _means(found), len(found)) for name, found in rows.items())


def _means(cells: list[Cell]) -> dict[str, float]:
    names = {name for cell in cells for name, value in cell.metrics.items() if _is_number(value)}
    values = {name: [cell.metrics[name] for cell in cells if _is_number(cell.metrics.get(name))] for name in names}
    return {name: fmean(found) for name, found in values.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
