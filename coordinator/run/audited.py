"""Audits a plan, or the plan of a finished run, over simulated parties."""

from pathlib import Path

from coordinator.auditing.audit import AuditRequest
from coordinator.auditing.audit import audited as attacked
from coordinator.errors import PlanError
from coordinator.plan.audit import AuditTable
from coordinator.plan.plan import Plan
from coordinator.pricing.priced_plan import price_plan
from coordinator.progress.progress import Progress
from coordinator.published.audit import Audit
from coordinator.run.party_files import party_tables
from coordinator.run.resuming import check_same
from coordinator.store.private_files import home
from coordinator.store.store import RunStore
from coordinator.systems.registry import system
from coordinator.transport.launchers import Launcher
from protos.digest import plan_hash


def check_auditable(plan: Plan) -> None:
    """Raises `PlanError` for a plan that cannot be audited: of real parties, with noise that can be reproduced, or of
    a system that offers no audit.
    """
    try:
        plan.check_audit()
    except ValueError as error:
        raise PlanError(str(error)) from None
    if system(plan.run.recipe).audit is None:
        raise PlanError(
            f'The system "{plan.run.recipe}" offers no audit: it names no attacks on what it releases. Leave [audit] '
            "out; the guarantee is the accountant's in any case."
        )


def audited(
    plan: Plan,
    launcher: Launcher,
    base: Path,
    settings: AuditTable,
    progress: Progress,
    *,
    run: RunStore | None = None,
    seed: int | None = None,
) -> Audit:
    """Audit a plan. Its public data is read anew, so that nothing of the run that is audited changes.

    run: whose plan it is; None for a plan that was not run. Raises `PlanError` as `check_auditable`, and where the
    public data is not the one that the run began with; and what the simulation raises.
    """
    check_auditable(plan)
    found, cache = system(plan.run.recipe), home() / "cache"
    assert found.audit is not None
    recipe = found.prepared(plan, base, cache)
    priced = price_plan(recipe)
    if run is not None:
        check_same(run, priced)
    simulated, notes = plan.audited_with(settings)
    if simulated is not plan:
        recipe = found.prepared(simulated, base, cache)
    return attacked(
        AuditRequest(
            plan=simulated,
            plan_hash=plan_hash(priced.binding),
            recipe=recipe,
            attacks=found.audit(recipe),
            launcher=launcher,
            parties=party_tables(plan),
            base=base,
            cache=cache,
            settings=settings,
            progress=progress,
            run=None if run is None else run.id,
            seed=seed,
            notes=notes,
        )
    )
