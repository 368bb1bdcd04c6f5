"""Real English that every CPython has: its own documentation, so that a first run needs no file and no network.

`documentation` is the docstrings of the standard library, found by parsing its sources; nothing is imported or run.
`documentation-heldout` is the docstrings of a fixed tenth of its modules, kept apart and public by declaration, for
evaluation. `documentation-topics` is the language reference that `help()` shows, public, for vocabularies;
`documentation-passages` is the same, a paragraph a row, for whoever needs many short public texts. How much there is
depends on the Python version: 3.11 has 7,150 docstrings of 237,000 words, 728 held out, and 64,000 words of topics, of
which 50,000 are in 1,450 passages.
"""

import ast
import gc
import hashlib
import json
import os
import re
import secrets
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

NAMES = ("documentation", "documentation-heldout", "documentation-topics", "documentation-passages")
COLUMNS = ("text", "package", "module", "name", "kind")
KINDS = ("class", "function", "method", "module")
"""What a docstring may be of: the values of the column `kind`, a label for classifiers."""
HELDOUT_MODULES = 0.1
PASSAGE_WORDS = 8
"""The fewest words of a passage: what is shorter is a heading or a line of a list."""

_NOT_LIBRARY = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "__pycache__"})
_WITHIN = 60.0
"""Seconds within which a process has parsed the library, or this one does so itself."""
_beside: list[subprocess.Popen[bytes]] = []
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def rows(name: str) -> Iterator[dict[str, str]]:
    """Yield the rows of one of `NAMES`: text, package (top-level module), module, the qualified name documented, and
    its kind, one of `KINDS`; "topic" for topics and passages.

    The order is that of sorted module names, then of the source; a text that occurs twice is kept where it comes first,
    so none is both private and held out. Raises `FileNotFoundError` where Python was installed without its sources.
    """
    if name == "documentation-topics":
        yield from _topics()
        return
    if name == "documentation-passages":
        yield from _passages()
        return
    wanted = name == "documentation-heldout"
    library = _library(_root())
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


@contextmanager
def parsing(names: Collection[str]) -> Iterator[None]:
    """Within it, a process of its own parses the library if some of `NAMES` need that and nothing is kept of it yet.

    `rows` waits for that process, and parses where it failed or none can be started. It ends with the block.
    """
    root = _root()
    if not {"documentation", "documentation-heldout"} & set(names):
        yield
        return
    kept = _place(root, _modules(root))
    process = None if kept is None or kept.exists() else _started(root)
    if process is None:
        yield
        return
    _beside.append(process)
    try:
        yield
    finally:
        _beside.remove(process)
        process.kill()
        process.wait()


def _started(root: Path) -> "subprocess.Popen[bytes] | None":
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with suppress(OSError):
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "learning.text.documentation", str(root)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
            cwd="/",
            start_new_session=True,
        )
    return None


def _root() -> Path:
    return Path(sysconfig.get_path("stdlib"))


def _modules(root: Path) -> dict[str, Path]:
    return {_module(path.relative_to(root)): path for path in _sources(root)}


@cache
def _library(root: Path) -> tuple[dict[str, str], ...]:
    """Every docstring once. Parsing takes over a second, so the outcome, two megabytes, is kept in the user's cache."""
    for process in _beside:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_WITHIN)
    modules = _modules(root)
    kept = _place(root, modules)
    found = None if kept is None else _kept(kept)
    if found is None:
        with _quick_parsing():
            first: dict[str, dict[str, str]] = {}
            for row in _docstrings(modules):
                first.setdefault(row["text"], row)
        found = tuple(first.values())
        if kept is not None and found:
            _keep(kept, found)
    return found


def _place(root: Path, modules: Mapping[str, Path]) -> Path | None:
    """The file of what these very sources say: another version, size or time of any of them has another name."""
    seen = hashlib.sha256(f"{sys.version}\n{root}\n".encode())
    try:
        for module in sorted(modules):
            about = modules[module].stat()
            seen.update(f"{module} {about.st_size} {about.st_mtime_ns}\n".encode())
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except (OSError, RuntimeError):  # a source that has just gone; a user without a home
        return None
    return folder / "conclave" / f"documentation-{seen.hexdigest()[:32]}.json"


def _kept(place: Path) -> tuple[dict[str, str], ...] | None:
    """The rows in a file that this user alone can have written; None for any other."""
    try:
        with place.open("rb") as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.getuid() or about.st_mode & 0o022:
                return None
            rows = json.load(file)
    except (OSError, ValueError):
        return None
    if not isinstance(rows, list) or not all(
        isinstance(row, dict) and tuple(row) == COLUMNS and all(isinstance(each, str) for each in row.values())
        for row in rows
    ):
        return None
    return tuple(rows)


def _keep(place: Path, rows: tuple[dict[str, str], ...]) -> None:
    """Write the rows completely or not at all; where that is impossible, the next process parses again."""
    beside = place.with_name(f".{place.name}.{secrets.token_hex(8)}")
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(beside, "x", encoding="ascii", opener=_private) as file:
            json.dump(rows, file)
        beside.replace(place)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


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


def _docstrings(modules: Mapping[str, Path]) -> Iterator[dict[str, str]]:
    for module in sorted(modules):
        try:
            tree = ast.parse(modules[module].read_bytes())
        except (OSError, SyntaxError, ValueError):  # a module that this Python cannot read has no documentation
            continue
        for name, text, kind in _within(tree, module, "module"):
            yield {"text": text, "package": module.partition(".")[0], "module": module, "name": name, "kind": kind}


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


def _within(node: _Documented, name: str, kind: str) -> Iterator[tuple[str, str, str]]:
    text = ast.get_docstring(node)
    if text:
        yield name, text, kind
    for child in node.body:
        if isinstance(child, ast.ClassDef):
            yield from _within(child, f"{name}.{child.name}", "class")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _within(child, f"{name}.{child.name}", "method" if kind == "class" else "function")


def _topics() -> Iterator[dict[str, str]]:
    from pydoc_data.topics import topics  # half a megabyte of text: read when asked for

    for name in sorted(topics):
        yield {
            "text": topics[name],
            "package": "pydoc_data",
            "module": "pydoc_data.topics",
            "name": name,
            "kind": "topic",
        }


def _passages() -> Iterator[dict[str, str]]:
    """The paragraphs of all topics, without line ends; none twice."""
    met: set[str] = set()
    for topic in _topics():
        for number, passage in enumerate(re.split(r"\n\s*\n", topic["text"])):
            text = " ".join(passage.split())
            if text not in met and len(text.split()) >= PASSAGE_WORDS:
                met.add(text)
                yield topic | {"text": text, "name": f"{topic['name']} {number + 1}"}


if __name__ == "__main__":
    _library(Path(sys.argv[1]))
