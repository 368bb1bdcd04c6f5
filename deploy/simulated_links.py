"""Simulated parties as links in this process: their own checks, tasks and shares of the noise, nothing else of theirs.

There is no node, no wire, no ledger and no admission: nobody's secret may be in their text. What a party would refuse
or fail at is raised, for it is the comparison's own failure.
"""

import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from aggregation.mechanisms.registry import numbers_of
from aggregation.noise.stream import NoiseStream
from coordinator.transport.link import Answered, Batch, OnPercent, Outcome
from deploy.simulated_memory import OF_ONE_SEED, SimulatedMemory
from party.config import PartyConfig
from party.errors import TrainingError
from party.releasing.answers import noised
from party.releasing.mechanisms import answering, is_weights, mechanism_of
from party.store.artefacts import PARAMETERS, Artefacts, drop_parameters, parameters
from party.store.keys import KEY_BYTES, insecure_key
from party.store.runs import Run, private_folder, write_whole
from party.tasks.job import Job
from party.tasks.operations import charge_of, check_fit, job_of
from party.tasks.process import prepare
from party.tasks.result import Sum
from party.tasks.task import Asks
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity.signing import Signed
from protos.refusal import Refusal

NOISE: Final = frozenset({"noise_multiplier", "noise", "shares", "distribution"})
"""Numbers of a mechanism that its bounded sums do not depend on."""
DIVIDED: Final = frozenset({"teachers", "ensemble"})
"""Tasks whose one secret is who is in which teacher."""


class SimulatedLink:
    """A `coordinator.transport.link.PartyLink` to a party that is simulated here.

    It is joined to one plan after another: what a bounded sum is made of is kept, so that plans that differ in noise
    alone bound nothing twice. memory: shared by all parties of a simulation. folder: for public files and working ones.
    """

    def __init__(self, config: PartyConfig, folder: Path, memory: SimulatedMemory) -> None:
        self._config = config
        self._folder = folder
        self._memory = memory
        self._run: Run | None = None
        self._sums: dict[str, Sum] = {}

    @property
    def name(self) -> str:
        """The party's name."""
        return self._config.name

    @property
    def traffic(self) -> int:
        """0: nothing travels."""
        return 0

    async def join(
        self,
        run_id: str,
        plan: plan_pb2.Plan,
        plan_hash: bytes,
        *,
        peers: Sequence[party_pb2.Peer] = (),
        needs: party_pb2.Needs | None = None,
    ) -> Outcome[None]:
        """Take this plan's tasks from now on; no policy is asked."""
        if self._run is not None and self._run.terms.seed != plan.terms.seed:
            self._memory.forget(*OF_ONE_SEED)
        self._run, self._sums = Run(run_id, plan_hash, plan.terms, public_folder(self._folder)), {}
        return Answered(None)

    async def provide(self, kind: str, content: bytes) -> Outcome[None]:
        """Have a public file there, once for all parties and plans."""
        if kind != PARAMETERS:
            public_file(self._folder, content)
            return Answered(None)
        sha256, folder = hashlib.sha256(content).digest(), self._joined.folder
        path = parameters(folder, sha256)
        if not path.exists():
            path.write_bytes(content)
        drop_parameters(folder, sha256)
        return Answered(None)

    async def train(self, request: party_pb2.TrainRequest, on_percent: OnPercent) -> Outcome[None]:
        """What the party's own process would do; its bounded sum stays here.

        Raises `TrainingError` for what the party would refuse, and `ConclaveError` like its process.
        """
        run = self._joined
        try:
            asked = _divided(run) if Asks.of(request).kind in DIVIDED else run
            job = job_of(request, asked, self._config, Artefacts(run.folder), self._folder, b"")
            job = replace(job, census="", spread=None)
            check_fit(job)
        except Refusal as refusal:
            raise TrainingError(f"party {self.name} cannot train: {refusal.sentence}") from None
        release = plan_pb2.Release.FromString(bytes.fromhex(job.release))
        self._sums[release.name] = self._bounded(job, release, self._key(run, charge_of(job)), on_percent)
        return Answered(None)

    async def answer(
        self, release: str, batches: Iterable[Batch], columns: int
    ) -> AsyncIterator[Outcome[NDArray[np.int32]]]:
        """Rows of the bounded sum under this party's share of the noise, as its node noises them."""
        run = self._joined
        message, total = run.release(release), self._sums[release]
        for batch in batches:
            rows = total[batch.start : batch.stop]
            if is_weights(message):
                assert isinstance(rows, np.ndarray)
                yield Answered(rows)
                continue
            if run.terms.privacy.insecure_reproducible_noise:
                stream = NoiseStream.insecure(run.terms.seed, self.name, release, str(batch.number))
            else:
                stream = NoiseStream.from_system()
            yield Answered(noised(rows, answering(message), stream))

    def bounded(self, release: str) -> Sum:
        """The bounded sum of a release that was trained under the plan, without noise."""
        return self._sums[release]

    async def leave(self) -> Outcome[None]:
        """Keep no sum any longer."""
        self._sums = {}
        return Answered(None)

    async def close(self) -> None:
        """There is nothing to close."""

    async def describe(self, nonce: bytes) -> Outcome[party_pb2.DescribeResponse]:
        """Nobody asks a simulated party who it is."""
        raise NotImplementedError("a simulated party has no identity")

    def sum_round(self, request: party_pb2.SecureSumRequest) -> AsyncIterator[Outcome[bytes]]:
        """There is nobody to hide a sum from."""
        raise NotImplementedError("simulated parties mask nothing")

    async def attest(self) -> Outcome[Signed]:
        """There is no ledger to attest."""
        raise NotImplementedError("a simulated party has no ledger")

    @property
    def _joined(self) -> Run:
        assert self._run is not None, "join comes first"
        return self._run

    def _key(self, run: Run, release: plan_pb2.Release) -> str:
        if run.terms.privacy.insecure_reproducible_noise:
            return insecure_key(run.terms.seed, self.name, release.name).hex()
        return secrets.token_hex(KEY_BYTES)

    def _bounded(self, job: Job, release: plan_pb2.Release, key: str, on_percent: OnPercent) -> Sum:
        """The bounded sum, made once for all plans that bound alike, unless noise of its own is in it."""

        def make() -> Sum:
            with TemporaryDirectory(dir=self._folder) as own:
                placed = replace(job, result=str(Path(own) / "sum"))
                return prepare(placed, self._memory)(placed.paid_with(key), on_percent)

        if job.stays or job.work.paid_with(key) != job.work:
            return make()
        bounds = json.dumps(_bounds(numbers_of(mechanism_of(release))), sort_keys=True)
        return self._memory.once("sums", (job.reading.whose, job.work.kind, repr(job.work), bounds), make)


def public_folder(folder: Path) -> Path:
    """Where public files lie that simulated parties are given."""
    private_folder(folder / "public")
    return folder / "public"


def public_file(folder: Path, content: bytes) -> Path:
    """Where this public file lies, under its digest, for all simulated parties."""
    path = Artefacts(public_folder(folder)).path(hashlib.sha256(content).digest())
    if not path.exists():
        write_whole(path, content)
    return path


def _divided(run: Run) -> Run:
    """The run as one whose teachers are divided by its seed, so that a comparison's seeds are the same each time."""
    terms = plan_pb2.Terms()
    terms.CopyFrom(run.terms)
    terms.privacy.insecure_reproducible_noise = True
    return replace(run, terms=terms)


def _bounds(numbers: Any) -> Any:
    """A mechanism's numbers without its noise."""
    if isinstance(numbers, dict):
        return {name: _bounds(each) for name, each in numbers.items() if name not in NOISE}
    return numbers
