"""A plan to start from as a new file: what its source says by itself filled in, checked, and written whole or not."""

import os
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from coordinator.errors import PlanError
from coordinator.store.private_files import home
from coordinator.systems.new_plan import check_new, write_new
from coordinator.systems.registry import check_plan
from coordinator.systems.starting import Choices, started, wants_label
from learning.errors import DataError
from learning.text.documentation import NAMES
from learning.text.hub import is_hub_name
from learning.text.preview import MOST_ROWS, Preview, preview
from learning.text.reading import UTF_8
from learning.text.source import Source, first_file, keys_offered, sheets_of
from protos.console.mistakes import SettingsError


def init(
    plan: Path | str = "plan.toml",
    *,
    recipe: str | None = None,
    launch: str = "ray",
    source: str | None = None,
    text: str | None = None,
    label: str | None = None,
    user: str | None = None,
    epsilon: float | None = None,
) -> Path:
    """Write a commented plan to start from into a new file, and return its path.

    recipe: the system's name, by default that for word embeddings. launch: "ray", to try it on this machine, or
    "connect", for parties that run elsewhere. source: the text of simulated parties; text, label, user: its columns, by
    default those that look so. user: all text of one is then protected. epsilon: the whole run's cost. Raises
    `PlanError`, and then nothing is written.
    """
    path = Path(plan)
    check_new(path)
    unit = None if user is None else "user"
    write(path, filled(Choices(recipe, launch, source, text, label, user, unit=unit, epsilon=epsilon), path))
    return path.absolute()


def write(path: Path, choices: Choices) -> None:
    """Write the plan with these choices. Raises `PlanError` for choices that no plan can have, and for a file that is
    there.
    """
    write_new(path, _checked(path, choices))


def filled(choices: Choices, plan: Path) -> Choices:
    """Choices with what the file says of its own columns, for one who is not asked. plan: where it will be.

    Raises `PlanError` where a column is needed that the file does not show, and for columns of no source.
    """
    if choices.source is None:
        if (choices.text, choices.label, choices.user) != (None, None, None):
            raise PlanError(
                "text, label and user are columns of a source, and none is named. Name its file, too: source.",
                code="C101",
            )
        return choices
    if choices.launch != "ray":
        raise PlanError(
            "a source belongs to parties that this run starts; parties elsewhere name their own.", code="C101"
        )
    try:
        source, reading, looked = looked_at(choices.source, plan)
        found = replace(choices, source=source, reading=reading)
        if looked is None:
            return found
        wanted = wants_label(choices.recipe)
        for role, column in (("text", choices.text), ("label", choices.label), ("user", choices.user)):
            if column is not None and looked.named(column) is None:
                raise PlanError(f"{role} {column}: the file has no such column. {columns_said(looked)}", code="C203")
        label = choices.label or (looked.label if wanted else None)
        if wanted and label is None:
            raise PlanError(f"label is missing: no column looks like the label. {columns_said(looked)}", code="C203")
        found = replace(found, text=choices.text or looked.text, label=label)
        return replace(found, labels=classes_of(looked, label) if wanted is not False else (), size=size_of(looked))
    except DataError as error:
        raise PlanError(str(error)) from None


def looked_at(
    answer: str, plan: Path, choose: Callable[[list[str]], str] | None = None
) -> tuple[str, dict[str, str], Preview | None]:
    """A source as the plan is to name it, how its files are read, and its first rows, None of what is not here.

    choose: which one of several sheets with rows; by default the first. Raises `DataError`.
    """
    if answer in NAMES:
        return answer, {}, preview(Source(answer), home() / "cache")
    here = os.path.expanduser(answer)
    if first_file(here) is None and is_hub_name(answer):
        return answer, {}, None
    reading = keys_offered(here)
    if len(sheets := sheets_of(here)) > 1:
        reading["sheet"] = sheets[0] if choose is None else choose(sheets)
    source = Source(here, encoding=reading.get("encoding", UTF_8), delimiter=reading.get("delimiter"))
    source = replace(source, sheet=reading.get("sheet"))
    looked = preview(source, home() / "cache")
    beside = plan.absolute().parent
    named = here if os.path.isabs(here) or beside == Path.cwd() else os.path.relpath(here, beside)
    return named, reading, looked


def classes_of(looked: Preview | None, label: str | None) -> tuple[str, ...]:
    """The values of a column of labels; none where there is no such column."""
    column = None if looked is None or label is None else looked.named(label)
    return (column.classes if column is not None else None) or ()


def size_of(looked: Preview) -> int | None:
    """About how many rows there are, to two digits; None where not all were counted."""
    if not looked.whole or looked.rows > MOST_ROWS:
        return None
    digits = max(0, len(str(looked.rows)) - 2)
    return max(1, round(looked.rows, -digits))


def columns_said(looked: Preview) -> str:
    """All columns of a source, in a sentence."""
    return f"Its columns are: {', '.join(column.name for column in looked.columns)}."


def _checked(plan: Path, choices: Choices) -> str:
    text = started(choices)
    try:
        check_plan(tomllib.loads(text), plan.name, text)
    except SettingsError as error:
        raise PlanError(f"{error} Nothing was written.") from None
    return text
