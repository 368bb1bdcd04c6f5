"""`[privacy] guarantee = false`: nothing is promised, and nothing that belongs to a promise is in the plan."""

import json

import pytest

from coordinator.errors import PlanError
from coordinator.plan.privacy import PROMISING, PrivacyTable
from coordinator.systems.registry import plan_of
from protos.console.mistakes import SettingsError
from protos.console.settings import check_settings

STATED = {"epsilon": 8.0, "delta": 1e-6, "noise_multiplier": 1.5, "noise": "skellam", "attempts": 2}
CLASSIC = {
    "run": {"name": "demo", "recipe": "dped"},
    "federation": {"launch": "connect", "parties": [{"name": "a", "address": "127.0.0.1:7443"}]},
    "vocabulary": {"source": "public.jsonl", "size": 30},
    "dped": {"signals": ["counts"], "dimension": 4},
}


@pytest.mark.parametrize("key", PROMISING)
def test_each_key_of_a_promise_is_refused_by_name(heuristic, key):
    with pytest.raises(SettingsError, match=rf"\[privacy\] {key} belongs to a guarantee, and guarantee = false says"):
        heuristic(guarantee=False, **{key: STATED[key]})


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({}, r"plan.toml: \[privacy\] epsilon is missing\."),
        ({"epsilon": 8.0}, r"plan.toml: \[privacy\] delta is missing\."),
        ({"epsilonn": 8.0, "delta": 1e-6}, r'there is no key \[privacy\] epsilonn\. Did you mean "epsilon"\?'),
        ({"epsilon": 0.0, "delta": 1e-6}, r"\[privacy\] epsilon = 0\.0 should be greater than 0\."),
        ({"epsilon": 8.0, "delta": 0.5}, r"\[privacy\] delta = 0\.5: this is too large"),
        ({"guarantee": True}, r"\[privacy\] epsilon is missing\."),
        ({"stated_epsilon": 8.0, "delta": 1e-6}, r"there is no key \[privacy\] stated_epsilon\."),
    ],
)
def test_a_promise_is_stated_as_before(privacy, said):
    from coordinator.systems.dped.plan import DpedPlan

    with pytest.raises(SettingsError, match=said):
        check_settings(CLASSIC | {"privacy": privacy}, DpedPlan, "plan.toml")


def test_nobody_takes_an_absent_number_for_one(heuristic):
    plan = heuristic().plan
    for key in ("epsilon", "delta"):
        with pytest.raises(PlanError, match=rf"this plan promises nothing, and has no {key}\."):
            getattr(plan.privacy, key)


def test_what_is_sent_and_stored_says_so_and_has_no_number(heuristic):
    plan = heuristic().plan
    document = json.loads(plan.document())["privacy"]
    assert document["guarantee"] is False
    assert not set(PROMISING) & set(document)
    assert type(plan).model_validate(plan.model_dump(mode="json")) == plan


def test_a_plan_with_a_guarantee_is_the_document_that_it_was():
    privacy = PrivacyTable(epsilon=8.0, delta=1e-6)
    assert list(privacy.model_dump(mode="json")) == [
        "epsilon", "delta", "unit", "record", "trust", "dropouts", "colluders", "attempts", "noise", "noise_multiplier",
        "declared_size", "insecure_reproducible_noise",
    ]  # fmt: skip
    assert PrivacyTable.model_validate(privacy.model_dump()) == PrivacyTable(guarantee=True, epsilon=8.0, delta=1e-6)


def test_a_system_that_has_no_heuristic_is_not_run_as_one():
    with pytest.raises(ValueError, match="dped releases nothing without a guarantee"):
        plan_of(CLASSIC | {"privacy": {"guarantee": False}})


def test_a_sum_hides_nothing_that_is_in_no_sum(heuristic):
    with pytest.raises(SettingsError, match='trust = "secure-sum" hides what parties add up'):
        heuristic(guarantee=False, trust="secure-sum")


def test_a_run_may_go_on_with_fewer_parties_because_no_noise_is_counted_on(heuristic):
    federation = {
        "launch": "connect",
        "minimum_parties": 1,
        "parties": [{"name": name, "address": "127.0.0.1:7443"} for name in ("north", "south")],
    }
    assert heuristic(federation=federation).plan.minimum_parties == 1
    with pytest.raises(SettingsError, match="the noise of 2 of 2 parties is needed"):
        heuristic("counts", federation=federation, epsilon=8.0, delta=1e-6)
