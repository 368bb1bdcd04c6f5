"""Packed fields come back as they were, and nothing else is taken for them."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregation.errors import COORDINATOR, Cheated
from aggregation.secure_sum.wire import pack, pack_all, speaker, text, unpack, unpack_all

FIELDS = st.lists(st.binary(max_size=20), max_size=6)


@given(FIELDS)
def test_fields_come_back(fields):
    assert unpack_all(pack_all(fields), "north") == fields


@pytest.mark.slow
@given(FIELDS, FIELDS)
def test_two_sequences_have_two_encodings(first, second):
    assert (pack_all(first) == pack_all(second)) == (first == second)


@pytest.mark.slow
@given(FIELDS.filter(bool), st.data())
def test_a_message_cut_short_is_refused_unless_whole_fields_are_left(fields, data):
    packed = pack_all(fields)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    whole = [pack_all(fields[:count]) for count in range(len(fields))]
    if cut in whole:
        assert unpack_all(cut, "north") == fields[: whole.index(cut)]
    else:
        with pytest.raises(Cheated, match="north sent a message that breaks off"):
            unpack_all(cut, "north")


def test_another_tag_number_or_length_of_fields_is_refused():
    message = pack("tag", b"abc", b"d")
    assert unpack(message, "tag", (3, None), "north") == [b"abc", b"d"]
    for tag, lengths in (("other", (3, None)), ("tag", (3,)), ("tag", (3, None, None)), ("tag", (2, None))):
        with pytest.raises(Cheated, match="north"):
            unpack(message, tag, lengths, "north")


def test_a_party_speaks_in_its_own_name_only_and_the_coordinator_relays():
    assert speaker(b"north", "north") == speaker(b"north", COORDINATOR) == "north"
    with pytest.raises(Cheated, match="south sent a message in the name of 'north'"):
        speaker(b"north", "south")


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(Cheated, match="not UTF-8"):
        text(b"\xff", "north")


def test_a_refusal_is_a_sentence_about_who_did_what_and_survives_pickling():
    refusal = pickle.loads(pickle.dumps(Cheated("north", "sent nonsense.")))  # noqa: S301
    assert (str(refusal), refusal.who) == ("north sent nonsense.", "north")
    assert str(Cheated(COORDINATOR, "asks twice.")) == "The coordinator asks twice."
