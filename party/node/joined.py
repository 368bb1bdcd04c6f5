"""The runs that a party takes part in: joined after every check, looked up by each call, and left for good."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

from party.admission.admit import admit, affordable
from party.admission.company import admit_peers
from party.admission.limits import Limits
from party.admission.needs import Capacity, fits
from party.admission.protection import admit_unit
from party.admission.simulated import admit_text
from party.config import PartyConfig
from party.ledger.ledger import Ledger
from party.store.runs import Run, Runs, check_run_id
from protos import PROTOCOL_VERSION, software_version
from protos.conclave.v1 import party_pb2
from protos.digest import plan_hash
from protos.refusal import Reason, Refusal
from protos.roster import own_terms

log = logging.getLogger("conclave.party")


class JoinedRuns:
    """This party's joined runs, stored in its ledger; those that calls have used since the node began are also in
    memory.
    """

    def __init__(self, config: PartyConfig, folder: Path, ledger: Ledger, limits: Limits, capacity: Capacity) -> None:
        """folder: of all runs, one folder a run. capacity: the machine's free memory and disk when the node began."""
        self._config = config
        self._ledger = ledger
        self._limits = limits
        self._capacity = capacity
        self._cache = folder.parent / "cache"
        self._runs = Runs(folder)
        self._open: dict[str, Run] = {}

    async def check(self, request: party_pb2.JoinRequest) -> None:
        """Raises `Refusal` for an inconsistent request, and for terms that this party does not accept."""
        if request.protocol_version != PROTOCOL_VERSION:
            older = "an older" if request.protocol_version < PROTOCOL_VERSION else "a newer"
            raise Refusal(
                Reason.PROTOCOL,
                f"the coordinator speaks {older} protocol ({request.protocol_version}); party {self._config.name} "
                f"speaks {PROTOCOL_VERSION} (Conclave {software_version()}). Install the same version of Conclave at "
                "both ends.",
            )
        check_run_id(request.run.run_id)
        try:
            computed = plan_hash(request.plan)
        except ValueError:
            raise Refusal(Reason.PLAN, "a number in the plan is not finite.") from None
        if computed != request.run.plan_hash:
            raise Refusal(
                Reason.PLAN,
                f"the plan that came has hash {computed.hex()[:12]}, the call says "
                f"{request.run.plan_hash.hex()[:12] or 'none'}; it was changed on its way.",
            )
        terms = request.plan.terms
        await asyncio.to_thread(admit, terms, self._config)
        admit_peers(request.peers, terms, self._config)
        admit_unit(terms, self._config)

    async def can_join(self, request: party_pb2.JoinRequest) -> None:
        """Raises `Refusal` where a checked request would not be joined; does not bind the party."""
        await self._ledger.can_pay(affordable(own_terms(request.plan.terms, self._config.name)))
        await asyncio.to_thread(admit_text, request.plan.terms, self._config, self._cache)
        if (lacking := fits(request.needs, self._capacity)) is not None:
            raise Refusal(Reason.STORAGE, lacking)

    async def join(self, request: party_pb2.JoinRequest) -> None:
        """Bind this party to a checked request for good. Raises `Refusal` as `admit_text` and `Ledger.join` do."""
        run_id, bound = request.run.run_id, request.run.plan_hash
        wanted = affordable(own_terms(request.plan.terms, self._config.name))
        if run_id not in (going := [run.id for run in await self._ledger.runs() if run.left_at is None]):
            self._limits.check_runs(len(going))
            await asyncio.to_thread(admit_text, request.plan.terms, self._config, self._cache)
        await self._ledger.join(run_id, bound, wanted)
        peers = list(request.peers)
        self._open[run_id] = self._own(await asyncio.to_thread(self._runs.make, run_id, bound, request.plan, peers))

    async def leave(self, context: party_pb2.RunContext) -> bool:
        """Leave a run; returns whether there was one. Its files stay until `drop`; nothing is charged for it again."""
        run_id = context.run_id
        check_run_id(run_id)
        bound = await self._ledger.joined(run_id)
        if bound is None:
            return False
        if bound != context.plan_hash:
            raise Refusal(Reason.CONFLICT, f"run {run_id} is bound to another plan here.")
        await self._ledger.leave(run_id)
        self._open.pop(run_id, None)
        return True

    async def drop(self, run_id: str) -> None:
        """Remove the files of a run that was left."""
        await asyncio.to_thread(self._runs.drop, run_id)
        log.info("left run %s", run_id, extra={"event": "left", "run": run_id})

    async def find(self, context: party_pb2.RunContext) -> Run:
        """The run of a call. Raises `Refusal` when it is not joined or bound to another plan."""
        check_run_id(context.run_id)
        run = self._open.get(context.run_id)
        if run is None:
            bound = await self._ledger.joined(context.run_id)
            run = None if bound is None else await asyncio.to_thread(self._runs.find, context.run_id, bound)
            if run is None:
                raise Refusal(
                    Reason.NOT_JOINED, f"party {self._config.name} is not in run {context.run_id}, or it ended here."
                )
            run = self._open[run.id] = self._own(run)
        if run.plan_hash != context.plan_hash:
            raise Refusal(
                Reason.PLAN,
                f"run {run.id} is bound to plan {run.plan_hash.hex()[:12]} here, the call says "
                f"{context.plan_hash.hex()[:12] or 'none'}.",
            )
        return run

    def _own(self, run: Run) -> Run:
        """The run with the releases that this party has a part in: it is asked for no other, and pays for no other."""
        return replace(run, terms=own_terms(run.terms, self._config.name))
