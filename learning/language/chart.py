"""Perplexities side by side, as a picture. Nothing but matplotlib's own fonts and settings has a part in it."""

from collections.abc import Mapping
from pathlib import Path

from learning.classification.chart import page, save


def draw(values: Mapping[str, float], path: Path) -> None:
    """Draw a bar for each value, by its name, as PNG: perplexity of a token, lower is better."""
    with page(7.5, 0.8 + 0.6 * len(values)) as figure:
        axes = figure.subplots()
        names = list(values)[::-1]
        bars = axes.barh(names, [values[name] for name in names], color="#4c72b0")
        axes.bar_label(bars, fmt="{:,.0f}", padding=3)
        axes.set_xlabel("perplexity of a token on public held-out text, lower is better")
        axes.set_xlim(0, 1.15 * max(values.values()))
        axes.spines[["top", "right"]].set_visible(False)
        save(figure, path)
