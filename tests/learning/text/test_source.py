import json
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learning.errors import DataError
from learning.text import files, hub
from learning.text.source import Document, Skipped, Source, columns, read

ROWS = [
    {"note": "The first note.", "who": "ann", "kind": "a"},
    {"note": "A second, with a comma.", "who": "bob", "kind": "b"},
    {"note": "Third — über naïve.", "who": "ann", "kind": "a"},
]


def _write(folder: Path, ending: str, rows: list[dict[str, str]] = ROWS) -> Path:
    path = folder / f"notes.{ending}"
    if ending == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ending == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif ending == "json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    else:
        import csv

        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if ending == "tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path


def _read(source: Source, cache: Path, skipped: Skipped | None = None) -> list[Document]:
    return list(read(source, cache, skipped))


@pytest.mark.parametrize("ending", ["csv", "tsv", "jsonl", "json", "parquet"])
def test_every_kind_of_table_gives_the_same_documents(tmp_path: Path, ending: str) -> None:
    source = Source(str(_write(tmp_path, ending)), text="note", user="who", columns=("kind",))
    found = _read(source, tmp_path / "cache")
    assert [document.text for document in found] == [row["note"] for row in ROWS]
    assert [dict(document.fields) for document in found] == [{"who": r["who"], "kind": r["kind"]} for r in ROWS]
    assert columns(source, tmp_path / "cache") == ["note", "who", "kind"]


def test_the_id_is_the_digest_of_the_text_unless_a_column_is_named(tmp_path: Path) -> None:
    path = _write(tmp_path, "jsonl", [{"text": "abc", "key": "k-1"}])
    assert (
        _read(Source(str(path)), tmp_path)[0].id == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )
    assert _read(Source(str(path), id="key"), tmp_path)[0].id == "k-1"


def test_a_folder_of_text_gives_one_document_a_file(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "b.txt").write_text("Two\nlines.\n")
    (tmp_path / "in" / "a.txt").write_text("\ufeffDeep.", encoding="utf-8")
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / "notes.md").write_text("no")
    found = _read(Source(str(tmp_path), id="file"), tmp_path / "cache")
    assert [(document.id, document.text) for document in found] == [("b.txt", "Two\nlines.\n"), ("in/a.txt", "Deep.")]


def test_a_folder_of_tables_gives_one_document_a_row(tmp_path: Path) -> None:
    for name in ("2.jsonl", "1.jsonl"):
        (tmp_path / name).write_text(f'{{"text": "from {name}"}}\n')
    assert [d.text for d in _read(Source(str(tmp_path)), tmp_path / "c")] == ["from 1.jsonl", "from 2.jsonl"]


def test_a_folder_of_both_kinds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "b.csv").write_text("text\nx\n")
    with pytest.raises(DataError, match=r"both b\.csv .* and a\.txt .*glob"):
        _read(Source(str(tmp_path)), tmp_path / "c")


def test_a_glob_reads_the_files_it_matches_in_order(tmp_path: Path) -> None:
    for name in ("b", "a", "skip"):
        (tmp_path / f"{name}.jsonl").write_text(f'{{"text": "{name}"}}\n')
    assert [d.text for d in _read(Source(str(tmp_path / "?.jsonl")), tmp_path / "c")] == ["a", "b"]
    with pytest.raises(DataError, match="matches no file"):
        _read(Source(str(tmp_path / "*.csv")), tmp_path / "c")


def test_the_newlines_and_quotes_of_a_csv_cell_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,n\n"one ""line""\nand more",1\n', encoding="utf-8")
    assert _read(Source(str(tmp_path / "a.csv")), tmp_path)[0].text == 'one "line"\nand more'


@pytest.mark.parametrize("name", ["gone.csv", "gone.txt", "some/where/gone.jsonl", "/no/such/folder"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError, match=f"^{name} does not exist"):
        _read(Source(name), tmp_path)


def test_a_file_of_unknown_kind_is_named_with_the_kinds_there_are(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_text("x")
    with pytest.raises(DataError, match=r"a\.docx is of no kind.*\.jsonl"):
        _read(Source(str(tmp_path / "a.docx")), tmp_path)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "json", "parquet"])
@pytest.mark.parametrize("role", ["text", "id", "user", "label", "columns"])
def test_a_missing_column_is_named_with_those_there_are(tmp_path: Path, ending: str, role: str) -> None:
    mapping = {"text": "note", role: ("nope",) if role == "columns" else "nope"}
    source = Source(str(_write(tmp_path, ending)), **mapping)
    with pytest.raises(DataError, match=rf"notes\.{ending} has no column 'nope'.*note, who, kind"):
        _read(source, tmp_path)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "json", "txt"])
def test_an_empty_file_is_named(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"a.{ending}").touch()
    with pytest.raises(DataError, match=rf"a\.{ending} (is empty|has no row)"):
        _read(Source(str(tmp_path / f"a.{ending}")), tmp_path)


def test_a_table_of_columns_and_no_row_is_empty(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,who\n")
    with pytest.raises(DataError, match=r"a\.csv is empty"):
        _read(Source(str(tmp_path / "a.csv")), tmp_path)


def test_an_empty_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no file that ends in .*\.parquet"):
        _read(Source(str(tmp_path)), tmp_path / "c")


@pytest.mark.parametrize(("ending", "line"), [("csv", 3), ("jsonl", 2), ("txt", 1)])
def test_text_that_is_not_utf_8_is_named_by_file_and_line(tmp_path: Path, ending: str, line: int) -> None:
    content = {
        "csv": b"text\ngood\nbad \xff\n",
        "jsonl": b'{"text": "good"}\n{"text": "\xff"}\n',
        "txt": b"\xff\xfea\x00",
    }
    (tmp_path / f"a.{ending}").write_bytes(content[ending])
    with pytest.raises(DataError, match=rf"a\.{ending}, line {line}: not UTF-8"):
        _read(Source(str(tmp_path / f"a.{ending}")), tmp_path)


def test_rows_that_are_no_use_are_skipped_and_counted_by_reason(tmp_path: Path) -> None:
    lines = [
        '{"text": "kept", "who": "ann"}',
        '{"text": 5, "who": "ann"}',
        '{"text": null, "who": "ann"}',
        '{"text": "  ", "who": "ann"}',
        '{"who": "ann"}',
        '{"text": "nobody\'s", "who": null}',
        '{"text": "half \\ud800", "who": "ann"}',
        "[1]",
        '"a string"',
        "{broken",
        "",
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    skipped = Skipped()
    assert [d.text for d in _read(Source(str(tmp_path / "a.jsonl"), user="who"), tmp_path, skipped)] == ["kept"]
    reasons = {"not text": 1, "no text": 3, "no user": 1, "not UTF-8": 1, "not an object": 2, "not JSON": 1}
    assert skipped.reasons == reasons
    assert skipped.total == 9


def test_rows_of_a_csv_with_the_wrong_number_of_cells_are_skipped(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,n\ngood,1\nshort\nlong,1,2\n")
    skipped = Skipped()
    assert len(_read(Source(str(tmp_path / "a.csv")), tmp_path, skipped)) == 1
    assert skipped.reasons == {"with another number of columns": 2}


def test_a_parquet_cell_that_is_not_utf_8_is_skipped(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.array([0, 2, 4], pa.int32()).buffers()[1], pa.py_buffer(b"ok\xff\xfe")]
    )
    pq.write_table(pa.table({"text": broken, "raw": pa.array([b"ok", b"\xff"])}), tmp_path / "a.parquet")
    for column in ("text", "raw"):
        skipped = Skipped()
        found = _read(Source(str(tmp_path / "a.parquet"), text=column), tmp_path, skipped)
        assert ([d.text for d in found], skipped.reasons) == (["ok"], {"not UTF-8": 1})


def test_a_source_without_a_usable_row_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": 1}\n{"text": 2}\n{"text": null}\n')
    with pytest.raises(DataError, match=r"a\.jsonl has no row that can be used \(2 rows not text, 1 row no text\)"):
        _read(Source(str(tmp_path / "a.jsonl")), tmp_path)


@pytest.mark.parametrize(("ending", "content"), [("parquet", "PAR0"), ("json", "[{"), ("csv", 'text\n"open')])
def test_a_broken_file_is_named(tmp_path: Path, ending: str, content: str) -> None:
    (tmp_path / f"a.{ending}").write_text(content)
    with pytest.raises(DataError, match=rf"a\.{ending}"):
        _read(Source(str(tmp_path / f"a.{ending}")), tmp_path)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,text\na,b\n")
    with pytest.raises(DataError, match="two columns named 'text'"):
        _read(Source(str(tmp_path / "a.csv")), tmp_path)


def test_documents_come_before_the_source_has_been_read_to_its_end(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": "first"}\n' * (files.LOOK_AHEAD + 1) + b"\xff\n")
    documents = read(Source(str(tmp_path / "a.jsonl")), tmp_path)
    assert next(documents).text == "first"
    with pytest.raises(DataError, match=f"line {files.LOOK_AHEAD + 2}"):
        list(documents)


@pytest.mark.slow
@settings(max_examples=50)
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip), min_size=1, max_size=8))
def test_json_lines_give_back_the_texts_that_were_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    path = tmp_path_factory.mktemp("law") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": each}) + "\n" for each in texts))
    assert [document.text for document in read(Source(str(path)), path.parent)] == texts


def test_local_text_is_not_copied_to_the_cache(tmp_path: Path) -> None:
    _read(Source(str(_write(tmp_path, "csv")), text="note"), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


class TestHub:
    @pytest.fixture(autouse=True)
    def _reachable(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)

    def test_an_unreachable_hub_is_one_sentence_and_soon(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
        started = time.monotonic()
        with pytest.raises(DataError, match=r"nobody/nothing.*127\.0\.0\.1:9 cannot be reached") as refused:
            _read(Source("nobody/nothing"), tmp_path / "cache")
        assert time.monotonic() - started < 10
        assert "\n" not in str(refused.value)

    def test_offline_mode_is_named(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        with pytest.raises(DataError, match="HF_HUB_OFFLINE is set"):
            _read(Source("nobody/nothing"), tmp_path / "cache")

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_hub_dataset_is_read_with_the_plans_split_into_a_private_cache(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stream: bool
    ) -> None:
        """The real `load_dataset`, at a local folder standing for the hub's."""
        _write(tmp_path, "jsonl")
        original, asked = datasets.load_dataset, []

        def load_dataset(path: str, name: str | None, **options: object) -> object:
            asked.append((path, name, options))
            return original("json", data_files={"validation": str(tmp_path / "notes.jsonl")}, **options)

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        monkeypatch.setattr(hub, "silence_of", lambda endpoint: None)
        cache = tmp_path / "cache"
        source = Source("org/notes", text="note", user="who", split="validation", stream=stream, config="small")
        assert [d.fields["who"] for d in _read(source, cache)] == ["ann", "bob", "ann"]
        assert columns(source, cache) == ["note", "who", "kind"]
        (path, name, options), *_ = asked
        assert (path, name) == ("org/notes", "small")
        assert "trust_remote_code" not in options
        assert Path(str(options["cache_dir"])).is_relative_to(cache)
        with pytest.raises(DataError, match=r"org/notes has no column 'nope'.*note, who, kind"):
            _read(Source("org/notes", text="nope", split="validation", stream=stream), cache)
        with pytest.raises(DataError, match=r"no such dataset.*split"):
            _read(Source("org/notes", text="note", split="nope", stream=stream), cache)
        for folder in (cache, cache / "text"):
            assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700

    def test_an_existing_cache_folder_keeps_its_mode_and_what_is_ours_in_it_is_private(self, tmp_path: Path) -> None:
        tmp_path.chmod(0o755)
        (tmp_path / "text").mkdir(mode=0o755)
        assert stat.S_IMODE(hub.private_folder(tmp_path).stat().st_mode) == 0o700
        assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.slow
def test_reading_text_needs_no_torch() -> None:
    program = (
        "import sys, tempfile, pathlib; from learning.embeddings import cooccurrence\n"
        "from learning.errors import DataError; from learning.text import source as text, words\n"
        "folder = pathlib.Path(tempfile.mkdtemp()); path = folder / 'a.jsonl'; path.write_text('{\"text\": \"a b\"}')\n"
        "for d in text.read(text.Source(str(path)), folder): words.tokenize(d.text)\n"
        "try: list(text.read(text.Source('documentation-nothing'), folder))\n"
        "except DataError: pass\n"
        "sys.exit(' '.join(m for m in ('torch', 'grpc', 'ray', 'gensim', 'sklearn') if m in sys.modules) or None)"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
