"""Writes the page of the Python interface: functions and results, from signatures and docstrings."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from docstrings import described
from markdown_text import prose


def page(module: ModuleType) -> str:
    """The page of a module: what it defines, and what it takes in under its own name, in the order of their names."""
    about = described(module.__doc__, ()).about
    lines = [f"# Python: `{module.__name__}`", "", prose(about[0]), ""]
    if code := _example(module):
        lines += ["```python", *code, "```", ""]
    members = list(_public(module))
    for heading, kind in (("Functions", inspect.isfunction), ("Results", inspect.isclass)):
        lines += [f"## {heading}", ""]
        for name, member in members:
            if kind(member):
                lines += [f"### `{name}`", "", *_member(name, member)]
    return "\n".join(lines).rstrip() + "\n"


def _example(module: ModuleType) -> list[str]:
    """The lines of the module's docstring after its first paragraph, with a line between imports and the rest."""
    lines = inspect.cleandoc(module.__doc__ or "").partition("\n\n")[2].splitlines()
    imports = [line for line in lines if line.startswith(("from ", "import "))]
    return [*imports, "", *lines[len(imports) :]] if imports else lines


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module offers: what it defines, and what it imports `as` its own."""
    source = inspect.getsource(module)
    for name, member in sorted(vars(module).items()):
        if name.startswith("_") or not (inspect.isfunction(member) or inspect.isclass(member)):
            continue
        if member.__module__ == module.__name__ or f"import {name} as {name}" in source:
            yield name, member


def _member(name: str, member: Any) -> Iterator[str]:
    if inspect.isfunction(member):
        names = list(inspect.signature(member).parameters)
        yield from ("```python", *_signature(name, member), "```", "")
    else:
        names = [field.name for field in dataclasses.fields(member)]
    found = described(member.__doc__, names)
    first, *rest = found.about
    yield from (prose(first), "")
    said = found.meanings
    if inspect.isclass(member):
        for each in names:
            said.setdefault(each, "")
        for each, value in vars(member).items():
            if isinstance(value, property):
                said[each] = " ".join((value.__doc__ or "").split())
    order = [each for each in [*names, *said] if each in said]
    lines = [f"- `{each}`{f': {prose(said[each])}' if said[each] else ''}" for each in dict.fromkeys(order)]
    yield from (*lines, *([""] if lines else []))
    for paragraph in rest:
        yield from (prose(paragraph), "")


def _signature(name: str, function: Any) -> list[str]:
    """A function's signature, one parameter a line, with the words of the source for types."""
    signature = inspect.signature(function)
    lines, starred = [], False
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and not starred:
            lines.append("    *,")
            starred = True
        annotation = "" if each.annotation is each.empty else f": {_type(each.annotation)}"
        default = "" if each.default is each.empty else f" = {each.default!r}"
        lines.append(f"    {each.name}{annotation}{default},")
    ending = "" if signature.return_annotation is signature.empty else f" -> {_type(signature.return_annotation)}"
    return [f"{name}(", *lines, f"){ending}"] if lines else [f"{name}(){ending}"]


def _type(annotation: Any) -> str:
    """A type by its last names: `Path | str`, not `pathlib.Path | str`."""
    said = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", said)
