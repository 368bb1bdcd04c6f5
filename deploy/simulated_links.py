"""Simulated parties as links in this process: they use a party's checks, tasks and shares of the noise, nothing else.

There is no node, no wire, no ledger and no admission, so the text must not be secret. Where a party would refuse or
fail, the link raises an error, because the comparison itself has failed.
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
from party.releasing.mechanisms import answering, is_own, mechanism_of
from party.store.artefacts import PARAMETERS, Artefacts, drop_parameters, parameters
from party.store.keys import KEY_BYTES, insecure_key
from party.store.runs import Run, private_folder, write_whole
from party.tasks.job import Job
from party.tasks.operations import charge_of, check_fit, job_of
from party.tasks.process import prepare
from party.tasks.result import Sum
from party.tasks.task import Asks
from protos.computed import Computed
from protos.conclave.v1 import party_pb2, plan_pb2
from protos.identity.signing import Signed
from protos.refusal import Refusal
from protos.roster import own_terms
from protos.steps import parsed

NOISE: Final = frozenset({"noise_multiplier", "noise", "shares", "distribution"})
"""A mechanism's fields on which its bounded sums do not depend."""
DIVIDED: Final = frozenset({"teachers", "ensemble", "language_teachers"})
"""Tasks that divide units among teachers by a secret key."""


class SimulatedLink:
    """A `coordinator.transport.link.PartyLink` to a party that is simulated in this process.

    It joins one plan after another. Its memory keeps bounded sums, so plans that differ only in noise share them.
    memory: one for all parties of a simulation. folder: for public files and working files.
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
        """Bytes sent and received: always 0."""
        return 0

    async def join(
        self,
        run_id: str,
        plan: plan_pb2.Plan,
        plan_hash: bytes,
        *,
        peers: Sequence[party_pb2.Peer] = (),
        needs: party_pb2.Needs | None = None,
    ) -> Outcome[Computed]:
        """Join a plan, in place of the last one; no policy is checked."""
        if self._run is not None and self._run.terms.seed != plan.terms.seed:
            self._memory.forget(*OF_ONE_SEED)
        terms = own_terms(plan.terms, self.name)
        self._run, self._sums = Run(run_id, plan_hash, terms, public_folder(self._folder)), {}
        return Answered(Computed())

    async def provide(self, kind: str, content: bytes) -> Outcome[None]:
        """Store a public file, once for all parties and plans."""
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
        """Do what the party's training process would do, and keep the bounded sum.

        Raises `TrainingError` where the party would refuse, and `ConclaveError` as its process does.
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
        self._forget_steps(release.name)
        self._sums[release.name] = self._bounded(job, release, self._key(run, charge_of(job)), on_percent)
        return Answered(None)

    async def answer(
        self, release: str, batches: Iterable[Batch], columns: int
    ) -> AsyncIterator[Outcome[NDArray[np.int32]]]:
        """Yield rows of the bounded sum with this party's share of the noise, as a node adds it."""
        run = self._joined
        message, total = run.release(release), self._sums[release]
        for batch in batches:
            rows = total[batch.start : batch.stop]
            if is_own(message):
                assert isinstance(rows, np.ndarray)
                yield Answered(rows)
                continue
            if run.terms.privacy.insecure_reproducible_noise:
                stream = NoiseStream.insecure(run.terms.seed, self.name, release, str(batch.number))
            else:
                stream = NoiseStream.from_system()
            yield Answered(noised(rows, answering(message), stream))

    def bounded(self, release: str) -> Sum:
        """The bounded sum, without noise, of a release that was trained under this plan; of steps, of the last one."""
        return self._sums[release]

    async def leave(self) -> Outcome[None]:
        """Forget all sums."""
        self._sums = {}
        return Answered(None)

    async def close(self) -> None:
        """Do nothing: there is no connection."""

    async def describe(self, nonce: bytes) -> Outcome[party_pb2.DescribeResponse]:
        """Raises `NotImplementedError`: a simulated party has no identity."""
        raise NotImplementedError("a simulated party has no identity")

    def sum_round(self, request: party_pb2.SecureSumRequest) -> AsyncIterator[Outcome[bytes]]:
        """Raises `NotImplementedError`: simulated parties mask nothing."""
        raise NotImplementedError("simulated parties mask nothing")

    async def attest(self) -> Outcome[Signed]:
        """Raises `NotImplementedError`: a simulated party has no ledger."""
        raise NotImplementedError("a simulated party has no ledger")

    @property
    def _joined(self) -> Run:
        assert self._run is not None, "join comes first"
        return self._run

    def _forget_steps(self, name: str) -> None:
        """Forget the sums of other steps of its release, if it is one: each is as large as what is trained."""
        release, step = parsed(name)
        if step is not None:
            self._sums = {each: total for each, total in self._sums.items() if parsed(each)[0] != release}

    def _key(self, run: Run, release: plan_pb2.Release) -> str:
        if run.terms.privacy.insecure_reproducible_noise:
            return insecure_key(run.terms.seed, self.name, release.name).hex()
        return secrets.token_hex(KEY_BYTES)

    def _bounded(self, job: Job, release: plan_pb2.Release, key: str, on_percent: OnPercent) -> Sum:
        """The bounded sum; plans that bound alike share it, unless the training itself draws noise."""

        def make() -> Sum:
            with TemporaryDirectory(dir=self._folder) as own:
                placed = replace(job, result=str(Path(own) / "sum"))
                return prepare(placed, self._memory)(placed.paid_with(key), on_percent)

        if job.stays or job.work.paid_with(key) != job.work:
            return make()
        mechanism = mechanism_of(release)
        bounds = json.dumps([mechanism.kind, _bounds(numbers_of(mechanism))], sort_keys=True)
        return self._memory.once("sums", (job.reading.whose, job.work.kind, repr(job.work), bounds), make)


def public_folder(folder: Path) -> Path:
    """The folder of the public files for simulated parties; it is made where it is missing."""
    private_folder(folder / "public")
    return folder / "public"


def public_file(folder: Path, content: bytes) -> Path:
    """Write a public file under its digest, for all simulated parties; returns its path."""
    path = Artefacts(public_folder(folder)).path(hashlib.sha256(content).digest())
    if not path.exists():
        write_whole(path, content)
    return path


def _divided(run: Run) -> Run:
    """The run with its units divided among teachers by its seed, so that a comparison can be repeated."""
    terms = plan_pb2.Terms()
    terms.CopyFrom(run.terms)
    terms.privacy.insecure_reproducible_noise = True
    return replace(run, terms=terms)


def _bounds(numbers: Any) -> Any:
    """A mechanism's fields without those that set its noise."""
    if isinstance(numbers, dict):
        return {name: _bounds(each) for name, each in numbers.items() if name not in NOISE}
    return numbers
