"""What is said of a run: the same in its report, on the model card and in `privacy.json`."""

import math

import pytest
from dp_accounting import get_epsilon_gaussian

from coordinator.publishing.report import NOT_PROTECTED, markdown, render, state
from coordinator.systems.registry import plan_of, price_of
from coordinator.verifying.attestations import OVERCHARGED

PARTIES = ("east", "north", "south")


@pytest.fixture(scope="module")
def statement():
    tables = {
        "run": {"name": "demo", "recipe": "dped", "seed": 7},
        "privacy": {"epsilon": 6.0, "delta": 1e-6, "trust": "secure-sum"},
        "federation": {
            "launch": "connect",
            "parties": [{"name": name, "address": "127.0.0.1:7443"} for name in PARTIES],
        },
        "vocabulary": {"source": "public.jsonl", "size": 30},
        "dped": {"signals": ["counts"], "dimension": 4},
    }
    return state(price_of(plan_of(tables)), PARTIES, "00" * 32, {}, run="r", sums={}, left_out={"north": OVERCHARGED})


def rendered(statement):
    told = {"run": "r", "status": "finished", "error": None, "student": None, "epsilon": statement.epsilon}
    return render(told | {"privacy": statement.privacy, "metrics": None, "stages": {}})


def test_what_is_not_protected_is_one_list_in_all_three_places(statement):
    assert statement.privacy["not_protected"] == list(NOT_PROTECTED)
    card, report = markdown(statement), rendered(statement)
    for each in NOT_PROTECTED:
        assert f"- {each}\n" in card
        assert f"  - {each}\n" in report


@pytest.mark.parametrize(
    "what",
    [
        "number of parties",
        "policy lets it tell",
        "how large its shard is",
        "[policy] step_seconds",
        "ledger let it join",
        "lies at several parties",
        "party that lies",
        "earlier runs",
        "sees the wire",
    ],
)
def test_what_remains_open_is_listed_in_one_short_sentence(what):
    (found,) = (each for each in NOT_PROTECTED if what in each)
    assert len(found) < 250


def test_the_price_of_known_batch_sizes_is_that_of_their_binomials():
    """To first order one Gaussian release; `benchmarks/batch_sizes.py` has the exact figure, 0.874."""
    units, rate, steps = 1000, 0.1, 500
    about = get_epsilon_gaussian(math.sqrt(units * (1 - rate) / (rate * steps)), 1e-5)
    (said,) = (each for each in NOT_PROTECTED if "epsilon 0.88 more at delta 1e-5" in each)
    assert 0.86 < about < 0.88
    assert all(figure in said for figure in ("500 steps", "rate of 0.1", "1,000 units"))


def test_a_party_that_is_left_out_is_named_wherever_the_promise_is(statement):
    sentence = f"Nothing is promised for north: {OVERCHARGED}."
    assert sentence in markdown(statement)
    assert f"left out   {sentence}" in rendered(statement)
    assert statement.privacy["left_out"] == {"north": OVERCHARGED}


def test_no_sentence_says_that_nothing_else_is_learned_of_a_party(statement):
    (sentence,) = (each for each in statement.privacy["trust_means"] if each.startswith("Secure sum"))
    assert "and of each party alone what is listed as not protected" in sentence
