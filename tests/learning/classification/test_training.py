import numpy as np
import pytest
import torch

from aggregation.errors import ConclaveError
from learning.classification.metrics import measure_classifier, measure_regression
from learning.classification.training import Fit, fit, predict, probabilities
from learning.errors import DataError, Diverged
from learning.language.perplexity import perplexity
from learning.language.speaker import Speaker
from learning.models.adapting import adapt
from learning.models.batching import encode, encode_documents
from learning.models.encoders import classifier, language_model
from learning.models.optimisers import Schedule
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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
    told = []
    at_once = predict(model, rows)
    one_by_one = predict(model, rows, tokens=1, progress=lambda *seen: told.append(seen))
    assert told == [(done, len(rows)) for done in range(1, len(rows) + 1)]
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


@pytest.mark.slow
def test_a_language_model_learns_examples_without_labels(tiny_gpt2) -> None:
    model, tokenizer = language_model(str(tiny_gpt2))
    rows = encode_documents(tokenizer, ["the film was good", "the plot was slow"] * 20, longest=16, codes=None).rows
    before = perplexity([Speaker(model)], rows).perplexity
    model.requires_grad_(True)
    fit(model, rows, None, Fit(epochs=5, batch=8, learning_rate=1e-2), np.random.default_rng(0))
    assert perplexity([Speaker(model)], rows).perplexity < before / 4
    with pytest.raises(DataError, match="example"):
        fit(model, [], None, Fit(), np.random.default_rng(0))


def test_a_step_larger_than_any_number_is_a_training_that_went_to_infinity(tiny_gpt2) -> None:
    model, tokenizer = language_model(str(tiny_gpt2))
    adapt(model, "full", seed=7)
    rows = encode_documents(tokenizer, ["the film was good"], longest=16, codes=[None]).rows
    wild = Fit(epochs=2, batch=1, learning_rate=1e38, schedule=Schedule("constant"))
    with pytest.raises(Diverged, match="went to infinity in step 1"):
        fit(model, rows, None, wild, np.random.default_rng(0))
