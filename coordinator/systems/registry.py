"""The installed systems by name, and the plan of a run: each system has tables of its own.

A plan decides data, privacy and result; the whole plan is checked before any party is contacted.
"""

from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ConfigDict, field_validator
from pydantic_core import PydanticCustomError

from coordinator.errors import PlanError
from coordinator.plan.plan import Plan, RunTable
from coordinator.pricing.priced_plan import price_plan
from coordinator.pricing.release import PricedPlan
from coordinator.systems.glances import GROUP, ordered
from coordinator.systems.system import Recipe, System
from protos.console.mistakes import SettingsError
from protos.console.settings import NOT_INSTALLED, check_settings, read_tables
from protos.installed import Installed

_SYSTEMS: Final = Installed(GROUP, "system", System, partial(PlanError, code="C106"))
PlanT = TypeVar("PlanT", bound=Plan)


def names() -> tuple[str, ...]:
    """The names of all installed systems in alphabetical order; those of other packages come last."""
    return tuple(_installed())


def system(name: str) -> System:
    """The system with that name, loaded at its first use. Raises `PlanError` naming the systems there are."""
    found = _SYSTEMS.find(name)
    if found is None:
        raise PlanError(f'[run] recipe = "{name}" is not one of {_listed()}.', code="C106")
    return found


def template(launch: str, recipe: str | None = None) -> str:
    """The commented plan of a system for a way of launching, `ray` or `connect`; by default of the system that needs
    no files.

    Raises `PlanError` for another way of launching, and for a system without such a plan.
    """
    name = next((name for name in names() if system(name).first), names()[0]) if recipe is None else recipe
    found = system(name).example if name in names() else None
    if found is None:
        *others, last = (f'"{each}"' for each in names() if system(each).example is not None)
        there = f"{', '.join(others)} and {last}" if others else last
        raise PlanError(f"--recipe {recipe}: there is a plan to start from for {there}.", code="C106")
    return found.launched(launch)


def prepared(plan: Plan, base: Path, cache: Path) -> Recipe[Any]:
    """The recipe of a plan with its public data read. Raises what the system's `prepare` raises."""
    return system(plan.run.recipe).prepared(plan, base, cache)


def recipe_of(name: str, plan: Plan, public: Any) -> Recipe[Any]:
    """The recipe of the system of that name, of a plan and what its kind prepares. Raises `PlanError` as `system`."""
    return system(name).recipe(plan, public)


def price_of(plan: PlanT, public: Any = None) -> PricedPlan[PlanT]:
    """Price a plan. public: what its system prepared, needed where releases depend on it. Raises `PlanError`."""
    return price_plan(recipe_of(plan.run.recipe, plan, public))


def plan_of(tables: dict[str, Any]) -> Plan:
    """A plan from its tables as `Plan.model_dump` gives them. Raises ValueError."""
    return _class_of(tables).model_validate(tables)


def check_plan(tables: dict[str, Any], name: str, text: str = "") -> Plan:
    """A plan from tables that were read from a file. Raises `SettingsError`, whose sentence uses `name` and `text`."""
    return check_settings(tables, _class_of(tables), name, text)


def read_plan(path: Path) -> Plan:
    """Read and check a plan file. Raises `PlanError` naming the file, the key and a value that would do."""
    try:
        tables, text = read_tables(path)
        return check_plan(tables, path.name, text)
    except SettingsError as error:
        raise PlanError(str(error)) from None


class _KnownRun(RunTable):
    """`[run]` of an installed system."""

    @field_validator("recipe", mode="before")
    @classmethod
    def _known(cls, recipe: Any) -> Any:
        if recipe not in names():
            raise PydanticCustomError(NOT_INSTALLED, "is not one of {expected}", {"expected": _listed()})
        return recipe


class _Unknown(Plan):
    """A plan whose recipe is missing or not installed, so that its tables are unknown: validating it says so."""

    model_config = ConfigDict(extra="ignore")

    run: _KnownRun


def _class_of(tables: dict[str, Any]) -> type[Plan]:
    """The plan class of a recipe; for an unknown recipe, the class whose validation says so."""
    run = tables.get("run")
    recipe = run.get("recipe") if isinstance(run, dict) else None
    return system(recipe).plan if isinstance(recipe, str) and recipe in _installed() else _Unknown


def _installed() -> list[str]:
    """The names of `names`. Raises `PlanError` where there is none."""
    points = _SYSTEMS.points()
    if not points:
        raise PlanError(
            "Conclave's own systems are not installed here. Install it again: pip install conclave-distill", code="C106"
        )
    return ordered(points)


def _listed() -> str:
    *others, last = (f"'{name}'" for name in names())
    return f"{', '.join(others)} or {last}" if others else last
