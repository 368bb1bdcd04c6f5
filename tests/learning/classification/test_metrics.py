"""Measures of classifiers and regressions on labelled public text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import confusion_matrix, f1_score, recall_score

from learning.classification.metrics import BINS, measure_classifier, measure_regression
from learning.errors import DataError
from learning.text.labelled import ScoreRange

CASES = st.integers(2, 5).flatmap(
    lambda classes: st.tuples(
        st.just(classes),
        st.lists(st.tuples(st.integers(0, classes - 1), st.integers(0, 2**31)), min_size=2, max_size=60).filter(
            lambda rows: len({truth for truth, _ in rows}) > 1
        ),
    )
)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(CASES)
def test_measures_are_those_of_the_textbook(case) -> None:
    classes, rows = case
    truth = np.array([label for label, _ in rows])
    chances = np.stack([np.random.default_rng(seed).dirichlet(np.full(classes, 0.5)) for _, seed in rows])
    said = chances.argmax(axis=1)
    found = measure_classifier(chances, truth)
    assert found.accuracy == pytest.approx((said == truth).mean())
    assert found.macro_f1 == pytest.approx(f1_score(truth, said, average="macro"))
    assert np.array_equal(found.confusion, confusion_matrix(truth, said, labels=range(classes)))
    recall = recall_score(truth, said, labels=range(classes), average=None, zero_division=np.nan)
    assert [np.nan if each is None else each for each in found.recall] == pytest.approx(list(recall), nan_ok=True)
    assert sum(bin.examples for bin in found.reliability) == found.examples == len(rows)
    assert all(bin.low <= bin.confidence < bin.high + 1e-12 for bin in found.reliability)


def test_calibration_is_the_mean_gap_of_bins() -> None:
    chances = np.array([[0.9, 0.1]] * 4 + [[0.4, 0.6]] * 2)
    found = measure_classifier(chances, np.array([0, 0, 0, 1, 1, 0]))
    assert found.calibration == pytest.approx((4 * abs(0.9 - 0.75) + 2 * abs(0.6 - 0.5)) / 6)
    assert [bin.examples for bin in found.reliability] == [2, 4]
    assert BINS == 15


def test_test_text_of_one_class_or_of_other_labels_is_refused() -> None:
    chances = np.full((3, 2), 0.5)
    with pytest.raises(DataError, match="one class only"):
        measure_classifier(chances, np.array([1, 1, 1]))
    for truth in (np.array([0, 1]), np.array([0, 1, 2]), np.array([0, 1, -1])):
        with pytest.raises(DataError, match="label of the map for each example"):
            measure_classifier(chances, truth)
    with pytest.raises(DataError, match="label of the map for each example"):
        measure_classifier(np.empty((0, 2)), np.empty(0, np.int64))


def test_regression_is_measured_in_the_declared_range() -> None:
    rng = np.random.default_rng(0)
    scores = ScoreRange(0, 5)
    truth = rng.uniform(0, 5, 50)
    standard = np.array([scores.standard(each) for each in truth + rng.normal(0, 1, 50)], np.float32)
    held = np.clip(2.5 + 2.5 * standard.astype(np.float64), 0, 5)
    found = measure_regression(standard, truth, scores)
    assert found.pearson == pytest.approx(pearsonr(held, truth).statistic)
    assert found.spearman == pytest.approx(spearmanr(held, truth).statistic)
    assert found.error == pytest.approx(np.sqrt(((held - truth) ** 2).mean()))
    flat = measure_regression(np.zeros(50, np.float32), truth, scores)
    assert (flat.pearson, flat.spearman) == (None, None)
    with pytest.raises(DataError, match="a score for each example"):
        measure_regression(standard[:3], truth, scores)
