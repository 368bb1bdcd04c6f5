"""A run without a guarantee: its report, card and `privacy.json` say so, and have no number that would claim one."""

import json
import re
from types import SimpleNamespace

import pytest

from coordinator.pricing.priced_plan import price_plan
from coordinator.published.statement import Privacy
from coordinator.publishing.report import (
    COMPOSED,
    NOT_PROTECTED,
    NOTHING_PROTECTED,
    markdown,
    promise,
    promised,
    render,
    state,
)

PARTIES = ("north", "south")
LABEL = "No guarantee: a heuristic."


@pytest.fixture(params=[False, True])
def statement(heuristic, request):
    privacy = {"guarantee": False, "insecure_reproducible_noise": request.param}
    return state(price_plan(heuristic(**privacy)), PARTIES, "00" * 32, {}, run="r", sums={})


def rendered(statement):
    told = {"run": "r", "status": "finished", "error": None, "student": None, "epsilon": statement.epsilon}
    return render(told | {"privacy": statement.privacy, "metrics": None, "stages": {}})


def test_nothing_stands_where_a_number_would_claim_something(statement):
    privacy = json.loads(json.dumps(statement.privacy, allow_nan=False))
    absent = ("epsilon", "delta", "accountant", "epsilon_by_rdp", "epsilon_by_the_papers_formula", "sampler_delta")
    assert {privacy[key] for key in absent} == {None}
    assert (privacy["guarantee"], privacy["relation"]) == (False, "none")
    (release,) = privacy["releases"]
    assert release["event"] == {"kind": "self-composed", "event": {"kind": "non-private"}, "count": 40}
    assert "no guarantee: a heuristic, which no proof covers" in release["says"]
    assert (statement.heuristic, statement.epsilon) == (True, None)
    assert Privacy.model_validate(privacy).guarantee is False


def test_the_card_and_the_report_begin_with_the_label_and_print_no_epsilon(statement):
    for text in (promise(statement), markdown(statement), rendered(statement)):
        assert LABEL in text
        assert "How much this student tells of one document is not bounded, and no audit measured it." in text
        without_the_list = text.replace(next(each for each in NOT_PROTECTED if "epsilon 0.88" in each), "")
        assert not re.search(r"epsilon [0-9]|epsilon =|delta =|\binf|infinity|accountant|Accountant", without_the_list)
        assert "guarantee counts on" not in text


def test_who_was_trusted_is_said_without_a_guarantee_that_holds_against_anybody(statement):
    trust = " ".join(statement.privacy["trust_means"])
    assert "softened by rules that no proof covers, and knows whose it is" in trust
    assert "It holds against" not in trust
    assert "guarantee needs no sum" not in trust
    first, *rest = statement.privacy["not_protected"]
    assert first == NOTHING_PROTECTED
    assert rest == [each for each in NOT_PROTECTED if each != COMPOSED]


def test_an_audit_is_a_measurement_and_bounds_nothing(heuristic):
    audit = SimpleNamespace(claimed=None)
    audited = state(price_plan(heuristic()), PARTIES, "00" * 32, {}, run="r", sums={}, audit=audit)
    assert audited.privacy["audited"] is True
    assert promise(audited).endswith("is not bounded, and an audit measured it, which bounds nothing.")


def test_a_run_with_a_guarantee_says_nothing_of_this(heuristic):
    priced = price_plan(heuristic("counts", epsilon=8.0, delta=1e-6))
    privacy = state(priced, PARTIES, "00" * 32, {}, run="r", sums={}).privacy
    assert not {"guarantee", "audited"} & set(privacy)
    assert "heuristic" not in promised(privacy)
    assert Privacy.model_validate(privacy).guarantee is True
