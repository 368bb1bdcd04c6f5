"""Reads the docstrings of tables, results and functions, which say of every key or parameter what it means.

A docstring is made of paragraphs. In each of them, whatever comes first is about the whole; then follow meanings, each
after its names: `steps, batch: meaning.`
"""

import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

_NAMES = re.compile(r"(?<![^\s])([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*): ")
_REST = re.compile(r"\b(?:The others(?::| are) .*|Raises .*)")
"""What a paragraph says last, of the whole again."""


@dataclass(frozen=True, slots=True)
class Described:
    """A docstring taken apart.

    about: its paragraphs without the meanings. meanings: by name. together: by name, all names that share its meaning.
    """

    about: list[str] = field(default_factory=list)
    meanings: dict[str, str] = field(default_factory=dict)
    together: dict[str, tuple[str, ...]] = field(default_factory=dict)


def described(docstring: str | None, names: Collection[str]) -> Described:
    """What a docstring says of the whole and of each of `names`; what it says of class constants is left out."""
    found = Described()
    for paragraph in re.split(r"\n\s*\n", inspect.cleandoc(docstring or "")):
        text = " ".join(paragraph.split())
        pieces = list(_pieces(text, names))
        named = [name for said, _ in pieces for name in said or ()]
        about = " ".join(_listing(piece, named) for said, piece in pieces if said is None)
        if about:
            found.about.append(about)
        for said, piece in pieces:
            for name in said or ():
                found.meanings[name] = _ended(piece)
                found.together[name] = tuple(said or ())
    return found


def _listing(about: str, named: list[str]) -> str:
    """Words that end with a colon are about the names after it."""
    return f"{about} {', '.join(f'`{name}`' for name in named)}." if about.endswith(":") else about


def _pieces(text: str, names: Collection[str]) -> Iterator[tuple[list[str] | None, str]]:
    """The parts of a paragraph in order: None and words about the whole, or names and their meaning."""
    said: list[str] | None = None
    begun = 0
    for match in _NAMES.finditer(text):
        several = match[1].split(", ")
        constant = all(name.isupper() and len(name) > 1 for name in several)
        if not constant and not all(name in names for name in several):
            continue
        if match.start() > begun:
            yield from _without_rest(said, text[begun : match.start()])
        said, begun = [] if constant else several, match.end()
    yield from _without_rest(said, text[begun:])


def _without_rest(said: list[str] | None, text: str) -> Iterator[tuple[list[str] | None, str]]:
    """A part, and after it what it says of the whole; what it says of all other names is left out."""
    rest = _REST.search(text)
    own = text if rest is None else text[: rest.start()]
    if own.strip():
        yield said, own.strip()
    if rest is not None and rest[0].startswith("Raises"):
        yield None, rest[0].strip()


def _ended(meaning: str) -> str:
    meaning = meaning.strip().rstrip(";")
    return meaning if meaning.endswith((".", "?", ":")) else f"{meaning}."
