"""How good a classifier or a regression is, as a picture: what a published folder shows beside its model.

Nothing but matplotlib's own fonts and settings has a part in it: the same measures make the same bytes.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from learning.classification.metrics import BINS, ClassifierMeasures, RegressionMeasures
from learning.errors import DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

_WRITTEN: Final = 12
"""The largest number of classes for which the matrix shows its counts."""
_NAMED: Final = 30
"""The largest number of classes for which each is named; with more, only some are."""
_LONGEST, _HEAD, _TAIL = 18, 10, 7
"""The longest name that is written in full; of a longer one, how many letters of its beginning and end are kept."""
_DOTS: Final = 2000
"""The largest number of examples for which each is drawn as a dot."""


def draw(measures: ClassifierMeasures, names: Sequence[str], path: Path) -> None:
    """Draw the reliability diagram with each bin's examples, and the confusion matrix, as PNG.

    names: of the classes, in order. A name that the font cannot write, or a long one, is shortened or numbered.
    Raises `DataError` where the names are not those of the matrix.
    """
    if len(names) != len(measures.confusion):
        raise DataError(f"The matrix has {len(measures.confusion):,} classes, and {len(names):,} are named.")
    with page(12.5, 5.6) as figure:
        halves: Any = figure.subfigures(1, 2, width_ratios=[1, 1.15])
        left, right = halves
        curve, counts = left.subplots(2, 1, height_ratios=[4, 1], sharex=True)
        _reliability(curve, counts, measures)
        _confusion(right, measures, _shown(names))
        figure.suptitle(
            f"Accuracy {measures.accuracy:.1%}, macro F1 {measures.macro_f1:.3f}, expected calibration error "
            f"{measures.calibration:.3f}, on {_examples(measures.examples)}"
        )
        save(figure, path)


def draw_scores(
    said: NDArray[np.float64], truth: NDArray[np.float64], measures: RegressionMeasures, path: Path
) -> None:
    """Draw predicted scores over true scores [examples], both in the declared range, as PNG.

    Up to 2,000 examples each is a dot; more are counted in hexagons. Raises `DataError` for other shapes.
    """
    if said.shape != truth.shape or said.ndim != 1 or not said.size:
        raise DataError(f"A picture needs a score for each example: {len(said):,} scores said, {len(truth):,} true.")
    with page(7.2, 6.2) as figure:
        axes = figure.subplots()
        low, high = float(min(said.min(), truth.min())), float(max(said.max(), truth.max()))
        edge = (high - low or 1.0) * 0.04
        ends = (low - edge, high + edge)
        axes.plot(ends, ends, color="0.6", linestyle="--", linewidth=1, label="exact")
        if len(said) <= _DOTS:
            axes.scatter(truth, said, s=14, alpha=0.45, linewidths=0)
        else:
            cells = axes.hexbin(truth, said, gridsize=40, bins="log", mincnt=1, cmap="Blues", extent=(*ends, *ends))
            figure.colorbar(cells, ax=axes, label="examples")
        axes.set(xlim=ends, ylim=ends, aspect="equal", xlabel="true score", ylabel="score said")
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left")
        correlations = f"Pearson {_known(measures.pearson)}, Spearman {_known(measures.spearman)}"
        axes.set_title(f"{correlations}, RMSE {measures.error:.3g}, on {_examples(measures.examples)}", fontsize=11)
        save(figure, path)


def _reliability(curve: "Axes", counts: "Axes", measures: ClassifierMeasures) -> None:
    middles = np.array([(bin.low + bin.high) / 2 for bin in measures.reliability])
    width = 0.92 / BINS
    accuracy = np.array([bin.accuracy for bin in measures.reliability])
    confidence = np.array([bin.confidence for bin in measures.reliability])
    curve.bar(middles, accuracy, width, color="C0", label="share that is right")
    for middle, right, sure in zip(middles, accuracy, confidence, strict=True):
        curve.plot([middle - width / 2, middle + width / 2], [sure, sure], color="C3", linewidth=2)
        curve.plot([middle, middle], [right, sure], color="C3", linewidth=1)
    curve.plot([], [], color="C3", linewidth=2, label="mean confidence")
    curve.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
    curve.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="share", title="Reliability: is it right as often as it is sure?")
    curve.legend(loc="upper left", fontsize="small")
    curve.grid(alpha=0.3)
    examples = [bin.examples for bin in measures.reliability]
    counts.bar(middles, examples, width, color="0.55")
    for middle, each in zip(middles, examples, strict=True):
        counts.text(middle, each, _brief(each), ha="center", va="bottom", fontsize=7)
    counts.set(xlim=(0, 1), ylim=(0, max(examples) * 1.35), xlabel="confidence", ylabel="examples")
    counts.set_yticks([])


def _confusion(figure: "SubFigure", measures: ClassifierMeasures, names: list[str]) -> None:
    axes = figure.subplots()
    cells = np.array(measures.confusion, np.float64)
    rows = cells.sum(axis=1, keepdims=True)
    shares = np.divide(cells, rows, out=np.zeros_like(cells), where=rows > 0)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label="share of the true class", fraction=0.046, pad=0.03)
    size = len(names)
    places = np.arange(size) if size <= _NAMED else np.unique(np.linspace(0, size - 1, 10).astype(np.int64))
    named = [names[place] if size <= _NAMED else str(place + 1) for place in places]
    letters = max(map(len, named))
    steep = letters * size > 40
    small = 10 if size <= _WRITTEN else 7
    axes.set_xticks(
        places, named, rotation=45 if steep else 0, ha="right" if steep else "center", fontsize=small, parse_math=False
    )
    axes.set_yticks(places, named, fontsize=small, parse_math=False)
    axes.set(xlabel="predicted class", ylabel="true class", title="Confusion matrix")
    if size > _WRITTEN:
        return
    for (true, said), share in np.ndenumerate(shares):
        axes.text(
            said,
            true,
            f"{int(cells[true, said]):,}" if size <= 6 else _brief(int(cells[true, said])),
            ha="center",
            va="center",
            color="white" if share > 0.55 else "black",
            fontsize=11 if size <= 6 else 8,
        )


def _shown(names: Sequence[str]) -> list[str]:
    """Names as they stand at the axes: short, and numbered where the font lacks a letter of theirs."""
    from matplotlib.font_manager import findfont, get_font

    letters = get_font(findfont("DejaVu Sans")).get_charmap()
    shown = []
    for place, name in enumerate(names, 1):
        plain = " ".join(name.split())
        if not plain.isprintable() or any(ord(letter) not in letters for letter in plain):
            plain = f"class {place}"
        shown.append(plain if len(plain) <= _LONGEST else f"{plain[:_HEAD]}\u2026{plain[-_TAIL:]}")
    return shown


@contextmanager
def page(width: float, height: float) -> Iterator["Figure"]:
    """A figure under matplotlib's own settings, whatever this machine's file of them says; inches."""
    import matplotlib.style
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.style.context("default"):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def save(figure: "Figure", path: Path) -> None:
    without: Any = {"Software": None}
    figure.savefig(path, format="png", dpi=130, metadata=without)


def _brief(count: int) -> str:
    return f"{count:,}" if count < 10_000 else f"{count / 1000:,.0f}k"


def _examples(count: int) -> str:
    return f"{count:,} {'example' if count == 1 else 'examples'}"


def _known(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
