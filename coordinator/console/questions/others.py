"""The questions of `coordinator init`, and what a file answers by itself."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from coordinator.console.questions.answers import anything, asked, one_of, say
from coordinator.console.questions.first import First
from coordinator.systems.first_plan import classes_of, columns_said, looked_at, size_of
from coordinator.systems.registry import names, system
from coordinator.systems.starting import Choices, says, wants_label
from learning.errors import DataError
from learning.text.documentation import NAMES
from learning.text.preview import Preview
from learning.text.reading import stated

EPSILONS: Final = (1.0, 4.0, 8.0)
"""Whose meaning is shown before one is chosen."""
LARGEST: Final = 100.0


def load() -> None:
    """Import what the questions need, the installed systems among it."""
    from coordinator.page import reader  # noqa: F401
    from learning.audits import trade_offs  # noqa: F401

    for name in names():
        system(name)


def ask(plan: Path, first: First) -> Choices:
    """Ask for everything else that a plan needs first. plan: where it will be. Raises KeyboardInterrupt and EOFError
    where no answer comes.
    """
    found, looked = Choices(recipe=first.recipe, launch=first.launch), None
    if found.launch == "ray":
        found, looked = _text(found, plan)
        found = _label(found, looked)
    if first.alone:
        say("\nThis recipe has no privacy: it trains on all text in clear. No epsilon is asked.")
        return found
    return _promise(found, looked)


def meaning(epsilon: float, delta: float, unit: str) -> str:
    """What an epsilon promises, in words anyone understands."""
    from coordinator.page.reader import Reader, times
    from coordinator.pricing.release import gaussian_multiplier
    from learning.audits.trade_offs import Gaussian, right, right_by_claim

    reader = Reader(epsilon, delta, right_by_claim(epsilon, delta), "claim")
    gaussian = math.ceil(100 * right(Gaussian(1 / gaussian_multiplier(epsilon, delta))))
    what = "one person's text" if unit == "user" else "one record"
    return (
        f"epsilon {epsilon:g} ({reader.tier}): whatever is published may be {times(epsilon)} as likely with {what} as "
        f"without. Of 100 guesses whether it was there, at most {reader.people} are right, and under Gaussian noise "
        f"{gaussian}; a coin has 50."
    )


def _text(found: Choices, plan: Path) -> tuple[Choices, Preview | None]:
    usual = says(found.recipe, "federation", "shards")["source"]
    built_in = usual in NAMES and not wants_label(found.recipe)
    kinds = ".csv .tsv .jsonl .json .parquet .xlsx .txt, also .gz"
    say(f"\nWhich text? A file ({kinds}), a pattern, a folder, or a hub's name.")
    if built_in:
        say(f"{usual}: this Python's own docstrings, to try it without a file.")

    def read(answer: str) -> tuple[str, dict[str, str], Preview | None]:
        try:
            return looked_at(answer, plan, _sheet)
        except DataError as error:
            raise ValueError(str(error)) from None

    source, reading, looked = asked("source", usual if built_in else "", read)
    if source == usual:
        return found, None
    looks = {key: value for key, value in reading.items() if key != "sheet"}
    if looks:
        say(f"  The file looks like {stated(looks)}: the plan says so.")
    if looked is None:
        column = asked("column of the text", "text", anything)
        return replace(found, source=source, reading=reading, text=column), None
    _show(source, looked)
    column = asked("column of the text", looked.text or "", _column(looked))
    return replace(found, source=source, reading=reading, text=column), looked


def _label(found: Choices, looked: Preview | None) -> Choices:
    wanted = wants_label(found.recipe)
    if found.source is None or wanted is False:
        return found
    guess = "label" if looked is None else looked.label or ""
    if wanted is None:
        say("A column of few values can stand as a code before every text: a category, say. none: no code.")
        guess = guess or "none"
    read = anything if looked is None else _column(looked, *(["none"] if wanted is None else []))
    label = asked("column of the label" if wanted else "column of the code", guess, read)
    if wanted is None and label == "none":
        return found
    classes = classes_of(looked, label)
    if classes:
        say(f"  {len(classes)} classes: {', '.join(classes)}. Everybody will know their names.")
    else:
        say("  The plan's labels are those of an example: put yours there, and what the column holds for each.")
    return replace(found, label=label, labels=classes)


def _promise(found: Choices, looked: Preview | None) -> Choices:
    say("\nWhat is protected? record: each row by itself. user: all rows of one person together, which needs a column")
    say("that names the person.")
    guess = "" if looked is None else looked.user or ""
    unit = asked("unit", "user" if guess else "record", one_of("record", "user"))
    if unit == "user" and found.source is not None:
        read = anything if looked is None else _column(looked)
        found = replace(found, user=asked("column of the user", guess, read))
    privacy = says(found.recipe, "privacy", "delta"), says(found.recipe, "privacy", "declared_size")
    if privacy[1] is not None:
        say("\nHow many records have all parties together, roughly? Everybody will know this figure.")
        about = size_of(looked) if looked is not None else None
        found = replace(found, size=asked("records", f"{about or privacy[1]}", _whole))
    delta = privacy[0] or 1e-6
    say("\nHow much may the result tell of any of them? Epsilon bounds it: smaller is more private, and learns less.")
    for epsilon in EPSILONS:
        say(f"  {meaning(epsilon, delta, unit)}")
    usual = says(found.recipe, "privacy", "epsilon") or 8.0
    chosen = asked("epsilon", f"{usual:g}", _epsilon)
    if chosen not in EPSILONS:
        say(f"  {meaning(chosen, delta, unit)}")
    return replace(found, unit=unit, epsilon=chosen)


def _sheet(names: list[str]) -> str:
    say(f"  It has {len(names)} sheets with rows: {', '.join(names)}.")
    return asked("sheet", names[0], one_of(*names))


def _show(source: str, looked: Preview) -> None:
    say(f"  {source}: {'' if looked.whole else 'more than '}{looked.rows:,} rows")
    width = max(len(column.name) for column in looked.columns)
    for column in looked.columns:
        say(f"    {column.name:<{width}}  {column.said}")


def _column(looked: Preview, *others: str) -> Callable[[str], str]:
    def read(answer: str) -> str:
        if answer not in others and looked.named(answer) is None:
            raise ValueError(f'There is no column "{answer}". {columns_said(looked)}')
        return answer

    return read


def _whole(answer: str) -> int:
    plain = answer.replace(",", "").replace("_", "")
    if not plain.isdigit() or int(plain) < 1:
        raise ValueError("A whole number above 0, please, for example 10000.")
    return int(plain)


def _epsilon(answer: str) -> float:
    try:
        value = float(answer)
    except ValueError:
        value = math.nan
    if not 0 < value <= LARGEST:
        raise ValueError(f"A number above 0, up to {LARGEST:g}, please, for example 4.")
    return value
