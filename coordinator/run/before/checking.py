"""Checks everything a run needs: its plan, this machine, and every party, without binding any of them.

Nothing is spent, and no party keeps anything. All parties are checked at the same time, even when one fails.
"""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

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
from coordinator.run.before.computing import computing, devices
from coordinator.run.before.given import PlanLike, plan_given
from coordinator.run.before.previewing import look_over
from coordinator.run.checks.machine import SCRATCH, launcher, store, versions
from coordinator.run.connecting import Connecting
from coordinator.store.output import STUDENT
from coordinator.store.private_files import home
from coordinator.store.store import check_unused
from coordinator.systems.registry import prepared, system
from coordinator.transport.launchers import Cluster, LaunchRequest, find_launcher
from protos.conclave.v1 import party_pb2
from protos.console.checklist import Line, State, free_disk, free_memory, ok, size, to_do, warning
from protos.digest import plan_hash
from protos.identity.certificates import fingerprint
from protos.identity.validity import ending, ends_soon


def check(
    plan: PlanLike,
    ray_address: str | None = None,
    say: Callable[[str], None] = lambda sentence: None,
    output: Path | None = None,
) -> list[Line]:
    """Check everything that running a plan needs, one line each. Reads the public text that the plan names.

    ray_address: of the Ray cluster to put the parties on, whatever the plan says. say: is told who is waited for.
    output: the folder that is to hold everything of the run.
    """
    try:
        asked = plan_given(plan)
        plan, base = asked.plan.on_cluster(ray_address), asked.base
    except PlanError as error:
        return [to_do("plan", str(error)), versions()]
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
    stored = store()
    lines += [stored, _publish(base / plan.student.publish) if output is None else _output(output.absolute())]
    cluster = plan.federation.cluster
    parties = len(plan.federation.names) if plan.federation.shards is not None and cluster is None else 0
    if room is not None:
        lines += _room(room, parties, home() if output is None else output)
    if plan.federation.shards is not None:
        lines.append(launcher(plan.federation.launch))
        if cluster is None and State.TO_DO not in (stored.state, lines[-1].state):
            lines += look_over(plan, base)  # on a cluster the source lies on its machines
        if cluster is not None and lines[-1].state is not State.TO_DO:
            lines.append(_cluster(plan.federation.launch, cluster.cluster(plan.federation.names, base, "check")))
    elif own is not None:
        lines += _parties(plan, base, own, priced, None if room is None else room.party, say)
    return [*lines, versions()]


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
    end, last = ending(own.identity.transport, own.identity.signing), ending(own.identity.authority)
    said = (
        f"{own.identity.name}, valid until {end:%Y-%m-%d}, authority {fingerprint(own.identity.authority)}, "
        f"until {last:%Y-%m-%d}"
    )
    if ends_soon(last):
        return warning(
            "identity",
            f"{said}; none of its certificates counts then: make a new federation before (coordinator provision "
            "federation), in which every party enrols",
        )
    if ends_soon(end):
        return warning("identity", f"{said}; renew it soon: coordinator provision renew")
    return ok("identity", said)


def _publish(folder: Path) -> Line:
    """Whether a student could be published there: tried, and undone."""
    try:
        try_place(folder)
    except RunError as error:
        return to_do("publish", str(error))
    return ok("publish", f"{folder} is free")


def _output(folder: Path) -> Line:
    """Whether a run could have this folder."""
    try:
        check_unused(folder)
        try_place(folder / STUDENT)
    except RunError as error:
        return to_do("output", str(error))
    return ok("output", f"{folder} is free")


def _room(room: Needs, parties: int, place: Path) -> list[Line]:
    """Memory and disk of this machine, for the coordinator and for the parties that it starts here.

    place: where the run's files go.
    """
    memory, disk = room.memory + parties * room.party_memory, room.disk + parties * room.party_disk
    who = f"coordinator and {parties} parties" if parties else "coordinator"
    free = free_memory()
    if free is None:
        found = warning("memory", f"this system does not say how much is free; {who} may take {size(memory)}")
    elif free < memory:
        cure = "Plan with fewer words or parties" if parties else "Plan with fewer words"
        found = to_do(
            "memory", f"{size(free)} are free, and {who} may take {size(memory)}. {cure}, or end other programs."
        )
    else:
        found = ok("memory", f"{size(free)} are free; up to {size(memory)} for {who}")
    return [found, _disk(place, disk, who)]


def _disk(place: Path, disk: int, who: str) -> Line:
    space, scratch = free_disk(place), Path(tempfile.gettempdir())
    if space < disk:
        cure = "Make room, or name another folder (CONCLAVE_HOME, --output)"
        return to_do("disk", f"{size(space)} are free in {place}, and {who} may write {size(disk)}. {cure}.")
    if (left := free_disk(scratch)) < SCRATCH:
        return to_do(
            "disk",
            f"{size(left)} are free in {scratch}, and temporary files may take {size(SCRATCH)}. Make room, or set "
            "TMPDIR.",
        )
    return ok("disk", f"{size(space)} are free in {place}; up to {size(disk)} for {who}")


def _cluster(launcher: str, cluster: Cluster) -> Line:
    try:
        return ok("cluster", find_launcher(launcher).look(cluster))
    except ConclaveError as error:
        return to_do("cluster", str(error))
