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
