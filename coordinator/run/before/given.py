"""What programs give: a plan as a file, a value or its tables, and arguments, with a sentence on any that is odd."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeAlias

from coordinator.errors import PlanError
from coordinator.plan.plan import Plan
from coordinator.reading import shown
from coordinator.systems.registry import check_plan, read_plan
from protos.console.mistakes import SettingsError

PlanLike: TypeAlias = Plan | Mapping[str, Any] | Path | str
"""A plan, the tables of one, or its file."""
_MOST_SEEDS = 100


@dataclass(frozen=True, slots=True)
class Given:
    """A plan that was given. path: of its file, absolute; None without one. base: the folder its paths start at."""

    plan: Plan
    path: Path | None
    base: Path


def plan_given(plan: PlanLike) -> Given:
    """The plan that a program gives; without a file its paths start at the current folder. Raises `PlanError`."""
    if isinstance(plan, Plan):
        return Given(plan, None, Path.cwd())
    if isinstance(plan, Mapping):
        try:
            return Given(check_plan(dict(plan), "the plan"), None, Path.cwd())
        except SettingsError as error:
            raise PlanError(str(error)) from None
    if isinstance(plan, str | Path):
        return Given(read_plan(Path(plan)), Path(plan).absolute(), Path(plan).absolute().parent)
    raise PlanError(f"{shown(repr(plan))} is no plan. Name its file, or give its tables as a dictionary.")


def several(name: str, value: Sequence[Any], kind: type, example: str) -> tuple[Any, ...]:
    """A list of values of a kind. Raises `PlanError` for anything else, as for one value without a list."""
    if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(each, kind) for each in value):
        raise PlanError(f"{name} = {shown(repr(value))} is not a list of {example}.")
    return tuple(value)


def check_compared(
    recipes: Sequence[str], epsilons: Sequence[float], seeds: int
) -> tuple[tuple[str, ...], tuple[float, ...], int]:
    """What a comparison is asked for, if it is what it should be. Raises `PlanError`."""
    if isinstance(seeds, bool) or not isinstance(seeds, Integral) or not 1 <= seeds <= _MOST_SEEDS:
        raise PlanError(f"seeds = {shown(repr(seeds))} is no number of seeds. Say how many, from 1 to {_MOST_SEEDS}.")
    names = several("recipes", recipes, str, 'names of rows, for example ["counts"]')
    return names, several("epsilons", epsilons, Real, "numbers, for example [1, 2, 4]"), int(seeds)
