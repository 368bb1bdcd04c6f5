"""Everything that a page tells of a run, from its store alone: no shard is opened and nothing is learned again.

What is gathered may be shown to others: it has no address or path of this machine, and nothing that was not released.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from aggregation.accounting.events import from_json
from aggregation.accounting.price import price
from aggregation.errors import ConclaveError
from coordinator.page import exhibits
from coordinator.page.exhibits import Exhibit
from coordinator.published.audit import Audit
from coordinator.publishing import heard
from coordinator.publishing.heard import Heard
from coordinator.publishing.report import statement_of
from coordinator.reading import without_places
from coordinator.store.faults import sound
from coordinator.store.store import FINISHED, RESUMABLE, RUNNING, RunStore


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a run. start: seconds after the first stage's start. seconds: None where it is not finished."""

    name: str
    start: float
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run cost a party. epsilon: of what it signed that it was charged; None where it signed nothing, or nothing
    is promised. charges: how many. cap: for the life of its data, None where only the party knows it.
    """

    party: str
    epsilon: float | None
    charges: int | None
    cap: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Checked:
    """One check of the published folder, made when the page was."""

    name: str
    ok: bool
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Beside:
    """A method without privacy, measured by a comparison on the same plan: the mean over seeds of the main metrics."""

    name: str
    metrics: Mapping[str, float]
    seeds: int


@dataclass(frozen=True, slots=True)
class Account:
    """A run as its page tells it.

    privacy: the content of `privacy.json`, None until there is one. metrics: None until the student was measured. plan:
    the public form of the plan. student: the name of the published folder, None where there is none. about: what such a
    student is, in words; recipe: the system's name. beside: what a comparison found without privacy. checked: what
    `verify` found of the folder.
    """

    run: str
    name: str
    status: str
    error: str | None
    recipe: str
    about: str | None
    plan: Mapping[str, Any]
    privacy: Mapping[str, Any] | None
    metrics: Mapping[str, Any] | None
    audit: Audit | None
    stages: tuple[Stage, ...]
    started: float
    parties: tuple[str, ...]
    states: Mapping[str, str]
    retries: Mapping[str, Mapping[str, int]]
    resumed: int
    spent: tuple[Spent, ...]
    heard: Mapping[str, Sequence[Heard]]
    exhibits: tuple[Exhibit, ...]
    student: str | None
    beside: tuple[Beside, ...] = ()
    checked: tuple[Checked, ...] = field(default=())

    @property
    def finished(self) -> bool:
        """Whether the run has published its student."""
        return self.status == FINISHED

    @property
    def goes_on(self) -> bool:
        """Whether the run goes on, or can."""
        return self.status in (RUNNING, RESUMABLE)

    @property
    def simulated(self) -> bool:
        """Whether its parties were simulated."""
        return bool((self.plan.get("federation") or {}).get("shards"))

    @property
    def units(self) -> int | None:
        """The declared number of units, where the plan has one."""
        declared = (self.plan.get("privacy") or {}).get("declared_size")
        return declared if isinstance(declared, int) else None


def gathered(
    store: RunStore, *, about: str | None = None, beside: Sequence[Beside] = (), checked: Sequence[Checked] = ()
) -> Account:
    """The account of a run in whatever state it is. Raises `RunError` where what is stored of it is damaged."""
    report = statement_of(store)
    with sound(store.folder):
        document = json.loads(store.fact("document") or "{}")
        run = document.get("run") or {}
        kept = store.stages()
        first = min((start for start, *_ in kept.values()), default=float(store.fact("started") or 0.0))
        stages = tuple(
            Stage(name, start - first, None if end is None else max(0.0, end - start))
            for name, (start, end, _) in kept.items()
        )
        student = Path(report["student"]).name if report["student"] else None
        audit = None if report["audit"] is None else Audit.model_validate(report["audit"])
        parties = tuple((document.get("federation") or {}).get("parties") or ())
        return Account(
            run=store.id,
            name=str(report["name"]),
            status=report["status"],
            error=None if not report["error"] else without_places(str(report["error"])),
            recipe=str(run.get("recipe", "")),
            about=about,
            plan=document,
            privacy=report["privacy"],
            metrics=report["metrics"],
            audit=audit,
            stages=stages,
            started=float(store.fact("started") or 0.0),
            parties=parties,
            states={name: without_places(str(state)) for name, state in (store.fact("parties") or {}).items()},
            retries={name: dict(each) for name, each in (store.fact("retries") or {}).items()},
            resumed=int(store.fact("resumed") or 0),
            spent=_spent(parties, kept, report["privacy"], store.fact("caps") or {}),
            heard=heard.kept(store),
            exhibits=exhibits.kept(store),
            student=student,
            beside=tuple(beside),
            checked=tuple(checked),
        )


def _spent(
    parties: Sequence[str], stages: Mapping[str, Any], privacy: Mapping[str, Any] | None, caps: Mapping[str, float]
) -> tuple[Spent, ...]:
    """What the run cost each party by what it signed; none before the parties signed."""
    result = stages["attest"][2] if "attest" in stages else None
    if not result:
        return ()
    delta = None if privacy is None or privacy["delta"] is None else privacy["delta"] - privacy["sampler_delta"]
    found = []
    for name in parties:
        cap = caps.get(name)
        if name not in result["signed"]:
            why = result["left_out"].get(name) or result["missing"].get(name) or "it is in no sum of this run"
            found.append(Spent(name, None, None, cap, without_places(str(why))))
            continue
        said = json.loads(base64.b64decode(result["signed"][name]["payload"]))
        events = tuple(json.dumps(each["event"], sort_keys=True) for each in said["releases"])
        found.append(Spent(name, None if delta is None else _price(events, delta), len(events), cap))
    return tuple(found)


@lru_cache(maxsize=64)
def _price(events: tuple[str, ...], delta: float) -> float | None:
    """The price of a party's events, JSON each; None where there is none."""
    try:
        return price([from_json(json.loads(each)) for each in events], delta).epsilon
    except ConclaveError:
        return None
