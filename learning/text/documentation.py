"""Real English that every CPython has: its own documentation, so that a first run needs no file and no network.

`documentation` is the docstrings of the standard library, found by parsing its sources; nothing is imported or run.
`documentation-heldout` is the docstrings of a fixed tenth of its modules, kept apart and public by declaration, for
evaluation. `documentation-topics` is the language reference that `help()` shows, public, for vocabularies. How much
there is depends on the Python version: 3.11 has 7,150 docstrings of 237,000 words, 728 held out, and 64,000 words of
topics.
"""

import ast
import gc
import hashlib
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

NAMES = ("documentation", "documentation-heldout", "documentation-topics")
COLUMNS = ("text", "package", "module", "name")
HELDOUT_MODULES = 0.1

_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"})
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of one of `NAMES`: text, package (top-level module), module, and the qualified name documented.

    The order is that of sorted module names, then of the source; a text that occurs twice is kept where it comes first,
    so none is both private and held out. Raises `FileNotFoundError` where Python was installed without its sources.
    """
    if name == "documentation-topics":
        yield from _topics()
        return
    wanted = name == "documentation-heldout"
    library = _library(Path(sysconfig.get_path("stdlib")))
    if not library:
        raise FileNotFoundError("this Python was installed without the sources of its standard library")
    for row in library:
        if held_out(row["module"]) == wanted:
            yield dict(row)


def held_out(module: str) -> bool:
    """Whether a module is in the tenth for evaluation: its name decides, the same way in every version and place."""
    return (
        int.from_bytes(hashlib.sha256(f"documentation-heldout:{module}".encode()).digest()[:8], "big")
        < HELDOUT_MODULES * 2**64
    )


@cache
def _library(root: Path) -> tuple[dict[str, str], ...]:
    """Every docstring once. Parsing takes two seconds and the outcome two megabytes, so it is done once a process."""
    with _quick_parsing():
        first: dict[str, dict[str, str]] = {}
        for row in _docstrings(root):
            first.setdefault(row["text"], row)
    return tuple(first.values())


@contextmanager
def _quick_parsing() -> Iterator[None]:
    """Without collecting cycles, and without warnings about old escapes in sources that are not ours, for a moment."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if collecting:
            gc.enable()


def _docstrings(root: Path) -> Iterator[dict[str, str]]:
    modules = {_module(path.relative_to(root)): path for path in _sources(root)}
    for module in sorted(modules):
        try:
            tree = ast.parse(modules[module].read_bytes())
        except (OSError, SyntaxError, ValueError):  # a module that this Python cannot read has no documentation
            continue
        for name, text in _within(tree, module):
            yield {"text": text, "package": module.partition(".")[0], "module": module, "name": name}


def _sources(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.name in _NOT_LIBRARY or path.name.startswith("config-"):
            continue
        if path.suffix == ".py":
            yield path
        elif path.is_dir() and not path.is_symlink():
            yield from _sources(path)


def _module(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


def _within(node: _Documented, name: str) -> Iterator[tuple[str, str]]:
    text = ast.get_docstring(node)
    if text:
        yield name, text
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _within(child, f"{name}.{child.name}")


def _topics() -> Iterator[dict[str, str]]:
    from pydoc_data.topics import topics  # half a megabyte of text: read when asked for

    for name in sorted(topics):
        yield {"text": topics[name], "package": "pydoc_data", "module": "pydoc_data.topics", "name": name}
