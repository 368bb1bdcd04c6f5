"""The plan of a run: everything that decides data, privacy and result, checked before any party is contacted."""

from pathlib import Path
from typing import Any

from coordinator.errors import PlanError
from coordinator.plan.plan import Plan
from coordinator.systems.dped.plan import DpedPlan
from coordinator.systems.privdistil.plan import PrivDistilPlan
from coordinator.text_models.plan import ClassifierPlan
from protos.console.settings import SettingsError, check_settings, read_tables

_CLASSES: dict[str, type[Plan]] = {
    "dped": DpedPlan,
    "dp_sgd": ClassifierPlan,
    "pate": ClassifierPlan,
    "fine_tune": ClassifierPlan,
    "privdistil": PrivDistilPlan,
}


def class_of(tables: dict[str, Any]) -> type[Plan]:
    """Which tables a plan of its recipe has; of an unknown recipe, whatever will say so."""
    run = tables.get("run")
    recipe = run.get("recipe") if isinstance(run, dict) else None
    return _CLASSES.get(recipe, DpedPlan) if isinstance(recipe, str) else DpedPlan


def plan_of(tables: dict[str, Any]) -> Plan:
    """A plan from its tables, as `Plan.model_dump` gives them. Raises ValueError."""
    return class_of(tables).model_validate(tables)


def read_plan(path: Path) -> Plan:
    """Read and check a plan file. Raises `PlanError` naming the file, the key and what would be right."""
    try:
        tables, text = read_tables(path)
        return check_settings(tables, class_of(tables), path.name, text)
    except SettingsError as error:
        raise PlanError(str(error)) from None
