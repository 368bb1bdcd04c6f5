"""A comparison as people look at it: a table for a terminal or a page, and a picture."""

from pathlib import Path

from coordinator.comparison import Comparison
from coordinator.terms import rounded_up

OFF_THE_SCALE = 1e4
"""Perplexity from which a student is worse than useless: five times worse than guessing among 2,000 words."""

_COLUMNS = (("wordsim", "WordSim"), ("analogies", "analogies"))


def rows(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Headings, and a row a method: perplexity at each epsilon, its spread, its ratio to the best without privacy; the
    other metrics at the largest epsilon; what the paper's formula would claim there.
    """
    largest = comparison.epsilons[-1]
    extra = [(name, name) for name in _probes(comparison)]
    shown = [*_COLUMNS, *extra]
    heads = ["method", *(f"epsilon {epsilon:g}" for epsilon in comparison.epsilons)]
    heads += [f"{label} at {largest:g}" for _, label in shown] + ["paper's claim"]
    table = []
    for method in comparison.methods:
        cells = [method.label]
        cells += [_perplexity(comparison, method.name, epsilon) for epsilon in comparison.epsilons]
        for metric, _ in shown:
            spread = comparison.spread(method.name, largest, metric)
            cells.append("-" if spread is None else f"{spread[0]:.3f}")
        claims = [cell.claimed for cell in comparison.of(method.name, largest) if cell.claimed is not None]
        cells.append(f"{claims[0]:.2f}" if claims else "-")
        table.append(cells)
    return heads, table


def markdown(comparison: Comparison) -> str:
    """The table as Markdown, with what it was made from and what it all cost."""
    heads, table = rows(comparison)
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(row)} |" for row in table]
    return "\n".join([*lines, "", *summary(comparison), ""])


def summary(comparison: Comparison) -> list[str]:
    """What is below the table."""
    plan, seeds = comparison.plan, len(comparison.seeds)
    unit = "user" if plan.privacy.unit == "user" else plan.privacy.record
    lines = [
        f"Context perplexity on public held-out text, mean and spread over {seeds} seed{'s' if seeds > 1 else ''}, and "
        f"its ratio to the best row without privacy; unit: one {unit}; delta {plan.privacy.delta:g}; "
        f"{plan.vocabulary.size:,} words.",
        f"All private cells together cost epsilon {rounded_up(comparison.total.epsilon)} at delta "
        f"{plan.privacy.delta:g}.",
    ]
    if comparison.open:
        lines.append("Beside them stands a row without privacy: of this folder as a whole nothing is guaranteed.")
    if plan.privacy.insecure_reproducible_noise:
        lines.append("The noise can be reproduced from the plan's seed: no guarantee holds, every epsilon is nominal.")
    return lines


def draw(comparison: Comparison, folder: Path) -> tuple[Path, Path]:
    """Perplexity over epsilon, a line a method, as PNG and SVG in `folder`; returns both paths."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.5, 5.2), layout="constrained")
    epsilons = comparison.epsilons
    for number, method in enumerate(comparison.methods):
        spreads = [comparison.spread(method.name, epsilon, "perplexity") for epsilon in epsilons]
        found = [(e, s) for e, s in zip(epsilons, spreads, strict=True) if s is not None]
        points = [(epsilon, each) for epsilon, each in found if each[0] < OFF_THE_SCALE]
        if not points:
            axes.plot([], [], color=f"C{number % 10}", label=f"{method.label} (off the scale)")
            continue
        places, means, errors = [e for e, _ in points], [s[0] for _, s in points], [s[1] for _, s in points]
        plain = not method.private or method.name == "unigram"
        axes.errorbar(
            places,
            means,
            yerr=errors,
            label=method.label,
            color=f"C{number % 10}",
            capsize=3,
            linestyle="--" if plain else "-",
            marker="" if plain else "o",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(base=10, subs=(1, 1.5, 2, 2.5, 3, 4, 5, 7)))
    axes.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%.0f"))
    unit = "user" if comparison.plan.privacy.unit == "user" else comparison.plan.privacy.record
    axes.set_xlabel(f"epsilon (delta {comparison.plan.privacy.delta:g}, unit: one {unit})")
    axes.set_ylabel("context perplexity, lower is better")
    axes.grid(alpha=0.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize="small")
    paths = folder / "comparison.png", folder / "comparison.svg"
    for path in paths:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)
    return paths


def _perplexity(comparison: Comparison, method: str, epsilon: float) -> str:
    spread = comparison.spread(method, epsilon, "perplexity")
    if spread is None:
        return "-"
    mean, deviation = spread
    if mean >= OFF_THE_SCALE:
        return f"{mean:.0e}"
    said = f"{mean:.1f} ± {deviation:.1f}" if len(comparison.seeds) > 1 else f"{mean:.1f}"
    bases = [comparison.spread(each.name, epsilon, "perplexity") for each in comparison.methods if not each.private]
    best = min((base[0] for base in bases if base is not None), default=None)
    return said if best is None else f"{said} ({mean / best:.2f})"


def _probes(comparison: Comparison) -> list[str]:
    found = {name for cell in comparison.cells for name in cell.metrics} - {"perplexity", "wordsim", "analogies"}
    return sorted(found)
