"""Audits a plan: runs its recipe over simulated parties with canaries, attacks what comes out, and bounds epsilon.

Every coin is fair and known to the auditor alone. The lower bounds are those of `learning.audits.one_run`, with the
confidence divided among the attacks, so that all of them hold together. Whether an attack refutes the claim is another
question, at a confidence of its own: `learning.audits.gate`.
"""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from coordinator.auditing import source
from coordinator.auditing.attacks import Attacks, Ran, Scores, Seen
from coordinator.auditing.canaries import Canary, Planted, flipped
from coordinator.auditing.shadows import inferred
from coordinator.auditing.watching import Watch, watched
from coordinator.comparing.simulated_run import Collecting, SimulatedRun, driven
from coordinator.errors import PlanError
from coordinator.plan.audit import AuditTable
from coordinator.plan.plan import Plan
from coordinator.pricing.priced_plan import price_plan
from coordinator.pricing.release import rounded_up
from coordinator.progress.progress import Progress, Silent
from coordinator.published.audit import DELTA, Attacked, Audit, Kind, units_of_canary
from coordinator.transport.launchers import Launcher, SimulationRequest
from learning.audits import gate, one_run, trade_offs
from learning.audits.trade_offs import TradeOff
from learning.models.forked import allowing
from learning.models.machine import processors
from learning.text.source import Document


@dataclass(frozen=True, slots=True)
class AuditRequest:
    """A plan to audit. recipe: with its public data read, of nobody else's use, because attacks set its model's
    parameters.

    parties: the tables of the simulated parties; base: the folder against which the plan's paths are resolved.
    settings: how it is audited. plan_hash: of the plan that the audit is of, which may be another than the one that is
    simulated; notes: what a reader has to know of the difference. run: the run that is audited, None for a plan that
    was not run. seed: of the coins and of the choice of canaries, for an audit that can be repeated; None for the
    system's stream.
    """

    plan: Plan
    recipe: Collecting[Any]
    attacks: Attacks
    launcher: Launcher
    parties: dict[str, dict[str, Any]]
    base: Path
    cache: Path
    settings: AuditTable
    progress: Progress
    plan_hash: bytes
    run: str | None = None
    seed: int | None = None
    notes: Sequence[str] = ()


def audited(given: AuditRequest) -> Audit:
    """Simulate the plan with canaries, attack it, and state what was found. Nothing of the run that is audited changes.

    Raises `PlanError` for a plan that cannot be audited, and whatever the recipe and its parties' tasks raise.
    """
    plan, settings = given.plan, given.settings
    rng = np.random.default_rng(secrets.randbits(128) if given.seed is None else [given.seed, 0])
    given.progress.say("audit: a simulation of the plan, with canaries that coins put in or leave out")
    enough = None if given.attacks.most is None else given.attacks.most + settings.canaries
    most = settings.records or enough
    rows = source.rows_of(plan, given.base, given.cache, most, rng)
    planted, left = _planted(given, rows, rng)
    with TemporaryDirectory(prefix="conclave-audit-") as place, ExitStack() as opened:
        without = None
        if given.attacks.compares:
            without = _ran(given, left, Path(place) / "without", opened, learns=False)
        watch = None
        if given.attacks.watches:
            own = [each.name for each in price_plan(given.recipe).releases if each.form.alone]
            watch = Watch(frozenset(own), len(given.parties))
        ran = _ran(given, [*left, *planted.rows], Path(place) / "with", opened, watch, without)
        seen = Seen(planted, ran, without, watch, left, given.progress)
        claimed = ran.run.priced.guarantee.epsilon if ran.run.priced.private else None
        events = [release.event for release in ran.run.priced.releases]  # of one attempt, which is what ran
        found = list(given.attacks.scores(seen))
        exposures = list(given.attacks.exposures(seen))
        memberships = inferred(
            given.attacks, planted, ran, left, settings.shadows, partial(_alone, given), rng, given.progress
        )
    tested = [(scores, kind) for scores in found for kind in planted.kinds if planted.of(kind).sum() >= 2]
    if not tested:
        raise PlanError("[audit] An audit needs two canaries of a kind or more, and this plan allows fewer.")
    each = 1 - (1 - settings.confidence) / len(tested)
    delta = DELTA if claimed is None else plan.privacy.delta
    claim = None if claimed is None else trade_offs.claimed(events, claimed, delta)
    units = units_of_canary(plan.privacy.unit, plan.privacy.record)
    held = None if claim is None else trade_offs.Together(claim[1], units)
    attacks = [_attacked(scores, kind, planted, delta, each, held, len(tested), units) for scores, kind in tested]
    audit = Audit(
        format=2,
        run=given.run,
        plan_hash=given.plan_hash.hex(),
        claimed=claimed,
        delta=delta,
        unit="all text of one user" if plan.privacy.unit == "user" else f"one {plan.privacy.record}",
        confidence=settings.confidence,
        records=len(left),
        source=rows.source,
        coins="system" if given.seed is None else "seed",
        attacks=attacks,
        exposures=exposures,
        memberships=memberships,
        against=None if claim is None else claim[0],
        gate=None if claim is None else gate.GATE,
    )
    return audit.model_copy(update={"says": [*_says(audit, len(rows.kept), held, units), *given.notes]})


def _planted(given: AuditRequest, rows: source.Rows, rng: np.random.Generator) -> tuple[Planted, Sequence[Document]]:
    """The canaries with their coins, and the records of the source that are in whatever the coins say."""
    plan, settings = given.plan, given.settings
    canaries: list[Canary] = []
    left: Sequence[Document] = rows.kept
    if "worst" in settings.kinds:
        canaries += source.made(plan, given.attacks.worst(settings.canaries, rows.kept, rng))
    if "natural" in settings.kinds:
        found, left = source.natural(plan, rows, settings.canaries, rng)
        canaries += found
    if len(canaries) < 2:
        raise PlanError("[audit] An audit needs two canaries or more, and this plan allows fewer.")
    return flipped(canaries, given.seed), left


def _ran(
    given: AuditRequest,
    rows: Sequence[Document],
    folder: Path,
    opened: ExitStack,
    watch: Watch | None = None,
    beside: Ran | None = None,
    *,
    learns: bool = True,
) -> Ran:
    """The plan's recipe over parties that share these records. Its store is there until `opened` closes.

    beside: a run of the same plan on most of the same records, of which nothing is made twice. learns: whether there is
    a student.
    """
    shards = given.plan.federation.shards
    assert shards is not None
    folder.mkdir(mode=0o700)
    given.progress.say(f"  {len(rows):,} records at {len(given.parties)} simulated parties")
    parties = given.launcher.simulate(
        SimulationRequest(
            parties=source.divided(given.parties, folder / "source.jsonl", shards.text, rows),
            folder=folder,
            base=given.base,
            vocabulary=b"",
            window=0,
            record=given.plan.privacy.record,
            by_user=given.plan.privacy.unit == "user",
            processes=processors(),
            beside=None if beside is None else beside.parties,
        )
    )
    links = None if watch is None else watched(parties.links(), watch)
    shown = _Bars(given.progress)
    with allowing(processors()):
        run: SimulatedRun[Any] = opened.enter_context(
            driven(given.recipe, parties, given.progress, given.base, links=links, shown=shown, learns=learns)
        )
    return Ran(run, parties)


@contextmanager
def _alone(given: AuditRequest, rows: Sequence[Document]) -> Iterator[Ran]:
    """The same in a place of its own, which is there until the context closes."""
    with TemporaryDirectory(prefix="conclave-audit-") as place, ExitStack() as opened:
        yield _ran(given, rows, Path(place) / "shadow", opened)


class _Bars(Silent):
    """Shows how many sums are there, and nothing of parties that do not exist or of a budget that is not spent."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress

    def bar(self, label: str, done: int, total: int, note: str = "") -> None:
        self._progress.bar(label, done, total)


def _attacked(
    scores: Scores,
    kind: Kind,
    planted: Planted,
    delta: float,
    confidence: float,
    claim: TradeOff | None,
    attacks: int,
    units: int,
) -> Attacked:
    """What one of so many attacks found. confidence: of its lower bound. claim: of so many units as a canary is; None
    where there is none.
    """
    own = planted.of(kind)
    scored, included = scores.values[own], planted.included[own]
    found = one_run.audited(scored, included, delta=delta, confidence=confidence, units=units)
    counted = one_run.counted(scored, included)
    return Attacked(
        attacked=scores.attacked,
        canaries=kind,
        count=found.canaries,
        how=scores.how,
        guesses=found.guesses,
        right=found.right,
        tried=found.tried,
        lower=found.lower,
        counted=[list(some) for some in counted],
        refuted=claim is not None and gate.falls(claim, found.canaries, counted, attacks),
    )


def _says(audit: Audit, kept: int, claim: TradeOff | None, units: int) -> list[str]:
    """What a reader has to know of an audit beside its numbers. kept: records of the source that were used. units: how
    many a canary is of.
    """
    found = []
    if units > 1:
        found.append(
            "A text of two words has their pair from either end, so a canary is two pairs. The lower bounds are of "
            "one, and the claim is held to what it says of two together."
        )
    if audit.claimed is None:
        found.append(
            "The plan promises nothing, so nothing here could be refuted. What attacks found is a measurement; a "
            "better attack may find more."
        )
    if kept < audit.source:
        rest = (
            "How much of a record they hide, nobody has proved."
            if audit.claimed is None
            else "Its noise is the plan's own, and the claim has to hold whatever the other records are, so what "
            "refutes it here refutes it for the plan."
        )
        found.append(f"The simulation has {kept:,} of the source's {audit.source:,} records. {rest}")
    if audit.claimed is not None and claim is not None:
        found += _power(audit, audit.claimed, claim)
    if audit.coins == "seed":
        found.append("The coins are of a seed, so that this audit can be repeated: whoever knew it knew the canaries.")
    return found


def _power(audit: Audit, claimed: float, claim: TradeOff) -> list[str]:
    """That the canaries could not have refuted the claim, where they could not."""
    most, attacks = max(each.count for each in audit.attacks), len(audit.attacks)
    needed = gate.needed(claim, attacks)
    if needed is not None and needed <= most:
        return []
    takes = (
        f"No number of canaries up to {gate.MOST:,} does in one run: audit the plan at a smaller epsilon."
        if needed is None
        else f"That takes {needed:,} canaries or more."
    )
    return [
        f"{most:,} canaries could not have refuted {rounded_up(claimed)} at {100 * gate.GATE:g}%, were every guess "
        f"right. {takes}"
    ]
