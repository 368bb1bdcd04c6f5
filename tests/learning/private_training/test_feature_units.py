"""Units of a last layer's inputs: clipped sums are those of the whole model on the texts."""

import numpy as np
import pytest
import torch

from aggregation.mechanisms.gradients import GradientMechanism
from learning.models.adapting import adapt
from learning.models.batching import encode, losses
from learning.models.encoders import classifier
from learning.models.features import features, head_alone
from learning.private_training.clipped_sum import clipped_sum
from learning.private_training.feature_units import FeatureUnits, head_losses
from learning.private_training.per_example import PerExample
from learning.private_training.text_units import TextUnits
from learning.text.labelled import LabelMap, ScoreRange

TEXTS = ["the film was good", "a bad plot", "we saw it", "very slow and dull start", "great actor", "the end"]
MEMBERS = [[0, 3, 4], [1], [2, 5]]


@pytest.fixture(scope="module")
def models(tiny_bert):
    """Classifier and regression whose last layer alone is trained, with the texts as tokens."""
    made = {}
    for name, targets in [("classes", LabelMap(("no", "yes", "neither"))), ("scores", ScoreRange(0, 5))]:
        model, tokenizer = classifier(str(tiny_bert), targets, seed=1, pool="mean")
        adapt(model, "head", seed=1)
        made[name] = model, encode(tokenizer, TEXTS, longest=16).rows
    return made


@pytest.mark.slow
@pytest.mark.parametrize("members", [None, MEMBERS])
@pytest.mark.parametrize("name", ["classes", "scores"])
def test_clipped_sums_are_those_of_the_whole_model(models, name, members):
    model, rows = models[name]
    labels = torch.tensor([0, 1, 2, 0, 1, 2]) if name == "classes" else torch.linspace(-1, 1, 6)
    texts = TextUnits(model.config, rows, labels, members=members)
    head = head_alone(model)
    found = FeatureUnits(features(model, rows), labels, members=members, examples_at_once=3)
    assert len(found) == len(texts)
    mechanism = GradientMechanism(0.5, 400, 1.0, 0.5, 1, PerExample(head).count)
    for taken in (np.arange(len(texts)), np.array([2, 0]), np.empty(0, np.int64)):
        whole = clipped_sum(PerExample(model), texts.micro_batches(taken), losses, mechanism)
        alone = clipped_sum(PerExample(head), found.micro_batches(taken), head_losses, mechanism)
        np.testing.assert_allclose(alone, whole, atol=1e-5)
        assert len(taken) == 0 or np.abs(whole).max() > 0.05


def test_units_are_taken_once_each_in_parts_of_bounded_size(models):
    model, rows = models["classes"]
    units = FeatureUnits(features(model, rows), torch.zeros(6, dtype=torch.int64), members=MEMBERS, examples_at_once=4)
    batches = list(units.micro_batches(np.array([1, 2, 0])))
    assert [(batch.units, batch.examples_per_unit) for batch in batches] == [(1, 4), (1, 2), (1, 1)]
    assert torch.equal(batches[0].weights, torch.tensor([1 / 3, 1 / 3, 1 / 3, 0.0]))
    assert [batch.shape.most for batch in batches] == [1, 2, 4]


@pytest.mark.parametrize("members", [[[], [0, 3, 4], [], [1], [2, 5]], [[], []], []])
def test_units_without_examples_count_and_add_nothing(models, members):
    model, rows = models["classes"]
    used = sum(map(len, members))
    labels = torch.tensor([0, 1, 2, 0, 1, 2])[:used]
    head = head_alone(model)
    texts = TextUnits(model.config, rows[:used], labels, members=members)
    vectors = FeatureUnits(features(model, rows[:used]), labels, members=members)
    mechanism = GradientMechanism(0.5, 400, 1.0, 1.0, 1, PerExample(head).count)
    filled = TextUnits(model.config, rows[:used], labels, members=[each for each in members if each])
    expected = clipped_sum(PerExample(model), filled.micro_batches(np.arange(len(filled))), losses, mechanism)
    for units, trained, loss in ((texts, model, losses), (vectors, head, head_losses)):
        assert len(units) == len(members)
        total = clipped_sum(PerExample(trained), units.micro_batches(np.arange(len(units))), loss, mechanism)
        np.testing.assert_allclose(total, expected, atol=1e-5)
    assert bool(expected.any()) == bool(used)
