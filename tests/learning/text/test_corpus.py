"""A corpus read in place: which rows it has, under which numbers, and what is said of files that cannot be read."""

import hashlib
import json
import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learning.errors import DataError
from learning.text import corpus as corpus_module
from learning.text import corpus_files
from learning.text.corpus import REPEATED, Corpus, indexed
from learning.text.corpus_files import NO_TEXT, CorpusSource


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def whole(corpus: Corpus, column=0):
    return list(corpus.texts(range(corpus.count()), column=column))


def digest_of(rows):
    found = hashlib.sha256()
    for text in (text for row in rows for text in row):
        found.update(len(text.encode()).to_bytes(8, "big") + text.encode())
    return found.hexdigest()


def test_rows_of_several_sources_are_numbered_in_order(tmp_path):
    first = lines(tmp_path / "a.jsonl", [{"text": f"a{i}", "more": i} for i in range(7)])
    second = lines(tmp_path / "b.jsonl", [{"body": f"b{i}"} for i in range(9)])
    (tmp_path / "c").mkdir()
    for name in ("2.txt", "1.txt"):
        (tmp_path / "c" / name).write_text(f"one\n\ntext of {name}")
    sources = [
        CorpusSource(first, limit=5),
        CorpusSource(second, text="body", take=(3, 1)),
        CorpusSource(str(tmp_path / "c")),
    ]
    corpus = indexed(sources, tmp_path / "index")
    expected = ["a0", "a1", "a2", "a3", "a4", "b1", "b4", "b7", "one\n\ntext of 1.txt", "one\n\ntext of 2.txt"]
    assert whole(corpus) == expected
    assert corpus.count() == len(expected)
    assert corpus.digest == digest_of((text,) for text in expected)
    assert list(corpus.texts([9, 0, 6, 6, 1])) == [expected[n] for n in (9, 0, 6, 6, 1)]
    blocks = list(corpus.blocks(4))
    assert [first for first, _ in blocks] == [0, 4, 8]
    assert [text for _, texts in blocks for text in texts] == expected
    for wrong in (-1, 10):
        with pytest.raises(IndexError, match="0 to 9"):
            list(corpus.texts([wrong]))


def test_two_shares_of_a_file_have_no_row_in_common_and_miss_none(tmp_path):
    name = lines(tmp_path / "a.jsonl", [{"text": f"t{i}" if i % 5 else None} for i in range(40)])
    shares = [whole(indexed([CorpusSource(name, take=(2, each))], tmp_path / "index")) for each in (0, 1)]
    assert sorted(shares[0] + shares[1]) == sorted(f"t{i}" for i in range(40) if i % 5)
    assert shares[0][0] == "t2"


@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(["a", "b", "a ", "é", "", "c\nd", "\u2028"]), min_size=1, max_size=40), st.booleans())
def test_repeats_are_left_out_but_for_the_first(tmp_path_factory, texts, distinct):
    folder = tmp_path_factory.mktemp("corpus")
    half = len(texts) // 2
    sources = [
        CorpusSource(lines(folder / f"{name}.jsonl", [{"text": text} for text in some]))
        for name, some in (("a", texts[:half]), ("b", texts[half:]))
        if some
    ]
    usable = [text for text in texts if text.strip()]
    if not usable:
        with pytest.raises(DataError, match="has no text"):
            indexed(sources, folder / "index", distinct=distinct)
        return
    corpus = indexed(sources, folder / "index", distinct=distinct)
    expected = list(dict.fromkeys(usable)) if distinct else usable
    assert whole(corpus) == expected
    assert corpus.digest == digest_of((text,) for text in expected)
    assert corpus.left_out.get(REPEATED, 0) == len(usable) - len(expected)
    assert corpus.left_out.get(NO_TEXT, 0) == len(texts) - len(usable)


def test_repeats_are_found_across_shares_of_the_hashes(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus_module, "_SORTED", 16)
    monkeypatch.setattr(corpus_module, "_FLUSHED", 8)
    texts = [f"text {(i * i) % 61}" for i in range(200)]
    corpus = indexed([CorpusSource(lines(tmp_path / "a.jsonl", [{"text": t} for t in texts]))], tmp_path / "index")
    assert whole(corpus) == list(dict.fromkeys(texts))
    assert list(corpus.left_out.values()) == [200 - len(set(texts))]


def test_pairs_have_two_texts_a_row(tmp_path):
    rows = [
        {"q": "a", "p": "b"},
        {"q": "a", "p": "c"},
        {"q": "a", "p": ""},
        {"q": "a", "p": "b"},
        {"q": "ab", "p": "c"},
    ]
    name = lines(tmp_path / "a.jsonl", rows)
    corpus = indexed([CorpusSource(name, text="q", second="p")], tmp_path / "index")
    assert list(corpus.rows(range(corpus.count()))) == [("a", "b"), ("a", "c"), ("ab", "c")]
    assert whole(corpus, 1) == ["b", "c", "c"]
    assert corpus.width == 2
    assert corpus.left_out == {"no second text": 1, REPEATED: 1}
    with pytest.raises(DataError, match="single texts or of pairs"):
        indexed([CorpusSource(name, text="q", second="p"), CorpusSource(name, text="q")], tmp_path / "index")
    single = indexed([CorpusSource(name, text="q")], tmp_path / "index")
    with pytest.raises(ValueError, match="no column 1"):
        single.texts([0], column=1)


def test_an_index_is_made_once_and_again_when_a_file_changes(tmp_path, monkeypatch):
    name = lines(tmp_path / "a.jsonl", [{"text": "x"}, {"text": "y"}])
    corpus = indexed([CorpusSource(name)], tmp_path / "index")
    travelled = pickle.loads(pickle.dumps(corpus))  # noqa: S301
    assert whole(travelled) == ["x", "y"]
    with monkeypatch.context() as patched:
        patched.setattr(corpus_module, "_write", lambda *_: pytest.fail("made again"))
        assert indexed([CorpusSource(name)], tmp_path / "index") == corpus
    lines(tmp_path / "a.jsonl", [{"text": "y"}, {"text": "x"}])
    os.utime(name, ns=(0, 10**9))
    with pytest.raises(DataError, match="was changed after the corpus was indexed"):
        whole(corpus)
    assert whole(indexed([CorpusSource(name)], tmp_path / "index")) == ["y", "x"]
    os.unlink(name)
    with pytest.raises(DataError, match=r"a\.jsonl cannot be read"):
        whole(corpus)
    assert not list((tmp_path / "index").glob(".making-*"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": "a"}\n\n{"text": \n', "line 3: not JSON"),
        (b'{"text": "a"}\n["b"]\n', "line 2: not an object"),
        (b'{"text": "a"}\n{"text": "\xff"}\n', "line 2: not UTF-8"),
        (b'{"text": "a"}\n{"text": 5}\n', "line 2: 'text' is no text"),
        (b'{"body": "a", "id": 1}\n', "no column 'text'. Its columns are: body, id."),
        (b"", "has no text"),
        (b'{"text": null}\n{"text": " "}\n', "2 rows: no text"),
        (b'{"text": "' + b"x" * 200 + b'"}', "line 1: longer than"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path, monkeypatch, content, said):
    monkeypatch.setattr(corpus_files, "LONGEST_ROW", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as error:
        indexed([CorpusSource(str(path))], tmp_path / "index")
    assert said in str(error.value)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrong_source_is_one_sentence(tmp_path):
    (tmp_path / "a.csv").write_text("text\na\n")
    (tmp_path / "both").mkdir()
    (tmp_path / "both" / "a.txt").write_text("a")
    lines(tmp_path / "both" / "a.jsonl", [{"text": "a"}])
    for source, said in [
        (CorpusSource(str(tmp_path / "gone.jsonl")), "does not exist"),
        (CorpusSource(str(tmp_path / "*.jsonl")), "matches no file"),
        (CorpusSource(str(tmp_path / "a.csv")), "of no kind"),
        (CorpusSource(str(tmp_path / "both")), "holds both"),
        (CorpusSource(str(tmp_path / "both" / "*.txt"), text="body"), "no column 'body'"),
    ]:
        with pytest.raises(DataError, match=said):
            indexed([source], tmp_path / "index")
    with pytest.raises(DataError, match="needs a source"):
        indexed([], tmp_path / "index")
    with pytest.raises(DataError, match=r"take = \[2, 2\]"):
        CorpusSource("a", take=(2, 2))
    with pytest.raises(DataError, match="limit = 0"):
        CorpusSource("a", limit=0)


def test_a_mark_of_byte_order_is_no_part_of_a_text(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "a"}\r\n{"text": "b"}')
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfc")
    sources = [CorpusSource(str(tmp_path / name)) for name in ("a.jsonl", "b.txt")]
    assert whole(indexed(sources, tmp_path / "index")) == ["a", "b", "c"]
