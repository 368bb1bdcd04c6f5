import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from learning.errors import DataError
from learning.text.words import Vocabulary, sentences, tokenize


def test_words_are_lower_case_runs_of_letters() -> None:
    assert tokenize("Don't call read_file2(x) — it’s Über-naïve!") == [
        *("don't", "call", "read", "file", "x", "it's", "über", "naïve"),
    ]
    assert tokenize("12 + 3 == '' ''") == []


def test_sentences_end_at_stops_and_blank_lines() -> None:
    assert sentences("One. Two?  “Three!” Four\nstill four\n\nFive 1.5") == [
        *("One.", "Two?", "“Three!”", "Four\nstill four", "Five 1.5"),
    ]
    assert sentences(" \n\n ") == []


@given(st.text())
def test_a_word_is_what_tokenizing_makes_of_itself(text: str) -> None:
    for word in tokenize(text):
        assert tokenize(word) == [word]


def test_the_most_frequent_words_come_first_and_ties_alphabetically() -> None:
    assert Vocabulary.from_public(["b c a", "c b c d"], 3).words == ("c", "b", "a")
    assert Vocabulary.from_public(["b a"], 10).words == ("a", "b")


def test_public_text_without_words_is_refused() -> None:
    with pytest.raises(DataError, match="1 to"):
        Vocabulary.from_public(["123", ""], 10)


def test_words_are_encoded_by_position_and_unknown_ones_by_minus_one() -> None:
    vocabulary = Vocabulary(("the", "file"))
    encoded = vocabulary.encode(["file", "nope", "the"])
    assert encoded.dtype == np.int32
    assert encoded.tolist() == [1, -1, 0]
    assert vocabulary.encode([]).shape == (0,)
    assert (vocabulary.position("nope"), "file" in vocabulary, len(vocabulary)) == (-1, True, 2)


@pytest.mark.slow
@given(st.lists(st.text(), min_size=1))
def test_a_vocabulary_survives_its_bytes(texts: list[str]) -> None:
    words = tuple(dict.fromkeys(word for text in texts for word in tokenize(text)))
    if words:
        vocabulary = Vocabulary(words)
        again = Vocabulary.from_bytes(vocabulary.to_bytes())
        assert again == vocabulary
        assert again.sha256 == vocabulary.sha256 == hashlib.sha256(vocabulary.to_bytes()).digest()


def test_the_bytes_are_fixed_for_good() -> None:
    """Both ends name the vocabulary by the digest of these bytes."""
    assert (
        Vocabulary(("the", "über")).to_bytes() == '{"format":"conclave.vocabulary/1","words":["the","über"]}'.encode()
    )


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b'["the"]', "not of the form"),
        (b'{"format":"conclave.vocabulary/1","words":"the"}', "not of the form"),
        (b'{"format":"conclave.vocabulary/1","words":[1]}', "not of the form"),
        (b'{"format":"conclave.vocabulary/1","words":[]}', "1 to"),
        (b'{"format":"conclave.vocabulary/1","words":["a","a"]}', "'a' twice"),
        (b'{"format":"conclave.vocabulary/1","words":["Two words"]}', "not one lower-case word"),
        (b'{"format":"conclave.vocabulary/1", "words":["a"]}', "not canonical"),
    ],
)
def test_bytes_that_are_no_vocabulary_are_refused(content: bytes, says: str) -> None:
    with pytest.raises(DataError, match=says):
        Vocabulary.from_bytes(content)
