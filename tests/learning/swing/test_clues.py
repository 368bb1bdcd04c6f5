"""Clue words: a file is checked, clues are found in text, and the tokens that they cover."""

import itertools
import re
import tomllib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aggregation.errors import ConclaveError
from learning.language.generation import Texts
from learning.swing.clues import CATEGORIES, SHIPPED, Clues, covered, encoded, marked, read


def _words(clues, text):
    return [text[start:stop] for start, stop in clues.spans(text)]


def test_the_shipped_file_has_four_categories_and_at_least_120_entries():
    clues = read()
    assert len(clues.entries) >= 120
    assert all(len(getattr(clues, category)) >= 30 for category in CATEGORIES)
    for entry in clues.entries:
        text = f" {entry.replace(' ... ', ' one two ')} "
        assert clues.spans(text), f"{entry} is not found in {text!r}"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Please CALL me on Monday, or call us\nat 555", ["CALL", "on", "call", "at"]),
        ("My ID is 4 6 7", ["ID"]),
        ("idle hidden rapid", []),
        ("a business  trip", ["business  trip"]),
        ("a business plan for the trip", []),
        ("jeff@x", ["@"]),
        ("see https://x", ["https:"]),
        ("xhttps://x", []),
        ("+1 or a+b", ["+", "+"]),
        ("call one two three four at", ["call", "at"]),
        ("call one two three four five at", []),
        ("call at", ["call", "at"]),
        ("call, if you can, at six", ["call", "at"]),
    ],
)
def test_clues_are_found_in_text(text, wanted):
    clues = Clues(
        personal=("id",), contact=("call ... at", "call ... on", "@", "+"), location=("business trip",),
        network=("https:",), gap=4,
    )  # fmt: skip
    assert _words(clues, text) == wanted


def test_no_clue_hides_another():
    clues = Clues(contact=("call ... at", "my id is", "id", "business trip", "trip to", "call"))
    text = "call my ID at a business trip to x"
    assert sorted(set(_words(clues, text))) == sorted(["call", "my ID"[3:], "at", "business trip", "trip to"])
    assert "my ID is" in _words(clues, "call my ID is at")


_ENTRY = st.lists(st.sampled_from(["a", "b", "ab", "a-b", "@", "a:", "..."]), min_size=1, max_size=4).map(" ".join)


def _found_one_by_one(entry, text, gap):
    """Every character that some occurrence of an entry covers, each entry looked for alone, from every place."""
    segments = [part.split() for part in re.split(r"(?:^|\s)\.\.\.(?:\s|$)", entry)]

    def bounded(words):
        left = r"\b" if words[0][0].isalnum() else ""
        right = r"\b" if words[-1][-1].isalnum() else ""
        return "(" + left + r"\s+".join(map(re.escape, words)) + right + ")"

    pattern = re.compile(rf"[^\w\s]*(?:\s+\S+){{0,{gap}}}?\s+".join(map(bounded, segments)), re.IGNORECASE)
    matches = filter(None, (pattern.match(text, start) for start in range(len(text))))
    return {place for match in matches for start, stop in match.regs[1:] for place in range(start, stop)}


@pytest.mark.slow
@given(
    st.lists(_ENTRY, min_size=1, max_size=6),
    st.lists(st.sampled_from(["a", "B", "ab", "A-b", "@", "a:", " ", " ", "\n", "x", ","]), max_size=20).map("".join),
)
def test_one_expression_finds_what_each_entry_alone_does(entries, text):
    try:
        clues = Clues(personal=tuple(entries), gap=2)
    except ConclaveError:
        return
    wanted = set().union(*(_found_one_by_one(entry, text, 2) for entry in entries))
    assert {place for start, stop in clues.spans(text) for place in range(start, stop)} == wanted


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('personal = ["name", " "]', "empty entry"),
        ('personal = ["name"]\ncontact = ["Name"]', "'Name' of contact is in personal already"),
        ('personal = ["call  ...  at", "call ... at"]', "already"),
        ('money = ["iban"]', "'money' is no category"),
        ("personal = [", "no TOML"),
        ("personal = [1]", "a list of texts"),
        ('personal = "name"', "a list of texts"),
        ('personal = ["... at"]', "begins or ends with a gap"),
        ('personal = ["call ... ... at"]', "two in a row"),
        ("personal = []", "no clue word at all"),
        ('gap = -1\npersonal = ["a"]', "gap of -1"),
        ('gap = true\npersonal = ["a"]', "gap of True"),
    ],
)
def test_a_file_that_is_wrong_is_refused_in_one_sentence(content, said, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(content)
    with pytest.raises(ConclaveError, match=re.escape(said)) as caught:
        read(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConclaveError, match=r"own\.toml cannot be read"):
        read(tmp_path / "own.toml")


def test_a_users_own_file_replaces_the_shipped_one(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('personal = ["project phoenix"]')
    assert _words(read(path), "Project Phoenix has a name") == ["Project Phoenix"]
    assert set(tomllib.loads(SHIPPED.read_text())) == {*CATEGORIES, "gap"}


def test_tokens_of_a_text_are_marked_by_offsets(byte_level):
    clues = Clues(personal=("ID",), contact=("call ... at", "@"))
    text = "Please call me at 555: jeff@example, my ID is 4"
    [(ids, found)] = encoded(clues, [text], byte_level)
    offsets = byte_level(text, return_offsets_mapping=True)["offset_mapping"]
    spans = clues.spans(text)
    wanted = [any(a < stop and start < b for start, stop in spans) for a, b in offsets]
    assert found.tolist() == wanted
    assert 0 < found.sum() < len(ids)


@pytest.mark.slow
@given(st.lists(st.sampled_from(["call", " me", " at", "@", "é", "\u20ac", "\U0001f600", " ", "ID", "x"]), max_size=12))
def test_texts_of_token_numbers_are_marked_as_their_characters_are(byte_level, parts):
    text = "".join(parts)
    clues = Clues(personal=("ID", "é"), contact=("call ... at", "@", "\u20ac"))
    ids = byte_level(text)["input_ids"]
    texts = Texts.joined([np.array([*ids, 0], np.int32), np.array(ids, np.int32)], 0)
    found = marked(clues, texts, byte_level)
    [(_, wanted)] = encoded(clues, [text], byte_level)
    # A token of some bytes of a character covers that character; a tokenizer's offsets say the same.
    assert found.tolist() == [*wanted.tolist(), False, *wanted.tolist()]


def test_bytes_that_are_no_text_mark_nothing_and_move_nothing(byte_level):
    clues = Clues(contact=("@",))
    broken = byte_level.get_vocab()["\u00c3"]  # the first byte of a character of two
    at = byte_level.get_vocab()["@"]
    texts = Texts.joined([np.array([broken, broken, at, broken, at], np.int32)], 0)
    assert marked(clues, texts, byte_level).tolist() == [False, False, True, False, True]


def test_sentencepiece_tokens_are_read_too():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = [("<unk>", 0.0), ("\u2581call", -1.0), ("\u2581me", -1.0), ("\u2581at", -1.0), ("<0x40>", -9.0)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, 0, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>")
    texts = Texts.joined([np.array([1, 2, 3, 4], np.int32)], 0)
    assert marked(Clues(contact=("call ... at", "@")), texts, made).tolist() == [True, False, True, True]


def test_a_tokenizer_that_guesses_at_spaces_is_refused():
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")
    with pytest.raises(ConclaveError, match="byte-level"):
        marked(Clues(contact=("@",)), Texts.joined([np.array([1], np.int32)], 0), made)


@pytest.mark.slow
@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4))))
def test_covered_is_having_a_character_in_common(sizes, spans):
    starts = np.concatenate([[0], np.cumsum(sizes)])
    inside = [(start, start + size) for start, size in spans if start + size <= starts[-1]]
    wanted = [any(max(a, start) < min(b, stop) for start, stop in inside) for a, b in itertools.pairwise(starts)]
    assert covered(inside, starts).tolist() == wanted
