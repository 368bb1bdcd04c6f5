"""Messages filled from values and read back; enums as words."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregation.mechanisms.mechanism import Form
from aggregation.mechanisms.outside import OUTSIDE
from aggregation.mechanisms.registry import MECHANISMS
from protos.conclave.v1 import plan_pb2
from protos.fields import fill, number, read, word, words

NUMBERS = {
    "classes": 5, "teachers": 9, "threshold": 4.5, "threshold_noise": 3.0, "noise": 6.0, "larger_noise": 0.0, "cap": 1.0
}  # fmt: skip


def test_a_message_holds_the_values_and_gives_them_back():
    message = plan_pb2.ThresholdedVotes()
    fill(message, NUMBERS | {"larger_noise": None})
    assert read(message) == NUMBERS


def test_a_message_inside_is_there_or_not():
    message = plan_pb2.JointMechanism()
    votes = {"classes": 3, "levels": 1, "noise": 8.0, "shares": 2, "distribution": "gaussian"}
    fill(message, {"votes": votes, "hidden": None})
    assert read(message) == {"votes": votes, "hidden": None}
    assert not message.HasField("hidden")


@pytest.mark.parametrize("change", [{"more": 1}, {"cap": ...}])
def test_a_value_that_no_field_holds_is_not_lost_unseen(change):
    values = {name: value for name, value in (NUMBERS | change).items() if value is not ...}
    with pytest.raises(TypeError, match="ThresholdedVotes has fields"):
        fill(plan_pb2.ThresholdedVotes(), values)


@pytest.mark.parametrize("enum", [plan_pb2.Unit, plan_pb2.Record, plan_pb2.Trust, plan_pb2.Form])
def test_every_number_has_a_word_and_every_word_a_number(enum):
    assert sorted([0, *words(enum)]) == sorted(enum.values())
    assert all(number(enum, word(enum, each)) == each for each in words(enum))
    with pytest.raises(KeyError):
        number(enum, "unspecified")


def test_words_are_those_of_a_plan():
    assert set(words(plan_pb2.Unit).values()) == {"record", "user"}
    assert set(words(plan_pb2.Record).values()) == {"document", "sentence", "pair"}
    assert set(words(plan_pb2.Trust).values()) == {"trusted-aggregator", "secure-sum"}
    assert set(words(plan_pb2.Form).values()) == set(Form)


@given(st.integers(-(2**31), 2**31 - 1))
def test_any_number_has_some_word(each):
    known = {0: "unspecified", 1: "trusted-aggregator", 2: "secure-sum"}
    assert word(plan_pb2.Trust, each) == known.get(each, f"the unknown number {each}")


def test_every_mechanism_has_a_message_of_its_kind():
    """A new mechanism is a module, a line in the registry and a message: nothing else knows its kind."""
    fields = plan_pb2.Release.DESCRIPTOR.oneofs_by_name["mechanism"].fields
    assert {field.name for field in fields} == {*MECHANISMS, OUTSIDE}
    for field in fields:
        if field.name == OUTSIDE:
            continue  # of another package: its numbers are JSON
        assert set(field.message_type.fields_by_name) == {
            each.name for each in dataclasses.fields(MECHANISMS[field.name])
        }
