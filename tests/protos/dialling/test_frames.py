"""Frames, as they are sent and as hostile bytes."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protos.dialling.frames import DEAD_SECONDS, LONGEST, PING_SECONDS, Garbled, Kind, expect, frame, read, spoken


async def read_all(sent):
    """Every frame in these bytes, and how it ended."""
    reader, found = asyncio.StreamReader(), []
    reader.feed_data(sent)
    reader.feed_eof()
    try:
        while True:
            found.append(await read(reader))
    except (Garbled, EOFError) as end:
        return found, type(end)


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(Kind), st.binary(max_size=300))), st.integers(0, 50))
def test_frames_come_as_they_were_sent_until_the_connection_ends(sent, cut):
    whole = b"".join(frame(kind, content) for kind, content in sent)
    assert asyncio.run(read_all(whole)) == (sent, EOFError)
    found, end = asyncio.run(read_all(whole[: max(0, len(whole) - cut)]))
    assert found == sent[: len(found)]
    assert end is EOFError


@given(st.binary(max_size=2000))
def test_no_bytes_are_an_error_of_another_kind(sent):
    found, end = asyncio.run(read_all(sent))
    assert end in (Garbled, EOFError)
    assert all(len(content) <= LONGEST for _, content in found)


def test_a_frame_that_is_too_long_is_not_sent_and_not_read():
    with pytest.raises(ValueError, match="at most"):
        frame(Kind.HELLO, b"x" * (LONGEST + 1))
    header = bytes([Kind.HELLO]) + (LONGEST + 1).to_bytes(2, "big")
    assert asyncio.run(read_all(header))[1] is Garbled, "its content is not waited for"


@pytest.mark.parametrize("content", [b"", b"[]", b"1e999", b"\xff", b"[" * 8000, b'{"a": 1'])
async def test_a_frame_that_is_no_object_is_garbled(content):
    reader = asyncio.StreamReader()
    reader.feed_data(frame(Kind.HELLO, content))
    with pytest.raises(Garbled):
        await expect(reader, Kind.HELLO)


async def test_another_word_than_the_expected_one_is_garbled():
    reader = asyncio.StreamReader()
    reader.feed_data(spoken(Kind.WELCOME))
    with pytest.raises(Garbled):
        await expect(reader, Kind.CHALLENGE, Kind.REFUSED)


def test_a_lost_ping_or_two_are_no_death():
    assert DEAD_SECONDS > 2 * PING_SECONDS
