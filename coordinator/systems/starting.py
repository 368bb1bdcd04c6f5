"""A plan to start from, with what somebody chose filled in; its comments stay."""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from coordinator.systems.registry import template

_VALUE: Final = r"\"[^\"\n]*\"|\[[^\]\n]*\]|\{[^}\n]*\}|[^#\n]*?"
_SHARDS: Final = "federation.shards"
_CODES: Final = "codes.columns.category"


@dataclass(frozen=True, slots=True)
class Choices:
    """What a plan is to say; None leaves what the example says.

    source, text, label, user: the text that simulated parties divide, and its columns. reading: further keys of that
    source, how its files are read. labels: the classes. size: records at all parties together, a public figure.
    """

    recipe: str | None = None
    launch: str = "ray"
    source: str | None = None
    text: str | None = None
    label: str | None = None
    user: str | None = None
    reading: Mapping[str, str] | None = None
    labels: tuple[str, ...] = ()
    unit: str | None = None
    epsilon: float | None = None
    size: int | None = None


def started(choices: Choices) -> str:
    """The commented plan of a system with these choices. Raises `PlanError` as `template` does."""
    text = template(choices.launch, choices.recipe)
    if choices.epsilon is not None:
        text = edited(text, "privacy", "epsilon", f"{choices.epsilon:g}")
    if choices.unit is not None:
        text = edited(text, "privacy", "unit", _string(choices.unit))
    if choices.size is not None:
        text = _sized(text, choices.size)
    if _table(text, _SHARDS) is None:
        return text
    if choices.source is not None:
        text = edited(text, _SHARDS, "source", _string(choices.source), bare=True)
        text = edited(text, _SHARDS, "split", _split(text))
    if choices.text is not None:
        text = edited(text, _SHARDS, "text", _string(choices.text))
    if choices.user is not None:
        text = edited(text, _SHARDS, "user", _string(choices.user), after="text")
    for key, value in (choices.reading or {}).items():
        text = edited(text, _SHARDS, key, _string(value), after="source")
    return _labelled(text, choices)


def wants_label(recipe: str | None) -> bool | None:
    """Whether a system reads a label column: None where it may do without."""
    text = template("ray", recipe)
    if re.search(_line("label"), _body(text, _SHARDS)):
        return True
    return None if _table(text, _CODES) is not None else False


def says(recipe: str | None, table: str, key: str) -> Any:
    """What the example of a system says there, None for nothing."""
    return tomllib.loads(template("ray", recipe)).get(table, {}).get(key)


def edited(text: str, table: str, key: str, value: str | None, *, after: str | None = None, bare: bool = False) -> str:
    """A plan's text with another value of a key, TOML; None takes its line out. bare: without the old value's comment.

    after: the key below which a new line goes where there is no such key; without it such a text stays as it is.
    """
    place = _table(text, table)
    if place is None:
        return text
    body = text[slice(*place)]
    found = re.search(_line(key), body)
    if found is None and after is not None and value is not None:
        above = re.search(_line(after), body)
        at = above.end() if above is not None else body.index("\n") if "\n" in body else len(body)
        body = f"{body[:at]}\n{key:<6} = {value}{body[at:]}"
    elif found is not None:
        end = found.end()
        if bare or value is None:  # lines that go on with the comment
            while (more := re.compile(r"\n[ ]+#.*").match(body, end)) is not None:
                end = more.end()
        line = "" if value is None else f"{found['start']}{value}{'' if bare else _beside(found, value)}"
        if value is None:
            end += body[end : end + 1] == "\n"
        body = body[: found.start()] + line + body[end:]
    return text[: place[0]] + body + text[place[1] :]


def _line(key: str) -> str:
    """The pattern of a line that gives a key a value, with its comment."""
    return rf"(?m)^(?P<start>{re.escape(key)}\s*=\s*)(?P<value>{_VALUE})(?P<rest>[ ]*(#.*)?)$"


def _beside(found: re.Match[str], value: str) -> str:
    """The comment of a line, in the column where it was if the new value leaves room."""
    comment = found["rest"].lstrip()
    width = len(found["value"]) + len(found["rest"]) - len(comment)
    return f"{' ' * max(1, width - len(value))}{comment}" if comment else ""


def _table(text: str, name: str) -> tuple[int, int] | None:
    """Where the lines of a table begin, its header with them, and where they end; None without the table."""
    found = re.search(rf"(?m)^\[{re.escape(name)}\].*$", text)
    if found is None:
        return None
    end = re.compile(r"(?m)^(# )?\[").search(text, found.end())
    return found.start(), len(text) if end is None else end.start()


def _body(text: str, name: str) -> str:
    place = _table(text, name)
    return "" if place is None else text[slice(*place)]


def _split(text: str) -> str:
    parties = tomllib.loads(text)["federation"]["shards"]["split"]["parties"]
    return f'{{ by = "hash", parties = {parties} }}'


def _sized(text: str, size: int) -> str:
    """A plan for so many records: no step expects more than a tenth of them."""
    text = edited(text, "privacy", "declared_size", f"{size:_}")
    for name, table in tomllib.loads(text).items():
        if "steps" in table and table.get("batch", 0) > size // 10:
            text = edited(text, name, "batch", str(max(1, size // 10)))
    return text


def _labelled(text: str, choices: Choices) -> str:
    """A plan with the label column and its classes, or without the codes that nothing is said of."""
    coded = _table(text, _CODES) is not None
    if choices.label is None:
        if coded and choices.source is not None:
            text = edited(text, "floor", "code_tilt", None)
            for name in (_CODES, "codes"):
                begin, end = _table(text, name) or (0, 0)
                text = text[:begin] + text[end:]
        return text
    if coded:
        text = edited(text, _CODES, "column", _string(choices.label))
    text = edited(text, _SHARDS, "label", _string(choices.label))
    if choices.labels:
        for table, key, stored in (("text", "labels", "values"), (_CODES, "values", "stored")):
            text = edited(text, table, key, json.dumps(list(choices.labels), ensure_ascii=False))
            text = edited(text, table, stored, None)
    return text


def _string(value: str) -> str:
    """A TOML string: of JSON's form, which is one of TOML's."""
    return json.dumps(value, ensure_ascii=False)
