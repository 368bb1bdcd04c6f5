"""Checks everything a run needs: its plan, this machine, and every party, without binding any of them.

Nothing is spent, and no party keeps anything. All parties are checked at the same time, even when one fails.
"""

import asyncio
import sys
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from aggregation.errors import ConclaveError
from aggregation.mechanisms.mechanism import HEURISTIC
from coordinator.errors import PlanError, RunError
from coordinator.federation.roll_call import ask_all
from coordinator.forecasting import kinship
from coordinator.forecasting.needs import Needs
from coordinator.identity.identity import Own, own_identity
from coordinator.plan.plan import Plan
from coordinator.pricing.priced_plan import price_plan
from coordinator.pricing.release import PricedPlan, rounded_up
from coordinator.publishing.publish import try_place
from coordinator.run.audited import check_auditable
from coordinator.run.computing import computing, devices
from coordinator.run.connecting import Connecting
from coordinator.store.index import RunIndex
from coordinator.store.private_files import home
from coordinator.systems.registry import prepared, read_plan, system
from coordinator.transport.launchers import Cluster, LaunchRequest, find_launcher
from protos import PROTOCOL_VERSION
from protos.conclave.v1 import party_pb2
from protos.console.checklist import Line, State, free_disk, free_memory, ok, size, to_do, warning
from protos.digest import plan_hash
from protos.identity.certificates import fingerprint

EXPIRING: Final = timedelta(days=30)


def check(path: Path, ray_address: str | None = None, say: Callable[[str], None] = lambda sentence: None) -> list[Line]:
    """Check everything that running the plan in `path` needs, one line each. Reads the public text that the plan names.

    ray_address: of the Ray cluster to put the parties on, whatever the plan says. say: is told who is waited for.
    """
    try:
        plan = read_plan(path).on_cluster(ray_address)
    except PlanError as error:
        return [to_do("plan", str(error)), _versions()]
    base = path.absolute().parent
    priced = room = own = None
    device = _device(plan)
    try:
        cache = home() / "cache"
        with nullcontext() if device.state is State.TO_DO else computing(plan):
            if plan.audit is not None:
                check_auditable(plan)
            recipe = prepared(plan, base, cache)
            priced = price_plan(recipe)
            room = system(plan.run.recipe).needs(recipe, priced, base, cache)
        lines = [_plan(priced), *(warning("public", doubt) for doubt in (*kinship.doubts(plan), *recipe.doubts()))]
    except ConclaveError as error:
        lines = [to_do("plan", str(error))]
    lines.append(device)
    try:
        own = own_identity(plan, base)
        lines.append(_identity(plan, own))
    except ConclaveError as error:
        lines.append(to_do("identity", str(error)))
    except OSError as error:
        lines.append(to_do("identity", f"{error.filename} cannot be written: {error.strerror}."))
    lines += [_store(), _publish(base / plan.student.publish)]
    cluster = plan.federation.cluster
    parties = len(plan.federation.names) if plan.federation.shards is not None and cluster is None else 0
    if room is not None:
        lines += _room(room, parties)
    if plan.federation.shards is not None:
        lines.append(_launcher(plan.federation.launch))
        if cluster is not None and lines[-1].state is not State.TO_DO:
            lines.append(_cluster(plan.federation.launch, cluster.cluster(plan.federation.names, base, "check")))
    elif own is not None:
        lines += _parties(plan, base, own, priced, None if room is None else room.party, say)
    return [*lines, _versions()]


def _parties(
    plan: Plan,
    base: Path,
    own: Own,
    priced: PricedPlan[Plan] | None,
    needs: party_pb2.Needs | None,
    say: Callable[[str], None],
) -> list[Line]:
    """Lines on every party; the gate for those that dial is open meanwhile."""
    try:
        with Connecting(plan).launch(LaunchRequest({}, base, base, own.vouch, say=say)) as addresses:
            return asyncio.run(ask_all(plan, own, priced, needs, addresses, say))
    except RunError as error:
        return [to_do("gate", str(error))]


def _plan(priced: PricedPlan[Plan]) -> Line:
    names = priced.plan.federation.names
    price = (
        f"epsilon {rounded_up(priced.guarantee.epsilon)} of {priced.plan.privacy.epsilon:g}"
        if priced.private
        else HEURISTIC
        if not priced.plan.privacy.guarantee
        else "no guarantee"
    )
    who = f"{len(names)} {'party' if len(names) == 1 else 'parties'}"
    return ok("plan", f"{priced.plan.run.recipe}, {who}, {price}, hash {plan_hash(priced.binding).hex()[:12]}")


def _device(plan: Plan) -> Line:
    """What the coordinator's models run on, and what else is there. Torch is asked only where that may matter."""
    try:
        with computing(plan) as found:
            there = devices(plan)
    except ConclaveError as error:
        return to_do("device", str(error))
    if not plan.MODELS:
        return ok("device", f"{found}: this recipe has no text model, which another device could run")
    others = f"; there are {', '.join(there)}" if len(there) > 1 else ""
    return ok("device", f"text models run on {found}{others}")


def _identity(plan: Plan, own: Own) -> Line:
    if plan.federation.identity is None:
        return ok(
            "identity", "none of a federation: parties on this machine alone, and the student signed by its run store"
        )
    end = min(own.identity.transport.not_valid_after_utc, own.identity.signing.not_valid_after_utc)
    said = f"{own.identity.name}, valid until {end:%Y-%m-%d}, authority {fingerprint(own.identity.authority)}"
    if end - datetime.now(UTC) < EXPIRING:
        return warning("identity", f"{said}; renew it soon: coordinator provision renew")
    return ok("identity", said)


def _store() -> Line:
    """Whether runs can be stored: the index opens, and a file can be written beside it."""
    folder = home()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"conclave")
        kept = len(RunIndex().entries())
    except OSError as error:
        return to_do("store", f"{folder} cannot be written: {error.strerror}. Make it writable, or set CONCLAVE_HOME.")
    except RunError as error:
        return to_do("store", str(error))
    return ok("store", f"{folder}, {kept} {'run' if kept == 1 else 'runs'}")


def _publish(folder: Path) -> Line:
    """Whether a student could be published there: tried, and undone."""
    try:
        try_place(folder)
    except RunError as error:
        return to_do("publish", str(error))
    return ok("publish", f"{folder} is free")


def _room(room: Needs, parties: int) -> list[Line]:
    """Memory and disk of this machine, for the coordinator and for the parties that it starts here."""
    memory, disk = room.memory + parties * room.party_memory, room.disk + parties * room.party_disk
    who = f"coordinator and {parties} parties" if parties else "coordinator"
    free, space = free_memory(), free_disk(home())
    if free is None:
        lines = [warning("memory", f"this system does not say how much is free; {who} may take {size(memory)}")]
    elif free < memory:
        cure = "Plan with fewer words or parties" if parties else "Plan with fewer words"
        lines = [
            to_do("memory", f"{size(free)} are free, and {who} may take {size(memory)}. {cure}, or end other programs.")
        ]
    else:
        lines = [ok("memory", f"{size(free)} are free; up to {size(memory)} for {who}")]
    if space < disk:
        cure = "Make room, or set CONCLAVE_HOME"
        lines.append(to_do("disk", f"{size(space)} are free in {home()}, and {who} may write {size(disk)}. {cure}."))
    else:
        lines.append(ok("disk", f"{size(space)} are free; up to {size(disk)} for {who}"))
    return lines


def _launcher(name: str) -> Line:
    try:
        find_launcher(name)
    except PlanError as error:
        return to_do("launcher", str(error))
    if name == "ray" and find_spec("ray") is None:
        return to_do("launcher", "Ray is not installed here. Install Conclave again: pip install conclave-distill")
    return ok("launcher", f"{name} is installed")


def _cluster(launcher: str, cluster: Cluster) -> Line:
    try:
        return ok("cluster", find_launcher(launcher).look(cluster))
    except ConclaveError as error:
        return to_do("cluster", str(error))


def _versions() -> Line:
    here = f"Conclave {version('conclave-distill')}, protocol {PROTOCOL_VERSION}, Python {sys.version.split()[0]}"
    return ok("versions", here)
