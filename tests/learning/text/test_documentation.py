import signal
import sys
import sysconfig
from collections import Counter
from pathlib import Path

import pytest

from learning.errors import DataError
from learning.text import documentation
from learning.text.source import Document, Source, columns, read
from learning.text.words import tokenize

ROOT = Path(sysconfig.get_path("stdlib"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Document]]:
    cache = tmp_path_factory.mktemp("cache")
    extra = ("package", "module", "name")
    return {name: list(read(Source(name, columns=extra), cache)) for name in documentation.NAMES}


@pytest.mark.slow
def test_there_is_enough_text_to_learn_from(corpus: dict[str, list[Document]]) -> None:
    words = {name: sum(len(tokenize(d.text)) for d in documents) for name, documents in corpus.items()}
    assert len(corpus["documentation"]) > 5_000
    assert words["documentation"] > 150_000
    assert words["documentation-topics"] > 40_000
    share = words["documentation-heldout"] / (words["documentation"] + words["documentation-heldout"])
    assert 0.05 < share < 0.2


def test_passages_are_the_topics_paragraph_by_paragraph(corpus: dict[str, list[Document]]) -> None:
    passages = corpus["documentation-passages"]
    topics = " ".join(" ".join(topic.text.split()) for topic in corpus["documentation-topics"])
    assert len(passages) > 1_000
    assert all(passage.text in topics for passage in passages)
    assert min(len(passage.text.split()) for passage in passages) == documentation.PASSAGE_WORDS
    assert len({passage.text for passage in passages}) == len({d.fields["name"] for d in passages}) == len(passages)


def test_no_text_and_no_module_is_both_private_and_held_out(corpus: dict[str, list[Document]]) -> None:
    private, heldout = corpus["documentation"], corpus["documentation-heldout"]
    assert not {d.id for d in private} & {d.id for d in heldout}
    assert not {d.fields["module"] for d in private} & {d.fields["module"] for d in heldout}
    assert len({d.id for d in private}) == len(private)


def test_a_module_is_held_out_by_its_name_alone() -> None:
    """These names are fixed: another choice would make one version's private text another's public one."""
    names = ["json", "json.decoder", "typing", "threading", "email.message", "pdb", "os"]
    assert [name for name in names if documentation.held_out(name)] == ["typing", "threading", "pdb"]


def test_a_docstring_says_where_it_comes_from(corpus: dict[str, list[Document]]) -> None:
    import textwrap

    named = {d.fields["name"]: d for d in corpus["documentation"]}
    assert named["textwrap.dedent"].text == __import__("inspect").getdoc(textwrap.dedent)
    assert named["json.decoder.JSONDecoder.decode"].fields["package"] == "json"


def test_tests_and_installed_packages_are_left_out(corpus: dict[str, list[Document]]) -> None:
    packages = {d.fields["package"] for d in corpus["documentation"]}
    assert "json" in packages
    assert not packages & {"test", "torch", "numpy", "pip", "idle_test"}


def test_the_order_is_the_same_every_time(corpus: dict[str, list[Document]], tmp_path: Path) -> None:
    documentation._library.cache_clear()
    assert [d.id for d in read(Source("documentation"), tmp_path)] == [d.id for d in corpus["documentation"]]


@pytest.mark.usefixtures("corpus")
def test_nothing_of_the_library_is_imported_for_it() -> None:
    """`this` prints a poem when imported."""
    assert "idlelib.idle" not in sys.modules
    assert "this" not in sys.modules


def test_a_column_that_the_corpus_lacks_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"documentation-topics has no column 'author'.*text, package, module, name"):
        list(read(Source("documentation-topics", user="author"), tmp_path))
    assert columns(Source("documentation-topics"), tmp_path) == ["text", "package", "module", "name", "kind"]


def test_a_python_without_sources_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match="without the sources of its standard library"):
        list(read(Source("documentation"), tmp_path))


@pytest.fixture
def kept(corpus: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the parsed documentation of a user without a cache is kept; what is remembered of it is forgotten."""
    rows = documentation._library(ROOT)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    place = documentation._place(ROOT, {"this": Path(__file__)})
    assert place is not None
    documentation._keep(place, rows)
    return place


def test_the_documentation_is_parsed_once_and_kept_for_other_processes(kept: Path) -> None:
    assert documentation._kept(kept) == documentation._library(ROOT)
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    assert list(kept.parent.iterdir()) == [kept]


def test_other_sources_are_kept_under_another_name(kept: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("'Said.'")
    before = documentation._place(ROOT, {"this": other})
    other.write_text("'Said otherwise.'")
    assert len({kept, before, documentation._place(ROOT, {"this": other})}) == 3


@pytest.mark.parametrize("content", [b"", b"[", b"{}", b'[{"text": 1}]', b'[{"text": "a", "package": "b"}]', b"[1]"])
def test_a_damaged_file_of_documentation_is_not_read(kept: Path, content: bytes) -> None:
    kept.write_bytes(content)
    assert documentation._kept(kept) is None


def test_documentation_that_others_could_have_written_is_not_read(kept: Path) -> None:
    kept.chmod(0o620)
    assert documentation._kept(kept) is None
    kept.chmod(0o600)
    assert documentation._kept(kept) is not None


def test_documentation_that_cannot_be_kept_is_read_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    source = tmp_path / "spoken.py"
    source.write_text("'Said.'")
    (tmp_path / "cache").write_text("a file, no folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert [row["text"] for row in documentation._library(tmp_path)] == ["Said."]


def test_every_docstring_says_what_it_is_of(tmp_path: Path) -> None:
    found = list(read(Source("documentation", columns=("name", "kind")), tmp_path))
    kinds = Counter(each.fields["kind"] for each in found)
    assert set(kinds) == set(documentation.KINDS)
    assert min(kinds.values()) > 200
    named = {each.fields["name"]: each.fields["kind"] for each in found}
    assert named["ast"] == "module"
    assert named["ast.NodeVisitor"] == "class"
    assert named["ast.NodeVisitor.visit"] == "method"
    assert named["ast.literal_eval"] == "function"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A library of one module, of which nothing is kept."""
    root = tmp_path / "library"
    root.mkdir()
    (root / "spoken.py").write_text("'Said.'")
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(root))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return root


@pytest.mark.usefixtures("library")
def test_a_process_of_its_own_parses_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with documentation.parsing(["documentation"]):
        monkeypatch.setattr(documentation, "_docstrings", pytest.fail)  # this process does not
        assert [row["text"] for row in documentation.rows("documentation")] == ["Said."]
    assert not documentation._beside


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """What is started in place of this Python: a script of one line, or nothing that can be."""
    path = tmp_path / "program"
    if request.param:
        path.write_text(f"#!/bin/sh\n{request.param}\n")
        path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))
    return path


@pytest.mark.usefixtures("library", "program")
@pytest.mark.parametrize("program", ["exec sleep 60"], indirect=True)
def test_a_process_that_parses_ends_with_the_block() -> None:
    with documentation.parsing(["documentation-heldout", "texts.jsonl"]):
        (process,) = documentation._beside
        assert process.poll() is None
    assert process.returncode == -signal.SIGKILL


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("program", ["exit 1", "exec sleep 60", ""], indirect=True)
def test_where_no_process_parses_this_one_does(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    monkeypatch.setattr(documentation, "_WITHIN", 0.1)
    with documentation.parsing(["documentation"]):
        assert len(documentation._beside) == program.exists()
        assert [row["text"] for row in documentation.rows("documentation")] == ["Said."]


def test_no_process_is_started_for_what_is_kept_or_not_wanted(library: Path) -> None:
    with documentation.parsing(["documentation-topics", "documentation-passages", "texts.jsonl"]):
        assert not documentation._beside
    documentation._library(library)
    with documentation.parsing(documentation.NAMES):
        assert not documentation._beside
