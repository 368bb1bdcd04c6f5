"""Admits a submitted plan: it is read, held against the coordinator's file, and rewritten for the run's own process.

A submitter is an attacker: what a plan may decide of this machine is refused here in words, or decided here instead.
"""

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from coordinator.errors import PlanError
from coordinator.plan.federation import PartyEntry
from coordinator.plan.plan import Plan
from coordinator.serving.config import Located, ServeConfig
from coordinator.serving.paths import check_places
from coordinator.systems.registry import check_plan, system
from coordinator.transport.dialled.standing import SCHEME
from protos.console.mistakes import SettingsError
from protos.console.settings import parse_tables

LARGEST: Final = 256 * 1024
"""The most bytes of a plan that is submitted."""
PLAN: Final = "the plan"
SIMULATION: Final = "(this machine)"
"""Stands for the parties that a run starts here: no party has this name, so that one such run goes on at a time."""
_OWN: Final = ("device", "precision", "threads")
_WAITS: Final = ("deadline_seconds", "retry_seconds")


@dataclass(frozen=True, slots=True)
class Admitted:
    """A plan that may run.

    digest: of what decides data, privacy and result, and of the files that it names; the same plan has the same. asks:
    the parties that it asks, which no other run may ask meanwhile. file: the plan for the run's own process, TOML.
    said: sentences on what the coordinator decides itself.
    """

    digest: str
    name: str
    recipe: str
    asks: tuple[str, ...]
    file: str
    said: tuple[str, ...]


def admitted(text: str, config: ServeConfig, located: Located) -> Admitted:
    """A submitted plan, TOML, as it will run. Raises `PlanError` saying which key is wrong and what would be right."""
    if len(text.encode("utf-8", "surrogatepass")) > LARGEST:
        raise PlanError(f"the plan is larger than {LARGEST >> 10} KiB, so it was not read.")
    try:
        tables = parse_tables(text, PLAN)
        said = [*_own_settings(tables), *_bounded(tables, config.submit.patience)]
        _placed(tables, config, located)
        plan = check_plan(tables, PLAN, text)
    except SettingsError as error:
        raise PlanError(str(error)) from None
    if system(plan.run.recipe).alone is not None:
        raise PlanError(
            f'[run] recipe = "{plan.run.recipe}" asks nothing of parties: run it yourself, without --at.', code="C109"
        )
    check_places(plan, located.public, hub=config.submit.hub)
    document = plan.document(places=True)
    return Admitted(
        hashlib.sha256(document.encode()).hexdigest(),
        plan.run.name,
        plan.run.recipe,
        _asks(plan),
        as_toml(tables),
        tuple(said),
    )


def _asks(plan: Plan) -> tuple[str, ...]:
    return plan.federation.names if plan.federation.shards is None else (SIMULATION,)


def _own_settings(tables: dict[str, Any]) -> list[str]:
    """Take out what is for the submitter's machine, and what this machine decides; sentences about the latter."""
    said = []
    if isinstance(student := tables.get("student"), dict):
        student.pop("publish", None)
    if isinstance(run := tables.get("run"), dict):
        taken = [key for key in _OWN if run.pop(key, None) is not None]
        if taken:
            said.append(f"[run] {', '.join(taken)}: the coordinator computes with what it has.")
    return said


def _bounded(tables: dict[str, Any], most: float) -> list[str]:
    """Bound how long a party may be waited for; sentences about what was bounded."""
    federation = tables.get("federation")
    if not isinstance(federation, dict):
        return []
    long = [key for key in _WAITS if isinstance(federation.get(key), int | float) and federation[key] > most]
    federation.update(dict.fromkeys(long, most))
    return [f"[federation] {key}: at most {most:g} s at this coordinator." for key in long]


def _placed(tables: dict[str, Any], config: ServeConfig, located: Located) -> None:
    """Write into `[federation]` how this coordinator reaches the parties. Raises `PlanError`."""
    federation = tables.get("federation")
    if not isinstance(federation, dict):
        return
    if "launch" not in federation:
        return  # the plan's own check says that it is missing
    if federation["launch"] != "connect":
        _check_simulation(federation, config)
        return
    for key, why in (
        ("identity", "the coordinator has its own"),
        ("listen", "the coordinator has a gate of its own"),
        ("cluster", "the coordinator uses no cluster of yours"),
    ):
        if key in federation:
            raise PlanError(f"[federation] {key}: {why}. Take it out of a plan that you submit.", code="C109")
    parties = federation.get("parties")
    if not isinstance(parties, list):
        return
    known = {party.name: party for party in config.parties}
    federation["parties"] = [_way(each, known, config) for each in parties]
    federation["identity"] = str(located.identity)
    if any(isinstance(each, dict) and each.get("dials") for each in federation["parties"]):
        federation["listen"] = f"{SCHEME}{located.sockets}"


def _check_simulation(federation: Mapping[str, Any], config: ServeConfig) -> None:
    if not config.submit.simulations:
        raise PlanError(
            f'[federation] launch = "{federation.get("launch")}" would start parties on the coordinator\'s machine, '
            'which it does not take ([submit] simulations). Use launch = "connect", or run the plan yourself.',
            code="C109",
        )
    if "cluster" in federation:
        raise PlanError("[federation.cluster]: the coordinator uses no cluster of yours. Take it out.")


def _way(entry: Any, known: Mapping[str, PartyEntry], config: ServeConfig) -> Any:
    """A party of a plan with the way that the coordinator's file has. Raises `PlanError`."""
    name = entry.get("name") if isinstance(entry, dict) else None
    if not isinstance(name, str):
        return entry  # the plan's own check says what is wrong
    if (party := known.get(name)) is None:
        if config.submit.addresses and isinstance(entry.get("address"), str) and set(entry) == {"name", "address"}:
            return dict(entry)
        there = ", ".join(sorted(known)) or "none"
        raise PlanError(
            f'[federation] parties: "{name[:60]}" is not a party of this coordinator ({there}). Name one of these, or '
            "ask who looks after the coordinator.",
            code="C109",
        )
    if odd := sorted(set(entry) - {"name", "address", "dials"}):
        raise PlanError(
            f"[federation] parties: there is no key {odd[0][:60]}. A submitted plan needs the name alone.", code="C109"
        )
    if entry.get("address") is not None and entry["address"] != party.address:
        raise PlanError(
            f"[federation] parties: the coordinator reaches {name} otherwise than at the plan's address. Leave the "
            "address out.",
            code="C109",
        )
    return {"name": name, "dials": True} if party.dials else {"name": name, "address": party.address}


def as_toml(tables: Mapping[str, Any]) -> str:
    """Tables as TOML that reads back as the same. Raises `PlanError` for a value that has no such form."""
    tops = [f"{_key(key)} = {_value(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    rest = [
        f"\n[{_key(name)}]\n" + "\n".join(f"{_key(key)} = {_value(value)}" for key, value in table.items())
        for name, table in tables.items()
        if isinstance(table, dict)
    ]
    text = "\n".join([*tops, *rest, ""])
    if tomllib.loads(text) != tables:
        raise PlanError("the plan holds a value that cannot be kept as it is. Write it more simply.")
    return text


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return repr(value)
        case list():
            return f"[{', '.join(_value(each) for each in value)}]"
        case dict():
            return f"{{{', '.join(f'{_key(key)} = {_value(each)}' for key, each in value.items())}}}"
    raise PlanError("the plan holds a value of a kind that no key takes (a date, or a number that is not finite).")


def _key(key: str) -> str:
    return _value(key)
