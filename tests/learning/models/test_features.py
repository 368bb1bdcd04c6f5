import numpy as np
import pytest
import torch

from learning.classification.training import Fit, fit, fit_head
from learning.errors import DataError, Diverged
from learning.models.adapting import adapt, flatten
from learning.models.batching import Tokens, encode, inputs_of, logits_of
from learning.models.encoders import classifier
from learning.models.features import features, features_apart, head_alone
from learning.models.optimisers import Schedule
from learning.text.labelled import LabelMap

SENTIMENT = LabelMap(("negative", "positive"))
TEXTS = ["a good film", "the plot was dull and slow", "", "bright"]


def test_the_head_on_its_features_says_what_the_model_says(tiny_bert) -> None:
    model, tokenizer = classifier(str(tiny_bert), SENTIMENT, seed=1, pool="mean")
    adapt(model, "head", seed=1)
    rows = encode(tokenizer, TEXTS, longest=32).rows
    head = head_alone(model)
    assert head is not None
    found = torch.from_numpy(features(model, rows, tokens=8))
    with torch.no_grad():
        torch.testing.assert_close(head(found), logits_of(model, inputs_of(model.config, rows)), atol=1e-5, rtol=1e-4)
        head.bias.add_(1)
    assert np.array_equal(flatten(head), flatten(model))


@pytest.mark.slow
def test_training_the_head_on_its_features_is_training_the_model(tiny_bert) -> None:
    texts = [f"{one} {two}" for one in ("good", "bad", "film") for two in ("great", "dull", "plot", "slow")]
    labels = np.arange(12) % 2
    models = []
    for on_features in (True, False):
        model, tokenizer = classifier(str(tiny_bert), SENTIMENT, seed=1, pool="mean")
        adapt(model, "head", seed=1)
        rows = encode(tokenizer, texts, longest=32).rows
        settings, rng = Fit(epochs=5, batch=5, learning_rate=0.05), np.random.default_rng(3)
        before = flatten(model)
        if on_features:
            head = head_alone(model)
            assert head is not None
            fit_head(head, features(model, rows), labels, settings, rng)
        else:
            fit(model, rows, labels, settings, rng)
        models.append(flatten(model))
        assert (models[-1] - before).abs().max() > 0.1
    torch.testing.assert_close(models[0], models[1], atol=1e-4, rtol=1e-3)


def test_a_head_that_cannot_be_trained_is_one_sentence() -> None:
    head, rng = torch.nn.Linear(3, 2), np.random.default_rng(0)
    with pytest.raises(DataError, match="2 examples, 1 labels"):
        fit_head(head, np.ones((2, 3), np.float32), np.array([1]), Fit(), rng)
    wild = Fit(epochs=60, learning_rate=1e38, optimiser="sgd", schedule=Schedule("constant"))
    with pytest.raises(Diverged, match="smaller learning rate"):
        fit_head(head, np.ones((2, 3), np.float32), np.array([0, 1]), wild, rng)


@pytest.mark.parametrize(("folder", "how", "pool"), [("tiny_bert", "head", "first"), ("tiny_bert", "lora", "mean")])
def test_what_is_trained_further_down_has_no_fixed_features(folder, how, pool, request) -> None:
    model, _ = classifier(str(request.getfixturevalue(folder)), SENTIMENT, seed=1, pool=pool)
    adapt(model, how, seed=1)
    assert head_alone(model) is None


def test_a_model_that_classifies_every_token_has_none(tiny_gpt2) -> None:
    model, _ = classifier(str(tiny_gpt2), SENTIMENT, seed=1)
    adapt(model, "head", seed=1)
    assert head_alone(model) is None


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [16, 64, 1024])
def test_an_examples_vector_has_the_same_bits_whoever_else_is_seen(tiny_bert, tokens) -> None:
    model, _ = classifier(str(tiny_bert), LabelMap(("no", "yes")), seed=1, pool="mean")
    adapt(model, "head", seed=1)
    rng = np.random.default_rng(0)
    rows = [Tokens(rng.integers(0, 40, length).astype(np.int32), length) for length in rng.integers(1, 33, 40)]
    known: dict[int, tuple[int, ...]] = {}
    whole = features_apart(model, rows, known, tokens)
    torch.testing.assert_close(torch.from_numpy(whole), torch.from_numpy(features(model, rows)), atol=1e-5, rtol=1e-4)
    for _ in range(4):
        taken = np.flatnonzero(rng.random(40) < 0.4)
        assert np.array_equal(features_apart(model, [rows[place] for place in taken], known, tokens), whole[taken])
