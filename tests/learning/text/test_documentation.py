import sys
from pathlib import Path

import pytest

from learning.errors import DataError
from learning.text import documentation
from learning.text.source import Document, Source, columns, read
from learning.text.words import tokenize


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Document]]:
    cache = tmp_path_factory.mktemp("cache")
    extra = ("package", "module", "name")
    return {name: list(read(Source(name, columns=extra), cache)) for name in documentation.NAMES}


def test_there_is_enough_text_to_learn_from(corpus: dict[str, list[Document]]) -> None:
    words = {name: sum(len(tokenize(d.text)) for d in documents) for name, documents in corpus.items()}
    assert len(corpus["documentation"]) > 5_000
    assert words["documentation"] > 150_000
    assert words["documentation-topics"] > 40_000
    share = words["documentation-heldout"] / (words["documentation"] + words["documentation-heldout"])
    assert 0.05 < share < 0.2


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
    assert columns(Source("documentation-topics"), tmp_path) == ["text", "package", "module", "name"]


def test_a_python_without_sources_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(DataError, match="without the sources of its standard library"):
        list(read(Source("documentation"), tmp_path))
