"""Elements of a file's XML, each by itself, wherever the chunks of the file end."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learning.text import pieces as reading
from learning.text.pieces import pieces


def found(content, name="row"):
    return list(pieces(io.BytesIO(content), "sheet", name))


@pytest.mark.slow
@given(st.lists(st.text("ab", max_size=9), max_size=6), st.integers(1, 40))
def test_every_element_is_found_wherever_a_chunk_ends(texts, chunk):
    content = (
        b'<sheet a="b"><data>' + b"".join(b"<row>%s</row >\n" % each.encode() for each in texts) + b"</data></sheet>"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "CHUNK", chunk)
        assert found(content) == [b'<sheet a="b"><row>%s</row ></sheet>' % each.encode() for each in texts]


@pytest.mark.slow
@given(st.binary(max_size=40).filter(lambda each: b"<" not in each), st.integers(1, 40))
def test_whatever_an_element_holds_the_others_are_the_same(inside, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "CHUNK", chunk)
        first, _, last = found(b"<sheet><row>1</row><row>" + inside + b"</row><row>3</row></sheet>")
    assert (first, last) == (b"<sheet><row>1</row></sheet>", b"<sheet><row>3</row></sheet>")


def test_an_element_that_is_not_closed_ends_where_the_next_begins():
    assert found(b"<sheet><row>1<row>2</row></sheet>") == [b"<sheet><row>1</sheet>", b"<sheet><row>2</row></sheet>"]


def test_names_that_begin_alike_and_other_prefixes_are_other_elements():
    assert found(b"<x:sheet><x:rows/><y:row>1</y:row><x:row/></x:sheet>") == [b"<x:sheet><x:row/></x:sheet>"]


def test_an_element_that_is_too_long_is_left_out_by_itself(monkeypatch):
    monkeypatch.setattr(reading, "CHUNK", 10)
    monkeypatch.setattr(reading, "LONGEST", 50)
    long = b"<row>" + b"x" * 1000 + b"</row>"
    assert found(b"<sheet><row>1</row>" + long + b"<row>3</row></sheet>") == [
        b"<sheet><row>1</row></sheet>", None, b"<sheet><row>3</row></sheet>",
    ]  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"<other/>", b"<sheet/>", b"<sheet>", b"<sheet><row>1</row>"])
def test_a_file_that_is_not_whole_is_told(content):
    with pytest.raises(SyntaxError):
        found(content)
