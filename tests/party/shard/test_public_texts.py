"""Public texts that were provided: what is no list of texts, or of pairs, is said to be none."""

import json

import pytest

from party.errors import TrainingError
from party.shard.public_texts import is_text, listed, public_texts


@pytest.fixture
def holding(tmp_path):
    """`holding(content)`: the path of a file that holds these bytes, or this value as JSON."""

    def writes(content):
        path = tmp_path / "texts"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return path

    return writes


def test_texts_and_pairs_come_in_their_order(holding):
    texts = ["one", "", "\u00e9t\u00e9", "one"]
    assert public_texts(holding(texts), pairs=False) == texts
    assert public_texts(holding([["a", "b"], ["", "c"]]), pairs=True) == [["a", "b"], ["", "c"]]


@pytest.mark.parametrize(
    "content",
    [b"", b"[", b"[" * 10**6, b"\xff", {"a": "b"}, [], ["a", 1], ["a", None], ["a", ["b"]], ["\ud800"], "a", 1],
)
def test_what_is_no_list_of_texts_ends_with_a_sentence(holding, content):
    with pytest.raises(TrainingError, match=r"are no JSON list of texts\. Start the run again\."):
        public_texts(holding(content), pairs=False)


@pytest.mark.parametrize("content", [["a", "b"], [["a"]], [["a", "b", "c"]], [["a", 1]], [["a", "\ud800"]], []])
def test_what_is_no_list_of_pairs_ends_with_a_sentence(holding, content):
    with pytest.raises(TrainingError, match="are no JSON list of lists of two texts"):
        public_texts(holding(content), pairs=True)


def test_a_list_is_taken_as_it_is(holding):
    assert listed(holding([1, ["a"], "b"])) == [1, ["a"], "b"]
    assert listed(holding({"a": 1})) == []


def test_half_a_surrogate_pair_is_no_text():
    assert [is_text(each) for each in ("a", "", "\U0001f600", "\udc00", b"a", None)] == [True] * 3 + [False] * 3
