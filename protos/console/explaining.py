"""`explain`, of both commands: the pages of errors' codes, one Markdown file each in the folder `errors`.

A link of a page starts at the root of the project, as `docs/parties.md`; whoever shows the page elsewhere says where
that is.
"""

import difflib
import re
from functools import cache
from pathlib import Path
from typing import Annotated, Final

import typer

from protos.console.mistakes import printable

FOLDER: Final = Path(__file__).parent / "errors"
GROUPS: Final = {
    "C1": "the command line, plans and other files of settings",
    "C2": "text and models",
    "C3": "this machine",
    "C4": "certificates and signatures",
    "C5": "parties and the way to them",
    "C6": "privacy, and what it costs",
    "C7": "runs and their folders",
    "C8": "students and what vouches for them",
    "C9": "Conclave itself",
}
_LINK: Final = re.compile(r"\[([^\]]+)\]\((docs/[^)\s]+)\)")
_SAID: Final = re.compile(r"\s+\[(C\d{3})\]$")


@cache
def titles() -> dict[str, str]:
    """The title of every page by its code, in order."""
    return {path.stem: _title(path) for path in sorted(FOLDER.glob("C*.md"))}


def page(code: str) -> str:
    """A page as it is written: Markdown, with a heading."""
    return (FOLDER / f"{code}.md").read_text("utf-8")


def divided(sentence: str) -> tuple[str, str]:
    """A sentence that a command ended with, and the code after it; the code is empty where there is none."""
    found = _SAID.search(sentence)
    return (sentence, "") if found is None else (sentence[: found.start()], found[1])


def _title(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        return file.readline().partition(": ")[2].strip()


def _known(code: str) -> str:
    """The code as it is written, of what a person typed. Raises `typer.BadParameter` where there is none such."""
    typed = code.strip().strip("[]").upper()
    if typed in titles():
        return typed
    close = difflib.get_close_matches(typed, titles(), n=3, cutoff=0.5)
    near = f"Did you mean {' or '.join(close)}?" if close else "Without a code, `explain` lists them all."
    raise typer.BadParameter(f"there is no code {printable(code)[:40]}. {near}")


def _complete(incomplete: str) -> list[tuple[str, str]]:
    return [(code, title) for code, title in titles().items() if code.startswith(incomplete.upper())]


def explain(
    code: Annotated[
        str | None,
        typer.Argument(
            metavar="CODE",
            help="The code at the end of an error, as C102.",
            autocompletion=_complete,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Say what an error's code means: what happened, why, and what to do. Without a code, list them all."""
    from rich.console import Console
    from rich.markdown import Markdown

    out = Console(highlight=False, soft_wrap=True)
    text = _all() if code is None else page(_known(code))
    if out.is_terminal:
        out.print(Markdown(_plain(text)), soft_wrap=False)
    else:
        print(_plain(text).rstrip())


def _all() -> str:
    """The list of all codes with their titles, Markdown."""
    lines = []
    for group, what in GROUPS.items():
        lines += [f"**{group}..: {what}**", ""]
        lines += [f"- {code}: {title}" for code, title in titles().items() if code.startswith(group)]
        lines.append("")
    return "\n".join(lines)


def _plain(text: str) -> str:
    """A page as it is read where no link can be followed: the name of the file in its place."""
    return _LINK.sub(r"\1 (\2)", text)
