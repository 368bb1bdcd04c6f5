"""Pictures of how good a model is: they show what was measured, and are the same bytes for the same measures."""

import warnings

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from learning.classification.chart import draw, draw_scores
from learning.classification.metrics import measure_classifier, measure_regression
from learning.classification.training import probabilities
from learning.errors import DataError
from learning.text.labelled import ScoreRange


def measured(classes, count=400, seed=0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, classes, count)
    logits = rng.normal(0, 1, (count, classes))
    logits[np.arange(count), truth] += 2
    return measure_classifier(probabilities(logits.astype(np.float32)), truth)


@pytest.fixture
def words(monkeypatch):
    """Every text of the pictures that are drawn."""
    found = []
    save = Figure.savefig

    def saves(figure, *given, **named):
        found.extend(each.get_text() for each in figure.findobj(match=lambda part: hasattr(part, "get_text")))
        return save(figure, *given, **named)

    monkeypatch.setattr(Figure, "savefig", saves)
    return found


@pytest.mark.slow
def test_the_same_measures_are_the_same_bytes(tmp_path):
    paths = [tmp_path / name for name in ("one.png", "two.png", "other.png")]
    for path, seed in zip(paths, (0, 0, 1), strict=True):
        draw(measured(3, seed=seed), ["a", "b", "c"], path)
    one, two, other = (path.read_bytes() for path in paths)
    assert one == two != other
    assert b"Software" not in one


@pytest.mark.slow
def test_a_picture_says_what_was_measured(tmp_path, words):
    found = measured(3)
    draw(found, ["negative", "a class with quite a long name", "$x_1"], tmp_path / "one.png")
    assert {"negative", "a class wi…ng name", "$x_1", "true class", "predicted class", "confidence"} <= set(words)
    assert {str(count) for row in found.confusion for count in row} <= set(words)
    assert {str(bin.examples) for bin in found.reliability} <= set(words)
    (title,) = [each for each in words if each.startswith("Accuracy")]
    assert f"{found.accuracy:.1%}" in title
    assert title.endswith("on 400 examples")


@pytest.mark.parametrize(
    "classes", [12, pytest.param(30, marks=pytest.mark.slow), pytest.param(77, marks=pytest.mark.slow)]
)
def test_any_number_of_classes_and_any_name_makes_a_picture(tmp_path, words, classes):
    names = ["日本語", "new\nline", "$\\frac{"][:classes] + [f"class_{place}" for place in range(3, classes)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(measured(classes), names, tmp_path / "one.png")
    pixels = imread(tmp_path / "one.png")
    assert pixels.shape[0] > 500
    assert pixels.shape[1] > 1000
    assert pixels.std() > 0.1
    assert ("class 1" in words) == (classes <= 30)


def test_names_that_are_not_the_matrix_are_refused(tmp_path):
    with pytest.raises(DataError, match="3 classes, and 2 are named"):
        draw(measured(3), ["a", "b"], tmp_path / "one.png")


@pytest.mark.slow
@pytest.mark.parametrize("count", [40, 3000])
def test_scores_are_drawn_over_the_true_ones(tmp_path, words, count):
    rng = np.random.default_rng(0)
    scores = ScoreRange(0, 5)
    truth = rng.uniform(0, 5, count)
    standard = ((truth - 2.5) / 2.5 + rng.normal(0, 0.2, count)).astype(np.float32)
    said = np.array([scores.score(float(each)) for each in standard])
    found = measure_regression(standard, truth, scores)
    for name in ("one.png", "two.png"):
        draw_scores(said, truth, found, tmp_path / name)
    assert (tmp_path / "one.png").read_bytes() == (tmp_path / "two.png").read_bytes()
    assert imread(tmp_path / "one.png").std() > 0.05
    assert any(f"RMSE {found.error:.3g}, on {count:,} examples" in each for each in words)
    with pytest.raises(DataError, match="a score for each example"):
        draw_scores(said[:-1], truth, found, tmp_path / "one.png")
