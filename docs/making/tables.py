"""Writes pages of settings files: every table, and of each key its type, its default and its meaning.

All of it comes from the pydantic models that read the files.
"""

import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal

from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from docstrings import Described, described
from headings import slug
from markdown_text import cell, prose, row
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_CONSTANT = re.compile(r"`((?:[a-z_]+\.)*[A-Z][A-Z_]{2,})`")
BOUNDS = {Ge: "at least", Gt: "above", Le: "at most", Lt: "below"}


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a file. heading: as the file has it. whole: the table as it is where the file leaves it out."""

    heading: str
    model: type[BaseModel]
    whole: BaseModel | None = None

    @property
    def described(self) -> Described:
        return description(self.model)


def description(model: type[BaseModel]) -> Described:
    """What a model's docstring says; a key that it says nothing of means what it means in the model's bases."""
    keys = set(keys_of(model))
    found = described(model.__doc__, keys)
    for base in model.__mro__[1:]:
        if issubclass(base, BaseModel) and base is not BaseModel:
            inherited = described(base.__doc__, keys)
            for key, meaning in inherited.meanings.items():
                if key not in found.meanings:
                    found.meanings[key], found.together[key] = meaning, inherited.together[key]
    return replace(
        found,
        about=[_with_values(text, model) for text in found.about],
        meanings={key: _with_values(text, model) for key, text in found.meanings.items()},
    )


def _with_values(text: str, model: type[BaseModel]) -> str:
    """A docstring's words with the values of constants in place of their names."""

    def value(found: re.Match[str]) -> str:
        module, _, name = found[1].rpartition(".")
        constant = getattr(import_module(module or model.__module__), name)
        several = constant if isinstance(constant, tuple) else (constant,)
        return ", ".join(f"`{each}`" if isinstance(each, str) else _number(each) for each in several)

    return _CONSTANT.sub(value, text)


def keys_of(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """A model's fields by the keys that a file has."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def sections(model: type[BaseModel], only: set[str] | None = None) -> Iterator[Section]:
    """The tables of a file in order, those inside others after them. only: the file's tables to take."""
    for key, field in keys_of(model).items():
        if only is None or key in only:
            yield from _below(key, field)


def _below(path: str, field: FieldInfo) -> Iterator[Section]:
    for heading, model in _models(path, field.annotation):
        default = field.get_default(call_default_factory=True) if field.default_factory is None else None
        yield Section(heading, model, default if isinstance(default, model) else None)
        for key, inner in keys_of(model).items():
            yield from _below(f"{heading.strip('[]')}.{key}", inner)


def _models(path: str, annotation: Any) -> Iterator[tuple[str, type[BaseModel]]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield f"[{path}]", annotation
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is list:
        for heading, model in _models(path, arguments[0]):
            yield f"[{heading}]", model
    elif origin is dict:
        yield from _models(f"{path}.NAME", arguments[1])
    elif _is_union(annotation) or origin is typing.Annotated:
        for argument in arguments:
            yield from _models(path, argument)


def written(section: Section, level: int = 2) -> str:
    """A table's part of a page."""
    found = section.described
    lines = [f"{'#' * level} `{section.heading}`", "", *_about(found)]
    return "\n".join([*lines, *key_table(section)]) + "\n"


def _about(found: Described) -> Iterator[str]:
    for paragraph in found.about:
        yield from (prose(_without_name(paragraph)), "")


def _without_name(about: str) -> str:
    """Words about a table without its name, which the heading has: "`[run]`: the run's name"."""
    said = re.sub(r"^`[^`]+`: ", "", about)
    return said[0].upper() + said[1:] if said != about else about


def key_table(section: Section, path: str | None = None) -> list[str]:
    """The rows of a table's keys. path: before the names of tables inside it; by default its own name."""
    path = section.heading.strip("[]") if path is None else path
    found = section.described
    lines = [row("key", "value", "by default", "meaning"), "|---|---|---|---|"]
    keys = sorted(keys_of(section.model).items(), key=lambda item: not item[1].is_required())
    shown: set[str] = set()
    for key, field in keys:
        inner = list(_models(f"{path}.{key}" if path else key, field.annotation))
        meaning = _shared(key, found, shown)
        if inner and not meaning:
            about = re.sub(r"^`[^`]+`: ", "", description(inner[0][1]).about[0])
            meaning = about.partition(". ")[0].rstrip(".") + "."
        lines.append(row(f"`{key}`", _value(field, inner), _default(section, key, field), cell(meaning)))
    return lines


def _shared(key: str, found: Described, shown: set[str]) -> str:
    """A key's meaning; one that several keys share is told once, with all their names."""
    together = [each for each in found.together.get(key, ()) if found.together.get(each) == found.together[key]]
    before = [each for each in together if each in shown]
    shown.add(key)
    if before:
        return f"see `{before[0]}`."
    names = ", ".join(f"`{each}`" for each in together)
    return f"{names}: {found.meanings[key]}" if len(together) > 1 else found.meanings.get(key, "")


def _value(field: FieldInfo, inner: list[tuple[str, type[BaseModel]]]) -> str:
    said = kind(field.annotation, field.metadata)
    links = ", ".join(f"[`{heading}`](#{slug(heading)})" for heading, _ in inner)
    if not inner:
        return said
    return f"{said} or {links}" if said else links


def kind(annotation: Any, metadata: typing.Sequence[Any] = ()) -> str:
    """What a value is, in words; nothing for a table."""
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kind(arguments[0], [*_flat(arguments[1:]), *metadata])
    if _is_union(annotation):
        several = [kind(each, metadata) for each in arguments if each is not type(None)]
        return " or ".join(each for each in several if each)
    if origin is Literal:
        return " or ".join(f'`"{each}"`' if isinstance(each, str) else f"`{toml(each)}`" for each in arguments)
    if origin in (list, tuple):
        of = kind(arguments[0])
        return f"list of {of}" if of else ""
    if origin in (dict, Mapping):
        of = kind(arguments[1])
        return f"by name: {of}" if of else ""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ""
    return _plain(annotation) + _bounds(metadata)


def _plain(annotation: Any) -> str:
    return {bool: "`true` or `false`", int: "whole number", float: "number", str: "text"}.get(annotation, "value")


def _flat(metadata: typing.Sequence[Any]) -> Iterator[Any]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from each.metadata
        else:
            yield each


def _bounds(metadata: typing.Sequence[Any]) -> str:
    said = []
    for each in metadata:
        for bound, words in BOUNDS.items():
            if isinstance(each, bound):
                limit = getattr(each, {Ge: "ge", Gt: "gt", Le: "le", Lt: "lt"}[bound])
                said.append(f"{words} {_number(limit)}")
        if isinstance(each, MinLen) and each.min_length > 1:
            said.append(f"{each.min_length} or more")
        if isinstance(each, MaxLen):
            said.append(f"at most {each.max_length} long")
    return f", {', '.join(said)}" if said else ""


def _number(value: float) -> str:
    if isinstance(value, int) and value >= 2**31 and value & (value - 1) == 0:
        return f"2^{value.bit_length() - 1}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}" if value == int(value) else f"{value:.12g}"


def _default(section: Section, key: str, field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    default = field.get_default(call_default_factory=True)
    said = "" if default is None or default in ([], {}) or isinstance(default, BaseModel) else f"`{toml(default)}`"
    rates: Mapping[str, float] = getattr(section.model, "RATES", {})
    if key == "learning_rate" and rates:
        said += "".join(f'; `{rate:g}` with `adapt = "{how}"`' for how, rate in rates.items())
    if section.whole is not None:
        whole = getattr(section.whole, key, default)
        if whole != default and not isinstance(whole, BaseModel):
            said += f"; `{toml(whole)}` without the table"
    return said.removeprefix("; ")


def toml(value: Any) -> str:
    """A value as a settings file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace("\n", "\\n") + '"'
    if isinstance(value, list):
        return f"[{', '.join(toml(each) for each in value)}]"
    if isinstance(value, int):
        return f"{value:_}" if value >= 10_000 else str(value)
    return f"{value:g}" if value != int(value) else f"{value:.1f}"


def _is_union(annotation: Any) -> bool:
    return isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union
