"""The party's own rules against a plan: a refusal names the rule and what would be right."""

import pytest

from party.policy import admit, event_of
from protos.conclave.v1 import plan_pb2
from protos.refusal import Reason, Refusal


def test_a_plan_within_the_rules_is_admitted(terms, config):
    assert admit(terms(), config()) is None


def refused(terms, config):
    with pytest.raises(Refusal) as refusal:
        admit(terms, config)
    assert "\n" not in refusal.value.sentence
    return refusal.value


@pytest.mark.parametrize(
    ("plan", "party", "rule", "said"),
    [
        ({"recipe": "swing"}, {}, "recipes", "this plan runs swing"),
        ({}, {"minimum_parties": 5}, "minimum_parties", "minimum_parties = 5, this plan has 2"),
        ({"trust": plan_pb2.TRUST_SECURE_SUM}, {}, "trust", "secure sum is not there yet"),
        ({"insecure_reproducible_noise": True}, {}, "simulation", "protects nobody"),
        ({}, {"declared_size": 2**26}, "declared_size", "levels up to 31"),
        ({"unit": plan_pb2.UNIT_USER}, {}, "shard.user", "no user column"),
    ],
)
def test_a_rule_of_the_party_is_named(terms, config, plan, party, rule, said):
    refusal = refused(terms(**plan), config(policy=party))
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, rule)
    assert said in refusal.sentence


def test_a_plan_that_could_shrink_below_the_rule_is_refused(terms, config):
    plan = terms(parties=["a", "b", "north"], minimum_parties=2, shares=2)
    assert refused(plan, config(policy={"minimum_parties": 3})).rule == "minimum_parties"


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"parties": ["east", "west"]}, "this party is north"),
        ({"parties": ["south", "north"]}, "not sorted"),
        ({"epsilon": 0.0}, "promise nothing"),
        ({"epsilon": float("inf")}, "promise nothing"),
        ({"delta": 1.0}, "promise nothing"),
        ({"noise_multiplier": 0.2}, "above the 8 it promises"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier"),
        ({"noise_multiplier": 1e300}, "cannot be drawn"),
        ({"noise_multiplier": 1e-300}, "cannot be drawn"),
        ({"releases": [plan_pb2.Release(name="votes", charges=1)] * 65}, "more than 64 releases"),
        ({"clip": 0.0}, "clip"),
        ({"clip": -1.0}, "clip"),
        ({"levels": 0}, "levels"),
        ({"shares": 3}, "counts on 3 noise shares"),
        ({"shares": 2, "dropouts": 1}, "counts on 2 noise shares"),
        ({"colluders": 2}, "leave no honest party"),
        ({"minimum_parties": 1}, "would go on with 1"),
        ({"releases": [plan_pb2.Release(name="votes", charges=1)]}, "no mechanism that this party knows"),
        ({"unit": plan_pb2.UNIT_UNSPECIFIED}, "what it protects"),
        ({"record": plan_pb2.RECORD_UNSPECIFIED}, "what a record is"),
    ],
)
def test_terms_that_cannot_be_right_are_refused(terms, config, plan, said):
    refusal = refused(terms(**plan), config())
    assert refusal.reason == Reason.PLAN
    assert said in refusal.sentence


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", "x" * 65])
def test_a_release_cannot_name_a_path(terms, config, name):
    plan = terms()
    plan.releases[0].name = name
    assert "no name for a release" in refused(plan, config()).sentence


def test_two_releases_cost_more_than_one(terms, config):
    plan = terms(epsilon=6.0)
    assert admit(plan, config()) is None
    plan.releases.add().CopyFrom(plan.releases[0])
    assert "listed twice" in refused(plan, config()).sentence
    plan.releases[1].name = "more"
    assert "above the 6" in refused(plan, config()).sentence


def test_charges_are_priced(terms, config):
    plan = terms()
    for charges in (0, 2**62):
        plan.releases[0].charges = charges
        assert f"charged {charges} times" in refused(plan, config()).sentence
    plan.releases[0].charges = 100
    assert "above the 8" in refused(plan, config()).sentence
    assert event_of(plan.releases[0]).count == 100


def test_insecure_noise_is_admitted_for_a_simulation_alone(terms, config):
    assert admit(terms(insecure_reproducible_noise=True), config(policy={"simulation": True})) is None


def with_releases(terms, releases, *words, **changes):
    return terms(releases=releases(*words), epsilon=30.0, **changes)


@pytest.mark.parametrize("words", [("joint",), ("thresholded",), ("training", "free"), ("training",)])
def test_teachers_answers_are_admitted_under_every_mechanism_of_theirs(terms, config, releases, words):
    assert admit(with_releases(terms, releases, *words), config(policy={"clear_votes": True})) is None


def test_votes_in_clear_are_admitted_only_where_the_policy_says_so(terms, config, releases):
    refusal = refused(with_releases(terms, releases, "thresholded"), config())
    assert (refusal.reason, refusal.rule) == (Reason.POLICY, "clear_votes")
    assert "clear_votes = false; release votes sends this party's votes to the coordinator" in refusal.sentence


def test_answers_are_free_after_a_training_of_the_same_terms_alone(terms, config, releases):
    said = "release answers is free after 'training', which trains nothing privately"
    assert said in refused(with_releases(terms, releases, "free"), config()).sentence
    plan = with_releases(terms, releases, "joint", "free")
    plan.releases[0].name = "training"
    assert said in refused(plan, config()).sentence
    itself = with_releases(terms, releases, "free")
    itself.releases[0].free.after = "answers"
    assert "which trains nothing privately" in refused(itself, config()).sentence


def test_one_training_is_one_set_of_teachers(terms, config, releases):
    plan = with_releases(terms, releases, "training", "free", "free")
    plan.releases[2].name = "more"
    assert "two releases are free after 'training'" in refused(plan, config()).sentence
    second = plan.releases.add()
    second.CopyFrom(plan.releases[0])
    second.name = plan.releases[2].free.after = "training-2"
    assert admit(plan, config()) is None


def test_every_query_is_charged_and_free_answers_are_not(terms, config, releases):
    plan = with_releases(terms, releases, "joint")
    assert event_of(plan.releases[0]).count == 4
    plan.releases[0].charges = 4000
    assert "above the 30" in refused(plan, config()).sentence
    free = terms(releases=releases("training", "free"), epsilon=30.0)
    free.releases[1].charges = 10**6
    assert admit(free, config()) is None
    free.releases[0].gradients.noise_multiplier = 0.1
    assert "above the 30" in refused(free, config()).sentence


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dropouts": 1}, "release answers counts on 2 noise shares"),
        ({"minimum_parties": 1}, "would go on with 1"),
    ],
)
def test_shares_of_teachers_noise_are_counted(terms, config, releases, change, said):
    assert said in refused(with_releases(terms, releases, "joint", **change), config()).sentence
    assert admit(with_releases(terms, releases, "training", "free", **change), config()) is None
