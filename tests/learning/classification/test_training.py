import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import confusion_matrix, f1_score, recall_score

from aggregation.errors import ConclaveError
from learning.classification.metrics import BINS, measure_classifier, measure_regression
from learning.classification.training import Fit, fit, predict, probabilities
from learning.errors import DataError
from learning.models.adapting import adapt
from learning.models.batching import encode
from learning.models.encoders import classifier
from learning.models.schedules import Schedule
from learning.text.labelled import LabelMap, ScoreRange

SENTIMENT = LabelMap(("negative", "positive"))


def _reviews(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Texts in which one word of praise or blame decides, among others that do not."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, count)
    words = [["bad", "awful", "dull"], ["good", "great", "bright"]]
    other = ["film", "plot", "actor", "story", "the", "was", "slow", "fast"]
    texts = []
    for label in labels:
        said = [*rng.choice(other, rng.integers(1, 8)), rng.choice(words[label])]
        texts.append(" ".join(rng.permutation(said)))
    return texts, labels.astype(np.int64)


@pytest.mark.parametrize(("how", "optimiser", "rate"), [("full", "sgd", 0.1), ("lora", "adamw", 1e-2)])
def test_it_learns_what_words_decide(tiny_bert, how, optimiser, rate) -> None:
    model, tokenizer = classifier(str(tiny_bert), SENTIMENT, seed=1, pool="mean")
    adapt(model, how, seed=1)
    texts, labels = _reviews(480, 0)  # enough that no draw of the dropout, which differs by processor, decides
    told: list[float] = []
    how_to = Fit(epochs=8, batch=16, learning_rate=rate, optimiser=optimiser, schedule=Schedule("cosine", 0.1))
    fit(model, encode(tokenizer, texts, longest=32).rows, labels, how_to, np.random.default_rng(0), told.append)
    assert (len(told), told[-1]) == (8 * 30, 1.0)
    heldout, truth = _reviews(200, 1)
    logits = predict(model, encode(tokenizer, heldout, longest=32).rows)
    assert measure_classifier(probabilities(logits), truth).accuracy > 0.95


def test_scores_are_learned_too(tiny_bert) -> None:
    scores = ScoreRange(1, 3)
    model, tokenizer = classifier(str(tiny_bert), scores, seed=1, pool="mean")
    adapt(model, "full", seed=1)
    texts, labels = _reviews(240, 0)
    rows = encode(tokenizer, texts, longest=32).rows
    standard = np.array([scores.standard(1 + 2 * label) for label in labels], np.float32)
    fit(model, rows, standard, Fit(epochs=3, batch=16, learning_rate=3e-3), np.random.default_rng(0))
    found = measure_regression(predict(model, rows)[:, 0], 1.0 + 2 * labels, scores)
    assert found.pearson is not None
    assert found.pearson > 0.9
    assert found.error < 0.9  # a constant is wrong by 1


def test_the_same_generator_trains_the_same_model(tiny_bert) -> None:
    texts, labels = _reviews(40, 0)
    found = []
    for seed in (3, 3, 4):
        model, tokenizer = classifier(str(tiny_bert), SENTIMENT, seed=1)
        adapt(model, "head", seed=1)
        rows = encode(tokenizer, texts, longest=32).rows
        fit(model, rows, labels, Fit(epochs=1, batch=8), np.random.default_rng(seed))
        found.append(predict(model, rows))
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_a_shard_of_one_class_trains_a_model_that_says_it(tiny_bert) -> None:
    model, tokenizer = classifier(str(tiny_bert), SENTIMENT, seed=1)
    adapt(model, "full", seed=1)
    rows = encode(tokenizer, _reviews(40, 0)[0], longest=32).rows
    fit(model, rows, np.ones(40, np.int64), Fit(epochs=2, batch=8, learning_rate=3e-3), np.random.default_rng(0))
    assert (predict(model, rows).argmax(axis=1) == 1).all()


def test_answers_come_in_the_order_asked_however_they_are_batched(tiny_gpt2) -> None:
    model, tokenizer = classifier(str(tiny_gpt2), SENTIMENT, seed=1)
    with torch.no_grad():
        model.score.weight.mul_(50)
    rows = encode(tokenizer, [*_reviews(50, 0)[0], ""], longest=32).rows
    at_once, one_by_one = predict(model, rows), predict(model, rows, tokens=1)
    np.testing.assert_allclose(at_once, one_by_one, atol=1e-4)
    assert len(np.unique(at_once[:, 0].round(3))) > 20
    assert predict(model, []).shape == (0, 2)


def test_training_that_cannot_be_is_one_sentence(tiny_bert) -> None:
    model, tokenizer = classifier(str(tiny_bert), SENTIMENT, seed=1)
    rows, labels = encode(tokenizer, ["good", "bad"], longest=32).rows, np.array([1, 0])
    rng = np.random.default_rng(0)
    with pytest.raises(DataError, match="2 examples, 1 labels"):
        fit(model, rows, labels[:1], Fit(), rng)
    with pytest.raises(ConclaveError, match="0 epochs"):
        Fit(epochs=0)
    adapt(model, "head", seed=1)
    fast = Fit(epochs=60, learning_rate=1e30, optimiser="sgd", schedule=Schedule("constant"))
    with pytest.raises(ConclaveError, match="smaller learning rate"):
        fit(model, rows, labels, fast, rng)
    model.requires_grad_(False)
    with pytest.raises(ConclaveError, match="Nothing of the model"):
        fit(model, rows, labels, Fit(), rng)


CASES = st.integers(2, 5).flatmap(
    lambda classes: st.tuples(
        st.just(classes),
        st.lists(st.tuples(st.integers(0, classes - 1), st.integers(0, 2**31)), min_size=2, max_size=60).filter(
            lambda rows: len({truth for truth, _ in rows}) > 1
        ),
    )
)


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
