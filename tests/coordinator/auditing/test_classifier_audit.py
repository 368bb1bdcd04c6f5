"""Audits of text classifiers: DP-SGD in steps and alone, and votes; honest runs stand, broken ones are caught."""

import numpy as np
import pytest

from coordinator.systems.registry import plan_of, prepared, system
from learning.text.source import Document

SETTINGS = {
    "privacy": {"epsilon": 1.0, "noise_multiplier": None},
    "model": {"adapt": "lora", "rank": 2, "alpha": 4},
    "dp_sgd": {"steps": 3, "batch": 240, "learning_rate": 0.01},
}


def of(audit, attacked, kind):
    (found,) = [each for each in audit.attacks if (each.attacked, each.canaries) == (attacked, kind)]
    return found


@pytest.mark.slow
def test_an_honest_training_is_not_refuted(audit, classifier_tables):
    found = audit(classifier_tables(**SETTINGS), canaries=20, records=60)
    assert [(each.attacked, each.canaries) for each in found.attacks] == [
        ("steps", "worst"), ("steps", "natural"), ("student", "worst"), ("student", "natural"),
    ]  # fmt: skip
    assert not found.broken
    assert found.records == 40


@pytest.mark.slow
def test_without_noise_a_training_is_refuted(audit, classifier_tables, no_noise):
    how = SETTINGS | {"privacy": {"epsilon": 0.3, "noise_multiplier": None}}
    found = audit(classifier_tables(**how), canaries=60, records=80, kinds=["worst"])
    assert found.broken
    assert of(found, "steps", "worst").lower > found.claimed


def paired(tables):
    """The same tables of a plan that reads pairs."""
    shards = tables["federation"]["shards"] | {"second": "second"}
    found = tables | {"federation": tables["federation"] | {"shards": shards}}
    return found | {name: tables[name] | more for name, more in PAIRED.items()}


PAIRED = {"text": {"kind": "pair"}, "evaluation": {"second": "second"}}


@pytest.mark.slow
def test_a_canary_of_a_plan_of_pairs_is_a_pair_and_without_noise_it_is_found(audit, classifier_tables, no_noise):
    how = SETTINGS | {"privacy": {"epsilon": 0.3, "noise_multiplier": None}}
    found = audit(paired(classifier_tables(**how)), canaries=60, records=80, kinds=["worst"])
    assert found.broken
    assert of(found, "steps", "worst").lower > found.claimed


@pytest.mark.slow
def test_an_honest_training_on_pairs_is_not_refuted(audit, classifier_tables):
    found = audit(paired(classifier_tables(**SETTINGS)), canaries=20, records=60)
    assert [each.attacked for each in found.attacks] == ["steps", "steps", "student", "student"]
    assert not found.broken


def test_a_worst_case_of_pairs_is_made_of_both_columns(classifier_tables, tmp_path):
    recipe = prepared(plan_of(paired(classifier_tables())), tmp_path, tmp_path / "cache")
    rows = [Document(str(number), "good plot", {"mood": "0", "second": "slow film"}) for number in range(2)]
    found = system("dp_sgd").audit(recipe).worst(3, rows, np.random.default_rng(0))
    assert [(each.text, each.fields["second"]) for each in found] == [("good plot", "slow film")] * 3
    assert {each.fields["mood"] for each in found} <= {"0", "1"}


@pytest.mark.slow
def test_a_training_of_the_last_layer_is_followed_by_its_own_formula(audit, classifier_tables, no_noise):
    """32 numbers a class: more canaries than that hide each other, so there are few."""
    how = SETTINGS | {"model": {"adapt": "head", "pooling": "mean"}}
    found = audit(classifier_tables(**how), canaries=24, records=40, kinds=["worst"])
    assert of(found, "steps", "worst").lower > 0


@pytest.mark.slow
def test_the_head_has_the_gradients_that_a_party_clips(classifier_tables, tmp_path):
    """The outer products are those of the layer's own book-keeping."""
    import torch

    from aggregation.mechanisms.gradients import GradientMechanism
    from coordinator.pricing.priced_plan import price_plan
    from coordinator.text_models.auditing.steps import known
    from learning.models.batching import encode
    from learning.private_training.clipped_sum import clipped_sum
    from learning.private_training.feature_units import FeatureUnits, head_losses
    from learning.private_training.per_example import PerExample

    recipe = prepared(
        plan_of(classifier_tables(model={"adapt": "head", "pooling": "mean"})), tmp_path, tmp_path / "cache"
    )
    (release,) = price_plan(recipe).releases
    mechanism = release.under(GradientMechanism)
    public = recipe.read
    rows = encode(public.tokenizer, ["good film", "a bad plot", "slow"], longest=16).rows
    labels = torch.tensor([0, 1, 1])
    units = known(public.model, rows, labels, [0, 1, 1], 2)
    found = units.gradients_at(public.start, mechanism)
    from learning.models.features import features

    own = FeatureUnits(features(public.model, rows), labels, members=[[0], [1, 2]])
    per = PerExample(units.trained)
    for number in range(2):
        expected = clipped_sum(per, own.micro_batches(np.array([number])), head_losses, mechanism)
        assert np.allclose(found[number], expected, rtol=0.02, atol=1e-4), number  # bounds of norms allow for rounding


@pytest.mark.slow
def test_parties_own_models_are_attacked_where_they_train_alone(audit, classifier_tables):
    how = {"dp_sgd": {"steps": 4, "batch": 60, "form": "local", "rounds": 2}}
    found = audit(classifier_tables(**how), canaries=10, records=60)
    assert {each.attacked for each in found.attacks} == {"round-0", "round-1", "student"}
    assert not found.broken


def test_a_worst_case_has_the_label_that_the_start_finds_least_likely(classifier_tables, tmp_path):
    recipe = prepared(plan_of(classifier_tables()), tmp_path, tmp_path / "cache")
    rows = [
        Document(str(number), text, {"mood": "0", "text": text}) for number, text in enumerate(("good plot", "slow"))
    ]
    found = system("dp_sgd").audit(recipe).worst(12, rows, np.random.default_rng(0))
    from learning.classification.training import predict
    from learning.models.batching import encode

    said = predict(recipe.read.model, encode(recipe.read.tokenizer, [row.text for row in found], longest=16).rows)
    assert [int(row.fields["mood"]) for row in found] == said.argmin(axis=1).tolist()
    assert {"good slow", "slow plot"} & {row.text for row in found}


@pytest.mark.slow
@pytest.mark.parametrize("split", [{"by": "hash", "parties": 4, "of": 9}])
def test_parts_that_a_plan_leaves_aside_hold_no_canary(audit, classifier_tables, no_noise, split):
    shards = classifier_tables()["federation"]["shards"] | {"split": split}
    tables = classifier_tables(**SETTINGS, federation={"shards": shards})
    found = audit(tables, canaries=40, records=50, kinds=["worst"])
    assert found.source == 240 * 4 // 9
    assert of(found, "steps", "worst").lower > 0.5


@pytest.mark.slow
def test_votes_of_teachers_are_attacked(audit, classifier_tables, no_noise):
    tables = classifier_tables("pate", privacy={"epsilon": 8.0, "noise_multiplier": None}, model={"adapt": "full"})
    found = audit(tables, canaries=16)
    assert {each.attacked for each in found.attacks} == {"votes", "student"}
    worst = of(found, "votes", "worst")
    assert worst.count == 16
    assert worst.right / worst.guesses > 0.6


@pytest.mark.slow
def test_an_honest_vote_is_not_refuted(audit, classifier_tables):
    found = audit(classifier_tables("pate", privacy={"epsilon": 1.0, "noise_multiplier": None}), canaries=20)
    assert not found.broken


@pytest.mark.slow
@pytest.mark.parametrize("of_pairs", [False, True])
def test_domain_classifiers_and_the_students_steps_are_attacked(audit, privdistil_tables, of_pairs):
    tables = privdistil_tables(privacy={"epsilon": 6.0, "noise_multiplier": None})
    found = audit(paired(tables) if of_pairs else tables, canaries=10)
    assert {each.attacked for each in found.attacks} == {"domain", "steps", "student"}
    assert not found.broken
    assert found.source == 240
