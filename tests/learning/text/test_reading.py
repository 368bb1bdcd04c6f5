"""Files as people have them: other encodings, other delimiters, compressed; and what a file is said to look like."""

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from learning.errors import DataError
from learning.text.preview import preview
from learning.text.reading import advice, check_delimiter, check_encoding, offered
from learning.text.source import Skipped, Source, keys_offered, read, records

ROWS = [("schöner Text, lang", "1"), ("“naïve” – café", "0"), ("plain; simple", "1")]
SHEET = "note;label\r\n" + "".join(f'"{text}";{label}\r\n' for text, label in ROWS)
LINES = '{"text": "grün"}\n{"text": "blau"}\n'


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str, bytes], str]:
    def make(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        return str(tmp_path / name)

    return make


def texts(source: Source, tmp_path: Path) -> list[str]:
    return [document.text for document in read(source, tmp_path)]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("lenient", [False, True])
def test_a_windows_spreadsheet_is_read_as_its_keys_say(file, tmp_path, packed, lenient):
    content = SHEET.encode("cp1252")
    path = file("notes.csv.gz", gzip.compress(content)) if packed else file("notes.csv", content)
    source = Source(path, text="note", label="label", encoding="cp1252", delimiter=";")
    found = list((records if lenient else read)(source, tmp_path))
    assert [(each.text, each.fields["label"]) for each in found] == ROWS


@pytest.mark.parametrize(
    ("name", "content", "keys"),
    [
        ("a.csv", SHEET.encode("cp1252"), {"encoding": "cp1252", "delimiter": ";"}),
        ("a.csv.gz", gzip.compress(SHEET.encode("cp1252")), {"encoding": "cp1252", "delimiter": ";"}),
        ("a.csv", SHEET.encode(), {"delimiter": ";"}),
        ("a.csv", SHEET.encode("utf-8-sig"), {"delimiter": ";"}),
        ("a.csv", b"text,label\nsome; text,1\nmore,0\n", {}),
        ("a.csv", b"text|label\nsome, text|1\nmore|0\n", {"delimiter": "|"}),
        ("a.csv", b"text\none, two\nthree\n", {}),
        ("a.csv", b"text,label\na\xe4\x81,1\n", {"encoding": "latin-1"}),
        ("a.tsv", "text\tlabel\nschön\t1\n".encode("cp1252"), {"encoding": "cp1252"}),
        ("a.jsonl", LINES.encode(), {}),
        ("a.jsonl", LINES.encode("cp1252"), {"encoding": "cp1252"}),
        ("a.txt", "schön; gut".encode("cp1252"), {"encoding": "cp1252"}),
        ("a.parquet", b"\xe4\xff", {}),
        ("a.csv", "text;label\n".encode("utf-16"), {}),
    ],
    ids=lambda value: "" if isinstance(value, bytes) else str(value),  # what is packed holds the time
)
def test_what_a_file_looks_like_is_offered(file, name, content, keys):
    assert offered(Path(file(name, content))) == keys
    assert keys_offered(file(name, content)) == keys


def test_a_file_that_is_cut_in_a_letter_is_still_utf_8(file):
    content = b"text\n" + "ä".encode() * (1 << 20)
    assert offered(Path(file("a.csv", content))) == {}


def test_the_error_says_which_keys_would_do(file, tmp_path):
    path = file("notes.csv", SHEET.encode("cp1252"))
    with pytest.raises(
        DataError, match=r'line 2: not UTF-8. Set encoding = "cp1252" and delimiter = ";", which the file'
    ):
        texts(Source(path, text="note", delimiter=";"), tmp_path)
    with pytest.raises(DataError, match=r'They look as if they were several: set delimiter = ";".'):
        texts(Source(file("other.csv", SHEET.encode()), text="note"), tmp_path)
    with pytest.raises(DataError, match=r"It is UTF-16: save it as UTF-8"):
        texts(Source(file("wide.csv", SHEET.encode("utf-16")), text="note"), tmp_path)
    with pytest.raises(DataError, match=r'line 1: not of the encoding "cp1252"'):
        texts(Source(file("bad.jsonl", b'{"text": "\x81"}\n'), encoding="cp1252"), tmp_path)
    assert advice(tmp_path / "gone.csv") == "Convert the file, then try again."


def test_a_private_row_that_is_not_of_the_encoding_costs_itself_alone(file, tmp_path):
    path = file("rows.jsonl", b'{"text": "gr\xfcn"}\n{"text": "\x81"}\n{"text": "rot"}\n')
    skipped = Skipped()
    found = list(records(Source(path, encoding="cp1252"), tmp_path, skipped))
    assert [each and each.text for each in found] == ["grün", None, "rot"]
    assert skipped.total == 1


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.json.gz", "rows.txt.gz", "rows.tsv.gz"])
def test_every_kind_of_text_file_may_be_compressed(file, tmp_path, name):
    content = {"json.gz": b'[{"text": "one"}, {"text": "two"}]', "txt.gz": b"one", "tsv.gz": b"text\nx\none\n"}
    path = file(name, gzip.compress(content.get(name.partition(".")[2], b'{"text": "one"}\n{"text": "two"}\n')))
    assert "one" in texts(Source(path), tmp_path)
    assert "one" in texts(Source(str(tmp_path)), tmp_path)
    assert "one" in [each.text for each in records(Source(path), tmp_path) if each is not None]


@pytest.mark.parametrize("reader", [read, records])
def test_a_broken_gzip_file_is_told_in_a_sentence(file, tmp_path, reader):
    whole = gzip.compress(LINES.encode() * 50)
    for name, content in (("cut.jsonl.gz", whole[:-20]), ("none.jsonl.gz", b"no gzip"), ("cut.txt.gz", whole[:-20])):
        with pytest.raises(DataError, match="cannot be read: it is no whole gzip file"):
            list(reader(Source(file(name, content)), tmp_path))


def test_a_compressed_private_text_is_never_held_whole(file, tmp_path, monkeypatch):
    monkeypatch.setattr("learning.text.files.MAXIMUM_CELL", 1000)
    path = file("long.txt.gz", gzip.compress(b"x" * 5000))
    assert list(records(Source(path), tmp_path)) == [None]


def test_a_compressed_parquet_file_is_of_no_kind_that_is_read(file, tmp_path):
    with pytest.raises(DataError, match="is of no kind that can be read"):
        texts(Source(file("a.parquet.gz", b"")), tmp_path)


@pytest.mark.parametrize("name", ["utf-8", "cp1252", "latin-1", "shift_jis", "cp1251"])
def test_encodings_that_end_lines_as_ascii_does_are_known(name):
    assert check_encoding(name) == name


@pytest.mark.parametrize("name", ["utf-16", "utf-7", "rot13", "cp037", "klingon", ""])
def test_other_encodings_are_refused_in_a_sentence(name):
    with pytest.raises(ValueError, match="Common ones: utf-8, cp1252"):
        check_encoding(name)


def test_a_delimiter_is_one_character_that_no_text_needs():
    assert check_delimiter("\t") == "\t"
    for text in ("", ";;", '"', "\n", "a"):
        with pytest.raises(ValueError, match="one character"):
            check_delimiter(text)


def test_a_preview_guesses_columns_by_name_and_by_what_they_hold(file, tmp_path):
    rows = "".join(f"{n},a sentence of some length {n},{'yes' if n % 3 else 'no'},p{n % 9}\n" for n in range(30))
    path = file("a.csv", f"nr,body,answer,patient\n{rows}".encode())
    found = preview(Source(path), tmp_path)
    assert (found.text, found.label, found.user, found.rows, found.whole) == ("body", "answer", "patient", 30, True)
    answer = found.named("answer")
    assert answer is not None
    assert answer.classes == ("no", "yes")
    assert answer.said == "2 values: no, yes"
    body = found.named("body")
    assert body is not None
    assert "a sentence" not in body.said
    assert found.named("nowhere") is None


def test_a_preview_looks_at_no_more_rows_than_it_says(file, tmp_path, monkeypatch):
    monkeypatch.setattr("learning.text.preview.MOST_ROWS", 10)
    found = preview(Source(file("a.jsonl", b'{"text": "x"}\n' * 11)), tmp_path)
    assert (found.rows, found.whole) == (10, False)
    with pytest.raises(DataError, match="is empty"):
        preview(Source(file("b.jsonl", b"")), tmp_path)
