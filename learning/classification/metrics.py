"""How good classifiers and regressions are on labelled public text. Measures may be published as they are."""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from learning.errors import DataError
from learning.text.labelled import ScoreRange

BINS: Final = 15
"""Bins of equal width that confidences fall into, as in Guo et al. 2017."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Examples whose confidence lies in [low, high): how many, their mean confidence, the share that is right."""

    low: float
    high: float
    examples: int
    confidence: float
    accuracy: float


@dataclass(frozen=True, slots=True)
class ClassifierMeasures:
    """How good a classifier is on labelled public text.

    accuracy: share right. macro_f1: mean over classes that occur or were predicted of 2 TP / (2 TP + FP + FN). recall:
    of each class in order, None of one that does not occur. confusion: [true class, predicted class], counts.
    calibration: expected calibration error, the mean over examples of |confidence - accuracy| of their bin, in `BINS`
    bins of equal width. reliability: the bins that hold an example, for the curve.
    Source: the calibration error is that of Guo et al. 2017, equation 3.
    """

    examples: int
    accuracy: float
    macro_f1: float
    recall: tuple[float | None, ...]
    confusion: tuple[tuple[int, ...], ...]
    calibration: float
    reliability: tuple[Bin, ...]


@dataclass(frozen=True, slots=True)
class RegressionMeasures:
    """How good a regression is on labelled public text.

    pearson, spearman: correlations of predicted and true scores, None under three examples or where either are all
    equal. error: the root of the mean square error, in the scores' own unit.
    """

    examples: int
    pearson: float | None
    spearman: float | None
    error: float


def measure_classifier(chances: NDArray[np.float64], truth: NDArray[np.int64]) -> ClassifierMeasures:
    """Measure probabilities [examples, classes] against true classes [examples].

    Raises `DataError` for no example, other shapes, a class that the model does not have, or test text of one class
    only, which would call a model good that says nothing else.
    """
    count, classes = chances.shape
    if count == 0 or truth.shape != (count,) or truth.min() < 0 or truth.max() >= classes:
        raise DataError(f"A test needs a label of the map for each example: {count:,} examples, {len(truth):,} labels.")
    if (truth == truth[0]).all():
        raise DataError(
            "The test text is of one class only and tells nothing of a classifier. Give text of two or more."
        )
    said = chances.argmax(axis=1)
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (truth, said), 1)
    right, true, predicted = np.diag(confusion), confusion.sum(axis=1), confusion.sum(axis=0)
    seen = true + predicted > 0
    bins = _bins(chances.max(axis=1), said == truth)
    return ClassifierMeasures(
        examples=count,
        accuracy=float(right.sum() / count),
        macro_f1=float((2 * right[seen] / (true + predicted)[seen]).mean()),
        recall=tuple(float(r / t) if t else None for r, t in zip(right, true, strict=True)),
        confusion=tuple(tuple(int(cell) for cell in row) for row in confusion),
        calibration=sum(bin.examples * abs(bin.confidence - bin.accuracy) for bin in bins) / count,
        reliability=bins,
    )


def measure_regression(
    standard: NDArray[np.float32], truth: NDArray[np.float64], scores: ScoreRange
) -> RegressionMeasures:
    """Measure standard scores [examples] that a model says against true scores [examples] in the declared range.

    What it says is held within the range first. Raises `DataError` for no example or other shapes.
    """
    from scipy.stats import pearsonr, spearmanr

    if truth.size == 0 or standard.shape != truth.shape or truth.ndim != 1:
        raise DataError(f"A test needs a score for each example: {len(standard):,} examples, {len(truth):,} scores.")
    said = np.array([scores.score(float(each)) for each in standard])
    error = float(np.sqrt(np.mean((said - truth) ** 2)))
    if len(truth) < 3 or np.ptp(said) == 0 or np.ptp(truth) == 0:
        return RegressionMeasures(len(truth), None, None, error)
    return RegressionMeasures(
        len(truth), float(pearsonr(said, truth).statistic), float(spearmanr(said, truth).statistic), error
    )


def _bins(confidence: NDArray[np.float64], right: NDArray[np.bool_]) -> tuple[Bin, ...]:
    place = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    found = []
    for each in range(BINS):
        inside = place == each
        if inside.any():
            mean, share = float(confidence[inside].mean()), float(right[inside].mean())
            found.append(Bin(each / BINS, (each + 1) / BINS, int(inside.sum()), mean, share))
    return tuple(found)
