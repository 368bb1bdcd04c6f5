"""Writes the page of a command: each of its commands with arguments and options, from the typer app itself."""

import inspect
from collections.abc import Iterator
from typing import Any

from markdown_text import cell, prose, row
from typer import Typer
from typer.main import get_command


def page(app: Typer) -> str:
    """The page of a whole app."""
    root = get_command(app)
    lines = [f"# The command `{root.name}`", "", *_help(root), *_parameters(root)]
    for words, command in _commands(root, (str(root.name),)):
        lines += [f"## `{' '.join(words)}`", "", *_help(command), *_usage(words, command), *_parameters(command)]
    return "\n".join(lines).rstrip() + "\n"


def _commands(group: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield (*words, name), command
            yield from _commands(command, (*words, name))
        else:
            yield (*words, name), command


def _help(command: Any) -> Iterator[str]:
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from (prose(" ".join(paragraph.split())), "")


def _usage(words: tuple[str, ...], command: Any) -> list[str]:
    if hasattr(command, "commands"):
        return []
    shown = [_argument(each) for each in command.params if each.param_type_name == "argument"]
    options = ["[OPTIONS]"] if any(each.param_type_name == "option" for each in command.params) else []
    return ["```sh", " ".join([*words, *options, *shown]), "```", ""]


def _argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return name if parameter.required else f"[{name}]"


def _parameters(command: Any) -> list[str]:
    shown = [each for each in command.params if not each.hidden]
    if not shown:
        return []
    lines = [row("argument or option", "by default", "meaning"), "|---|---|---|"]
    for each in shown:
        lines.append(row(_name(each), _default(each), cell(" ".join((each.help or "").split()))))
    return [*lines, ""]


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_argument(parameter)}`"
    flag = getattr(parameter, "is_flag", False)
    value = "" if flag else f" {parameter.metavar or parameter.name.upper()}"
    return ", ".join(f"`{name}{value}`" for name in [*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    if parameter.required:
        return "**required**"
    default = parameter.default
    return "" if default in (None, False, "", ()) or callable(default) else f"`{default}`"
