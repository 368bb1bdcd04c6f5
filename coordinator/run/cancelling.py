"""Cancels a run: its driver stops, and its parties forget it."""

import asyncio
import shutil
import time
from pathlib import Path
from typing import Final

from coordinator.identity.identity import Own
from coordinator.run.interrupts import waited
from coordinator.store import lease
from coordinator.store.faults import sound
from coordinator.store.store import CANCELLED, RunStore
from coordinator.systems.registry import plan_of
from coordinator.transport.grpc_link import GrpcLink
from coordinator.transport.launchers import Launcher, LaunchRequest, PartyAddress
from coordinator.transport.link import Answered

LEAVE_SECONDS: Final = 5.0
"""Seconds that parties have to acknowledge that a run is over."""
CANCEL_SECONDS: Final = 60.0
"""Seconds to wait for a driver that was asked to cancel."""


def cancelled(store: RunStore, launcher: Launcher, own: Own) -> str:
    """End a run for good; a driver is first asked to stop. Returns one sentence on what was done."""
    driver = store.driver()
    if driver is not None:
        store.note(**{lease.CANCEL: True})
        until = time.monotonic() + CANCEL_SECONDS
        while store.driver() is not None and time.monotonic() < until:
            time.sleep(0.2)
        if store.driver() is not None:
            return f"run {store.id} was asked to stop; {driver} still drives it. Cancel again when it let go."
    store.note(**{lease.CANCEL: None})
    with sound(store.folder):
        base = Path(store.fact("base"))
    with lease.held(store):
        silent = leave(store, launcher, base, own)
        store.note(status=CANCELLED)  # why it had stopped before stays
    charged = "What it was charged for stays charged."
    if not silent:
        return f"run {store.id} is cancelled; its parties forgot it. {charged}"
    return (
        f"run {store.id} is cancelled. {charged} {', '.join(silent)} did not answer and may keep working files until "
        f"`party purge {store.joined_as}` is run there."
    )


def leave(store: RunStore, launcher: Launcher, base: Path, own: Own) -> list[str]:
    """Tell the parties of a finished run that it is over; returns the names of those that did not answer.

    Parties that a launcher started no longer exist; their files are removed.
    """
    with sound(store.folder):
        plan = plan_of(store.fact("plan"))
    if plan.federation.shards is not None:
        shutil.rmtree(store.folder / "parties", ignore_errors=True)
        store.note(left=True)
        return []
    plan_hash = store.plan_hash
    with launcher.launch(LaunchRequest({}, store.folder / "parties", base, own.vouch)) as addresses:
        silent = waited(lambda stops: _left(addresses, store.joined_as, plan_hash, own), lambda: None)
    store.note(left=True)
    return silent


async def _left(addresses: tuple[PartyAddress, ...], run_id: str, plan_hash: bytes, own: Own) -> list[str]:
    identity = own.identity if own.tls else None
    links = [
        GrpcLink(each.name, each.address, each.token, identity=identity, way=each.way, deadline=LEAVE_SECONDS)
        for each in addresses
    ]
    try:
        for link in links:
            link.bind(run_id, plan_hash)
        outcomes = await asyncio.gather(*(link.leave() for link in links))
        return [link.name for link, outcome in zip(links, outcomes, strict=True) if not isinstance(outcome, Answered)]
    finally:
        await asyncio.gather(*(link.close() for link in links))
