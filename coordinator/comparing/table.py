"""Shows a comparison: as a table for a terminal or a page, and as a picture."""

from pathlib import Path
from typing import TYPE_CHECKING

from aggregation.mechanisms.mechanism import HEURISTIC
from coordinator.comparing.comparison import Cell, Comparison
from coordinator.pricing.release import rounded_up
from coordinator.store.private_files import close_to_others, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis


def rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """The headings, and one row for each method: the view's metric at each epsilon with its spread; the other metrics
    at the largest epsilon; the epsilon that the paper's formula claims there.
    """
    view, largest = comparison.view, comparison.epsilons[-1]
    shown = [*view.columns, *((name, name) for name in _others(comparison))]
    heads = ["method", *(f"epsilon {epsilon:g}" for epsilon in comparison.epsilons)]
    heads += [f"{label} at {largest:g}" for _, label in shown] + (["paper's claim"] if view.claims else [])
    table = []
    for method in comparison.methods:
        cells = [method.shown]
        cells += [_cell(comparison, method.name, epsilon) for epsilon in comparison.epsilons]
        for metric, _ in shown:
            spread = comparison.spread(method.name, largest, metric)
            cells.append("-" if spread is None else f"{spread[0]:.3f}")
        if view.claims:
            claims = [cell.claimed for cell in comparison.of(method.name, largest) if cell.claimed is not None]
            cells.append(f"{claims[0]:.2f}" if claims else "-")
        table.append(cells)
    return heads, table


def markdown(comparison: Comparison) -> str:
    """The table as Markdown, with the data that it was made from and the total cost."""
    heads, table = rows(comparison)
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([*lines, "", *summary(comparison), ""])


def summary(comparison: Comparison) -> list[str]:
    """The lines below the table."""
    plan = comparison.plan
    lines = [
        comparison.view.about(plan, len(comparison.seeds)),
    ]
    if comparison.missing:
        there = len(comparison.cells)
        lines.insert(
            0,
            f"Not complete: {there} of {there + comparison.missing} cells are there, and means are over the seeds that "
            "are. Run it again to go on.",
        )
    if comparison.total is not None:
        lines.append(
            f"All private cells together cost epsilon {rounded_up(comparison.total.epsilon)} at delta "
            f"{plan.privacy.delta:g}{_counted_in(comparison)}"
        )
    if any(method.heuristic for method in comparison.methods):
        lines.append("No proof covers the rows that say so: they cost no epsilon, because they have none.")
    if comparison.open:
        lines.append("Beside them stands a row without privacy: of this folder as a whole nothing is guaranteed.")
    if plan.privacy.insecure_reproducible_noise:
        lines.append("The noise can be reproduced from the plan's seed: no guarantee holds, every epsilon is nominal.")
    return lines


def _counted_in(comparison: Comparison) -> str:
    """Name the cells of earlier comparisons that the total counts, row by row."""
    private = [cell for cell in comparison.earlier if cell.event is not None]
    if not private:
        return "."
    rows: dict[str, list[Cell]] = {}
    for cell in private:
        rows.setdefault(cell.method, []).append(cell)
    named = []
    for method, cells in rows.items():
        epsilons = ", ".join(f"{each:g}" for each in sorted({cell.epsilon for cell in cells if cell.epsilon}))
        seeds = ", ".join(str(seed) for seed in sorted({cell.seed for cell in cells}))
        named.append(f"{method} at epsilon {epsilons} (seed{'s' if ',' in seeds else ''} {seeds})")
    count = "1 cell" if len(private) == 1 else f"{len(private)} cells"
    return f", with {count} of earlier comparisons in this folder: {'; '.join(named)}."


def keep(comparison: Comparison) -> None:
    """Keep the table and the picture in the comparison's folder."""
    write_whole(comparison.folder / "table.md", markdown(comparison).encode())
    draw(comparison, comparison.folder)
    close_to_others(comparison.folder)


def draw(comparison: Comparison, folder: Path) -> tuple[Path, Path]:
    """Draw the view's metric as PNG and SVG in `folder`; returns both paths.

    With several epsilons each method is a line over epsilon. With one epsilon each method is a row that shows its
    seeds, their mean and their spread.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    plan = comparison.plan
    unit = "user" if plan.privacy.unit == "user" else plan.privacy.record
    about = f"(delta {plan.privacy.delta:g}, unit: one {unit})" if plan.privacy.guarantee else HEURISTIC
    alone = len(comparison.epsilons) == 1
    height = max(2.0, 1.0 + 0.36 * len(comparison.methods)) if alone else 5.2
    figure, axes = pyplot.subplots(figsize=(8.5, height), layout="constrained")
    (_rows if alone else _lines)(comparison, axes, about)
    paths = folder / "comparison.png", folder / "comparison.svg"
    with matplotlib.rc_context({"svg.hashsalt": "conclave"}):  # the same measures are the same bytes
        for path in paths:
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
            path.chmod(0o600)
    pyplot.close(figure)
    return paths


def _lines(comparison: Comparison, axes: "Axes", about: str) -> None:
    epsilons, view = comparison.epsilons, comparison.view
    for number, method in enumerate(comparison.methods):
        colour, marker = f"C{number % 10}", "os^D"[number // 10 % 4]
        spreads = [comparison.spread(method.name, epsilon, view.metric) for epsilon in epsilons]
        found = [(e, s) for e, s in zip(epsilons, spreads, strict=True) if s is not None]
        points = [(epsilon, each) for epsilon, each in found if view.worst is None or each[0] < view.worst]
        if not points:
            axes.plot([], [], color=colour, marker=marker, label=f"{method.shown} (off the scale)")
            continue
        places, means, errors = [e for e, _ in points], [s[0] for _, s in points], [s[1] for _, s in points]
        plain = not method.private or method.plain
        axes.errorbar(
            places,
            means,
            yerr=errors,
            label=method.shown,
            color=colour,
            capsize=3,
            linestyle="--" if plain else "-",
            marker="" if plain else marker,
        )
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    if view.logarithmic:
        axes.set_yscale("log")
        _ticks(axes.yaxis)
    axes.minorticks_off()
    axes.set_xlabel(f"epsilon {about}")
    axes.set_ylabel(view.axis)
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small")


def _rows(comparison: Comparison, axes: "Axes", about: str) -> None:
    (epsilon,), view = comparison.epsilons, comparison.view
    labels = []
    for place, method in enumerate(comparison.methods):
        spread = comparison.spread(method.name, epsilon, view.metric)
        off = spread is not None and view.worst is not None and spread[0] >= view.worst
        labels.append(f"{method.shown} (off the scale)" if off else method.shown)
        if spread is None or off:
            continue
        colour = "C7" if not method.private or method.plain or method.leaks else "C0"
        seeds = [cell.metrics.get(view.metric) for cell in comparison.of(method.name, epsilon)]
        values = [each for each in seeds if each is not None]
        axes.plot(values, [place] * len(values), ".", color=colour, alpha=0.4)
        axes.errorbar([spread[0]], [place], xerr=[spread[1]], color=colour, capsize=3, marker="o")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    if view.logarithmic:
        axes.set_xscale("log")
        _ticks(axes.xaxis)
        axes.minorticks_off()
    axes.set_xlabel(f"{view.axis}, at epsilon {epsilon:g}\n{about}\ngrey: to measure others by, or no guarantee")
    axes.grid(alpha=0.3)


def _ticks(axis: "Axis") -> None:
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    axis.set_major_locator(LogLocator(base=10, subs=(1, 1.5, 2, 2.5, 3, 4, 5, 7)))
    axis.set_major_formatter(FormatStrFormatter("%.0f"))


def _cell(comparison: Comparison, method: str, epsilon: float) -> str:
    view = comparison.view
    spread = comparison.spread(method, epsilon, view.metric)
    if spread is None:
        return "-"
    bases = [comparison.spread(each.name, epsilon, view.metric) for each in comparison.methods if not each.private]
    means = [base[0] for base in bases if base is not None]
    deviation = spread[1] if len(comparison.seeds) > 1 else None
    return view.shown(spread[0], deviation, view.best(means) if means else None)


def _others(comparison: Comparison) -> list[str]:
    """Metrics that the view does not name."""
    named = {comparison.view.metric, *(name for name, _ in comparison.view.columns)}
    return sorted({name for cell in comparison.cells for name in cell.metrics} - named)
