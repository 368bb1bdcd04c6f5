"""A context is bound to every field, and none that leaves the parties unprotected can be made."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregation.errors import COORDINATOR, ConclaveError
from aggregation.secure_sum.context import Context, least_threshold

CONTEXT = Context("run", "ab", "votes", 0, ("east", "north", "south", "west"), 10, 1, 0, 3)


@pytest.mark.parametrize(
    "change",
    [
        {"run": "other"},
        {"plan_hash": "ac"},
        {"sum": "hidden"},
        {"attempt": 1},
        {"parties": ("east", "north", "south", "vest")},
        {"length": 11},
        {"dropouts": 0},
        {"colluders": 1},
        {"dropouts": 0, "threshold": 4},
    ],
)
def test_every_field_changes_the_digest(change):
    assert dataclasses.replace(CONTEXT, **change).digest != CONTEXT.digest


def test_fields_cannot_run_into_each_other():
    moved = dataclasses.replace(CONTEXT, run="runa", plan_hash="b")
    assert moved.digest != CONTEXT.digest


@given(st.integers(2, 60), st.integers(0, 60), st.integers(0, 60), st.integers(0, 70))
def test_a_context_exists_exactly_where_the_threshold_protects(parties, dropouts, colluders, threshold):
    names = tuple(f"{i:02}" for i in range(parties))
    safe = (parties + colluders) / 2 < threshold <= parties - dropouts
    if safe:
        context = Context("r", "p", "s", 0, names, 1, dropouts, colluders, threshold)
        assert context.fewest >= threshold
        assert threshold > colluders
    else:
        with pytest.raises(ConclaveError, match="threshold"):
            Context("r", "p", "s", 0, names, 1, dropouts, colluders, threshold)


@given(st.integers(2, 60), st.integers(0, 58))
def test_the_least_threshold_is_safe_and_one_less_is_not(parties, colluders):
    least = least_threshold(parties, colluders)
    assert 2 * least > parties + colluders >= 2 * (least - 1)


@pytest.mark.parametrize(
    "change",
    [
        {"parties": ("north",)},
        {"parties": ("south", "north", "east", "west")},
        {"parties": ("east", "east", "north", "west")},
        {"parties": ("", "east", "north", "west")},
        {"parties": ("east", "north", "south", COORDINATOR)},
        {"attempt": -1},
        {"length": 0},
        {"dropouts": -1},
        {"colluders": -1},
    ],
)
def test_a_context_that_names_no_sum_is_refused(change):
    with pytest.raises(ConclaveError):
        dataclasses.replace(CONTEXT, **change)


def test_names_are_put_in_order():
    made = Context.of(
        run="r", plan_hash="p", sum="s", attempt=0, parties=["b", "a", "c"], length=1, dropouts=1, colluders=0
    )
    assert made.parties == ("a", "b", "c")
    assert made.threshold == 2
