"""Reads a settings file (a plan, a party file): TOML into a pydantic model, every mistake reported in one sentence.

A sentence names the file, the key, what is wrong and what would be right; it names a line only when exactly one line of
the file can be meant.
"""

import codecs
import difflib
import ipaddress
import re
import tomllib
import types
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from protos.console.mistakes import SettingsError, printable

Model = TypeVar("Model", bound="Settings")
Location = tuple[str | int, ...]

LARGEST: Final = 16 << 20
DEEPEST: Final = 32
"""The most bytes of a file, and the deepest nesting of its tables."""

NOT_INSTALLED: Final = "not_installed"
"""The type of a validator's error for the name of something that no installed package brings."""
_CODES: Final = {"extra_forbidden": "C104", NOT_INSTALLED: "C106"}


_FORMS: Final[dict[str, str]] = {}


def shaped(pattern: str, form: str) -> Any:
    """A field whose strings match a pattern. form: what they are, for people: "is no party's name: ..."."""
    _FORMS[pattern] = form
    return Field(pattern=pattern)


class Settings(BaseModel):
    """A table of a settings file: unknown keys are refused, types are not converted, values are frozen."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def read_settings(path: Path, model: type[Model]) -> Model:
    """Read `path` as TOML and check it against `model`. Raises `SettingsError`."""
    tables, text = read_tables(path)
    return check_settings(tables, model, path.name, text)


def read_tables(path: Path) -> tuple[dict[str, Any], str]:
    """Read `path` as TOML; returns its tables, for `check_settings`, and its text. Raises `SettingsError`."""
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise SettingsError(f"{path} is larger than {LARGEST >> 20} MiB, so it was not read.", code="C103")
        text = content.removeprefix(codecs.BOM_UTF8).decode("utf-8")
    except FileNotFoundError:
        raise SettingsError(f"{path}: there is no such file.", code="C102") from None
    except IsADirectoryError:
        raise SettingsError(f"{path} is a folder, not a file.", code="C103") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text (byte {error.start}). Save it as UTF-8.", code="C103") from None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.", code="C302") from None
    return parse_tables(text, str(path)), text


def parse_tables(text: str, name: str) -> dict[str, Any]:
    """The tables of a TOML text, for `check_settings`. `name` begins the sentence. Raises `SettingsError`."""
    try:
        tables = tomllib.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits is a ValueError of another kind
        why = "it is nested too deep" if isinstance(error, RecursionError) else printable(str(error))
        raise SettingsError(f"{name} is not TOML: {why}.", code="C103") from None
    if (odd := _odd(tables)) is not None:
        raise SettingsError(f"{name} is not TOML that can be used: {odd}.", code="C103")
    return tables


def check_settings(tables: dict[str, Any], model: type[Model], name: str, text: str = "") -> Model:
    """Check tables that were already read. `name` and `text` are only for the error's sentence. Raises
    `SettingsError`.
    """
    try:
        return model.model_validate(tables)
    except ValidationError as error:
        # A misspelt key is also a missing one: say what was misspelt.
        first = min(error.errors(include_url=False), key=lambda each: each["type"] != "extra_forbidden")
        location = _keys(first["loc"], unknown=first["type"] == "extra_forbidden")
        line = line_of(location, text)
        where = f"{name}, line {line}" if line else name
        said = printable(f"{where}: {_sentence(first, location, model)}")
        raise SettingsError(said, code=_code(first)) from None


def is_loopback(host: str) -> bool:
    """Whether a host in a settings file is this machine only; an IPv6 address may be in brackets."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.removeprefix("[").removesuffix("]")).is_loopback
    except ValueError:
        return False


def line_of(location: Location, text: str) -> int | None:
    """The 1-based line of a key, or None unless exactly one line of the file can be meant.

    Looks for `key =` under its `[table]` header, or inside an inline table.
    """
    names = [part for part in location if isinstance(part, str)]
    if not names or not text:
        return None
    *tables, key = names
    found: list[int] = []
    header: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        opened = re.fullmatch(r"\[{1,2}([^\]]+)\]{1,2}\s*(#.*)?", line.strip())
        if opened:
            header = [part.strip().strip("\"'") for part in opened.group(1).split(".")]
            if header == names:
                found.append(number)
            continue
        bare = re.sub(r"\"[^\"]*\"|'[^']*'", '""', line.split("#")[0])
        starts = re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line)
        inline = tables and header == tables[: len(header)] and re.search(rf"[{{,]\s*{re.escape(key)}\s*=", bare)
        if (starts and header == tables) or inline:
            found.append(number)
    return found[0] if len(found) == 1 else None


def _keys(location: Location, *, unknown: bool) -> Location:
    """The keys alone, without what pydantic adds where a value may have several types (`list[str]`).

    unknown: the last key is unknown, whatever it looks like.
    """
    last = len(location) - 1 if unknown else len(location)
    return tuple(part for at, part in enumerate(location) if at == last or not (isinstance(part, str) and "[" in part))


def _odd(tables: dict[str, Any]) -> str | None:
    """Why TOML that could be parsed is still refused: its depth, or an integer beyond TOML's 64 bits."""
    layer: list[Any] = [tables]
    for _ in range(DEEPEST):
        if any(isinstance(each, int) and not -(2**63) <= each < 2**63 for each in layer):
            return "an integer in it has more than 64 bits"
        layer = [inner for each in layer for inner in _inner(each)]
        if not layer:
            return None
    return "it is nested too deep"


def _inner(value: Any) -> Sequence[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else ()


def _sentence(error: Any, location: Location, model: type[BaseModel]) -> str:
    key = _dotted(location)
    kind, value = error["type"], error.get("input")
    if kind == "extra_forbidden":
        known = _keys_at(model, location[:-1])
        close = difflib.get_close_matches(str(location[-1]), known, n=1, cutoff=0.5)
        cure = f'Did you mean "{close[0]}"?' if close else f"Known here: {', '.join(sorted(known))}."
        return f"there is no key {key}. {cure}"
    if kind == "missing":
        return f"{key} is missing."
    if kind == "literal_error":
        return f"{key} = {_shown(value)} is not one of {error['ctx']['expected']}."
    if kind in ("value_error", "assertion_error"):
        said = str(error["ctx"]["error"]) if "ctx" in error else str(error["msg"])
        return f"{key} = {_shown(value)}: {said}" if key and not isinstance(value, dict | BaseModel) else said
    if kind == "string_pattern_mismatch":
        return f"{key} = {_shown(value)} {_FORMS.get(error['ctx']['pattern'], 'has another form than this key needs')}."
    said = str(error["msg"]).replace("Input should be", "should be").rstrip(".")
    return f"{key} = {_shown(value)} {said}."


def _code(error: Any) -> str:
    """The code of a mistake: of its type, or of the error whose sentence a validator repeats."""
    raised = error.get("ctx", {}).get("error")
    found = [getattr(each, "code", None) for each in (raised, getattr(raised, "__context__", None))]
    return _CODES.get(error["type"]) or next((code for code in found if isinstance(code, str)), "C105")


def _dotted(location: Location) -> str:
    """`[privacy] epsilon` for a key in a table, `name` at the top, `[federation] parties 2 address` in a list."""
    parts = [str(part + 1) if isinstance(part, int) else part for part in location]
    if len(parts) < 2:
        return "".join(parts)
    return f"[{parts[0]}] {' '.join(parts[1:])}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _keys_at(model: Any, location: Sequence[str | int]) -> list[str]:
    """The keys that a table knows, following the location through nested models, lists and unions."""
    current = _models(model)
    for part in location:
        if isinstance(part, int):
            continue
        fields = [field for each in current for name, field in _fields(each).items() if name == part]
        current = [inner for field in fields for inner in _models(field.annotation)]
    return sorted({name for each in current for name in _fields(each)})


def _fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """A table's fields by the keys that a file has."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        return [inner for argument in typing.get_args(annotation) for inner in _models(argument)]
    return []
